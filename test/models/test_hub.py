# SPDX-License-Identifier: Apache-2.0
"""Fetching from a hub, against a hub on this machine, in a process of its own: the library reads its address once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_hub import FakeHub, serving
from support.model_folders import save_random_model

from ros_kvstream.errors import ModelError
from ros_kvstream.models.hub import has_weights, wanted_files

SCRIPT = """
import json, sys
from ros_kvstream.errors import ModelError
from ros_kvstream.models.loading import describe_model, load_model
from ros_kvstream.settings import ModelSettings
for word in sys.argv[1:]:
    action, name = word.split(":")
    lines = []
    try:
        settings = ModelSettings(path=name, device="cpu")
        model = describe_model(settings) if action == "describe" else load_model(settings, report=lines.append)
        result = {"layers": model.shape.layers, "trained": model.trained, "name": model.name}
    except ModelError as error:
        result = {"error": str(error)}
    print(json.dumps({**result, "lines": lines}))
"""


def in_own_process(words: list[str], endpoint: str, cache: Path) -> list[dict]:
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], env=environment, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> FakeHub:
    folder = save_random_model(tmp_path_factory.mktemp("repository"))
    (folder / "pytorch_model.bin").write_bytes(b"never to be read")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights once more")
    (folder / "modeling_own.py").write_text("raise SystemExit('remote code ran')")
    return FakeHub("maker/model", folder)


def test_a_hub_model_is_described_without_weights_loaded_with_progress_and_loaded_again_without_network(
    hub: FakeHub, tmp_path: Path
) -> None:
    words = ["describe:maker/model", "load:maker/model", "load:maker/other"]
    with serving(hub) as endpoint:
        described, loaded, other = in_own_process(words, endpoint, tmp_path)
    assert described == {"layers": 3, "trained": True, "name": "maker/model", "lines": []}
    assert loaded["trained"] and loaded["layers"] == 3
    assert len(loaded["lines"]) == 1 and "model.safetensors" in loaded["lines"][0]
    assert "maker/other" in other["error"] and "Check the name" in other["error"]
    assert [name for name in hub.fetched if not name.endswith((".json", ".jinja"))] == ["model.safetensors"]
    assert len(hub.fetched) == len(set(hub.fetched))
    before = len(hub.fetched)
    again, never_here = in_own_process(["load:maker/model", "load:maker/third"], endpoint, tmp_path)  # nobody answers
    assert again["layers"] == 3 and again["trained"]
    assert "not in the cache" in never_here["error"]
    assert len(hub.fetched) == before


def test_only_what_is_read_is_fetched_smallest_first() -> None:
    sizes = {
        "model-00001-of-00002.safetensors": 50,
        "model-00002-of-00002.safetensors": 40,
        "model.safetensors.index.json": 3,
        "consolidated.safetensors": 90,
        "onnx/model.safetensors": 90,
        "pytorch_model.bin": 90,
        "config.json": 2,
        "tokenizer.model": 5,
        "README.md": 1,
        "own.py": 1,
    }
    small = ["config.json", "model.safetensors.index.json", "tokenizer.model"]
    large = ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    assert wanted_files(sizes, weights=False) == small
    assert wanted_files(sizes, weights=True) == [*small, *large]
    assert wanted_files(sizes, weights=True, code=True) == ["own.py", *small, *large]


def test_weights_whose_reading_can_run_code_are_refused() -> None:
    has_weights("x", ["model.safetensors", "pytorch_model.bin"])
    has_weights("x", ["config.json"])
    with pytest.raises(ModelError, match="pytorch_model.bin.*only safetensors"):
        has_weights("x", ["config.json", "pytorch_model.bin"])
