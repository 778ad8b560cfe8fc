# SPDX-License-Identifier: Apache-2.0
"""From settings to a loaded model: types, offline folders, refusals before loading, code only when asked for."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from support.model_folders import folder_without_weights, save_random_model
from support.tiny_families import TINY
from transformers import Qwen2_5_VLForConditionalGeneration

from ros_kvstream.errors import ModelError
from ros_kvstream.models import quantization
from ros_kvstream.models.base import PositionRange
from ros_kvstream.models.loading import TINY_FOLDER, describe_model, load_model
from ros_kvstream.settings import MemorySettings, ModelSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("saved"))


def settings_of(folder: Path, **values: object) -> ModelSettings:
    return ModelSettings(path=str(folder), **{"device": "cpu", **values})  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_and_cache_are_of_the_type_asked_for(saved: Path, dtype: str) -> None:
    model = load_model(settings_of(saved, dtype=dtype))
    assert model.shape.dtype == getattr(torch, dtype)
    assert {p.dtype for p in model.network.parameters()} == {getattr(torch, dtype)}  # type: ignore[attr-defined]
    assert describe_model(settings_of(saved, dtype=dtype)).shape == model.shape


@pytest.mark.parametrize("attention", ["auto", "sdpa", "eager"])
def test_the_vision_towers_attention_is_the_chosen_one_and_the_language_models_the_arenas(
    saved: Path, attention: str
) -> None:
    network = load_model(settings_of(saved, attention=attention)).network  # type: ignore[attr-defined]
    assert network.model.visual.config._attn_implementation == {"auto": "sdpa"}.get(attention, attention)
    assert network.model.language_model.config._attn_implementation == "kvstream"


def test_a_folder_is_loaded_without_any_connection(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert load_model(settings_of(saved)).trained
    own = describe_model(ModelSettings())
    assert own.trained and own.family == "qwen2_5_vl"


def test_equal_seeds_make_equal_weights_where_a_folder_has_none(tmp_path: Path) -> None:
    folder = folder_without_weights(tmp_path)
    weights = [load_model(settings_of(folder), seed).network.lm_head.weight for seed in (3, 3, 4)]  # type: ignore[attr-defined]
    assert not load_model(settings_of(folder)).trained and not describe_model(settings_of(folder)).trained
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_the_range_of_positions_is_the_measured_one_else_the_familys_else_all_of_them(
    saved: Path, tmp_path: Path
) -> None:
    limit = json.loads((TINY_FOLDER / "kvstream.json").read_text())["position_limit"]
    own = describe_model(ModelSettings())
    assert own.position_range.limit == limit < own.position_limit and "measured" in own.position_range.source
    family = load_model(settings_of(saved))
    assert family.position_range == PositionRange(min(32_768, family.position_limit), "trained length of the family")
    assert own.positions_within("auto", 40) == own.positions_within(0, 40) == own.position_range
    assert own.positions_within("auto", 8000).limit == own.position_limit - 8000
    assert own.positions_within(300, 40) == PositionRange(260, "memory.position_limit")
    assert own.positions_within(10**6, 40).limit == own.position_limit - 40
    memory = VideoMemory(StreamSettings(memory=MemorySettings(budget_mib=2.0)))
    assert (memory.stats().position_limit, memory.stats().position_source) == (limit, own.position_range.source)


@pytest.mark.parametrize("family", TINY)
def test_every_family_states_the_length_that_it_was_trained_on(family: str) -> None:
    model = TINY[family](layers=1, limit=10**6)
    assert model.position_range == PositionRange(model.trained_positions, "trained length of the family")
    type(model).trained_positions, stated = 0, model.trained_positions
    try:
        unknown = TINY[family](layers=1, limit=10**6).position_range
    finally:
        type(model).trained_positions = stated
    assert unknown.limit == 10**6 and unknown.source.startswith("max_position_embeddings")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"position_limit": 0}', '{"position_limit": 1e3}',
                                  '{"position_limit": true}', '{"position_limit": 99999999}'])  # fmt: skip
def test_a_damaged_range_is_refused_with_the_file_and_the_remedy(tmp_path: Path, text: str) -> None:
    folder = folder_without_weights(tmp_path)
    (folder / "kvstream.json").write_text(text)
    with pytest.raises(ModelError, match=r"kvstream.json( cannot be used|: must be .*Correct the file)"):
        describe_model(settings_of(folder))


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Qwen2_5_VLForConditionalGeneration, "from_pretrained", lambda *_, **__: pytest.fail("weights were read")
    )
    with pytest.raises(ModelError, match=r"GiB that are free on cpu.*check_memory = false"):
        load_model(settings_of(saved), beside=1 << 50)
    settings = StreamSettings(model=settings_of(saved), memory=MemorySettings(budget_mib=float(1 << 22)))
    with pytest.raises(ModelError, match=r"4096.00 GiB are for the memory"):
        VideoMemory(settings)
    monkeypatch.undo()
    assert load_model(settings_of(saved, check_memory=False), beside=1 << 50).trained


def test_weights_that_are_torn_or_not_safetensors_are_refused(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "copy")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    for open_model in (load_model, describe_model):
        with pytest.raises(ModelError, match="pytorch_model.bin.*only safetensors"):
            open_model(settings_of(folder))
    (folder / "model.safetensors").write_bytes((folder / "pytorch_model.bin").read_bytes()[:5000])
    with pytest.raises(ModelError, match="copy.*could not be loaded"):
        load_model(settings_of(folder))


def test_code_beside_a_checkpoint_runs_only_when_asked_for(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "copy")
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "from transformers import PreTrainedTokenizerFast\n"
        "class Own(PreTrainedTokenizerFast):\n    pass\n"
    )
    file = folder / "tokenizer_config.json"
    own = {**json.loads(file.read_text()), "tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    file.write_text(json.dumps(own))
    try:
        load_model(settings_of(folder))
    except ModelError as error:
        assert "trust_remote_code" in str(error)
    assert not (tmp_path / "ran").exists()
    load_model(settings_of(folder, trust_remote_code=True))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("path", "said"),
    [("/nowhere/at/all", "no such folder"), ("{empty}", "no config.json"), ("{broken}", "cannot be read"),
     ("{foreign}", "family 'bert'.*Supported: .*qwen2_5_vl")],
)  # fmt: skip
def test_what_is_no_model_here_is_named(tmp_path: Path, path: str, said: str) -> None:
    for name, content in {"empty": None, "broken": "{", "foreign": '{"model_type": "bert"}'}.items():
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / "config.json").write_text(content)
    folder = path.format(**{name: tmp_path / name for name in ("empty", "broken", "foreign")})
    with pytest.raises(ModelError, match=said):
        load_model(settings_of(Path(folder)))


@pytest.mark.parametrize("name", sorted(quantization.QUANTIZATIONS))
def test_a_quantization_whose_package_is_missing_gives_the_pip_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    package = name.split("-")[0]
    with pytest.raises(ModelError, match=rf"'{name}'.*{package}.*pip install 'ros_kvstream\[{package}\]'"):
        load_model(ModelSettings(quantization=name, device="cpu"))


def test_a_checkpoint_that_is_quantized_already_is_not_quantized_again(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ros_kvstream.models.loading.require_packages", lambda name: None)
    folder = shutil.copytree(saved, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="already has its weights in 4 bits"):
        load_model(settings_of(folder, quantization="torchao-int8"))


@pytest.mark.parametrize("name", sorted(quantization.QUANTIZATIONS))
def test_quantized_weights_answer_much_as_the_full_ones(name: str) -> None:
    try:
        quantization.require_packages(name)
    except ModelError as error:
        pytest.skip(str(error))
    if name == "torchao-int4" and not torch.cuda.is_available():
        pytest.skip("torchao's 4-bit kernels need a GPU")
    full = load_model(ModelSettings(device="cpu"))
    few = load_model(ModelSettings(device="cpu", quantization=name))
    ids = torch.arange(20, 60)[None]
    with torch.inference_mode():
        expected, found = (model.network(input_ids=ids).logits.float() for model in (full, few))  # type: ignore[attr-defined]
    assert few.shape == full.shape
    assert not torch.equal(expected, found)
    assert torch.nn.functional.cosine_similarity(expected, found, dim=-1).min() > 0.9
