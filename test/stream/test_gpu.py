# SPDX-License-Identifier: Apache-2.0
"""The whole memory on a CUDA device, beside the same on the CPU: `make test-gpu` where there is one.

`KVSTREAM_TEST_DEVICE=cpu` runs it against the CPU itself, which tests these tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.arenas import contents, same
from support.family_checks import QUESTION, feed, frames_of, question_logits, stream_of
from support.model_folders import save_random_model

from ros_kvstream.memory.policies import policy_names
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.loading import load_model
from ros_kvstream.settings import ArchiveSettings, ModelSettings, QuantizedSettings, RetrievalSettings
from ros_kvstream.stream.memory import VideoMemory

DEVICE = os.environ.get("KVSTREAM_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE.startswith("cuda") and not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, VideoLanguageModel]:
    """One random model in float32, on the device and on the CPU."""
    folder = str(save_random_model(tmp_path_factory.mktemp("model")))
    devices = {"device": DEVICE, "cpu": "cpu"}
    return {
        name: load_model(ModelSettings(path=folder, device=place, dtype="float32")) for name, place in devices.items()
    }


def fed(model: VideoLanguageModel, frames: int = 120, *, budget_mib: float = 0.2, **options: Any) -> VideoMemory:
    """A memory after so many pictures of noise."""
    memory = stream_of(model, budget_mib, **{"policy": "infinipot_v", **options})
    feed(memory, frames_of(0, frames), [index / 2 for index in range(frames)])
    return memory


def test_everything_lies_on_the_device(models: dict[str, VideoLanguageModel]) -> None:
    memory = fed(models["device"], 4)
    wanted = torch.device(DEVICE).type
    assert models["device"].device.type == wanted
    assert {tensor.device.type for tensor in contents(memory.arena)} == {wanted}
    assert (memory.stats().device_bytes > 0) == (wanted == "cuda")


@pytest.mark.parametrize("block_frames", [1, 3])
def test_a_stream_gives_the_logits_of_the_cpu(models: dict[str, VideoLanguageModel], block_frames: int) -> None:
    made = [fed(model, 9, budget_mib=4.0, policy="full", block_frames=block_frames) for model in models.values()]
    ours, theirs = (question_logits(memory).cpu() for memory in made)
    assert (ours - theirs).abs().max() < 1e-3 * theirs.abs().max()


@pytest.mark.parametrize("policy", [name for name in policy_names() if name != "full"])
def test_every_policy_keeps_its_cap_and_what_the_cpu_keeps(models: dict[str, VideoLanguageModel], policy: str) -> None:
    ours, theirs = (fed(model, policy=policy) for model in models.values())
    stats = ours.stats()
    assert stats.compactions > 0 and stats.peak_bytes <= stats.allocated_bytes <= stats.budget_bytes
    kept, expected = ours.arena.frames_kept(), theirs.arena.frames_kept()
    shared = sum(min(kept.get(frame, 0.0), slots) for frame, slots in expected.items())
    assert shared > 0.9 * sum(expected.values()), "scores differ by rounding only"


def test_an_answer_leaves_no_trace(models: dict[str, VideoLanguageModel]) -> None:
    memory = fed(models["device"])
    before = contents(memory.arena)
    first, second = memory.ask(QUESTION), memory.ask(QUESTION)
    assert same(before, contents(memory.arena)) and first.text == second.text and first.evidence


def test_filters_hide_frames(models: dict[str, VideoLanguageModel]) -> None:
    answer = fed(models["device"], policy="sliding_window").ask(QUESTION, since=50.0, camera="camera")
    assert answer.evidence and all(evidence.stamp >= 50.0 for evidence in answer.evidence)


@pytest.mark.parametrize("order", ["policy", "recent"])
def test_a_quantized_arena_answers(models: dict[str, VideoLanguageModel], order: str) -> None:
    memory = fed(models["device"], quantized=QuantizedSettings(mode="on", order=order))
    stats = memory.stats()
    assert stats.compactions > 0 and stats.peak_bytes <= stats.budget_bytes
    assert memory.ask(QUESTION).text


def test_frames_come_back_from_the_archive(models: dict[str, VideoLanguageModel]) -> None:
    options: dict[str, Any] = {
        "policy": "sliding_window", "archive": ArchiveSettings(budget_mib=8.0, keep_ratio=1.0),
        "retrieval": RetrievalSettings(top_k=3, moment_gap_seconds=0.1, external_weight=0.0),
    }  # fmt: skip
    found = []
    for model in models.values():
        evidence = fed(model, budget_mib=0.5, **options).ask(QUESTION).evidence
        found.append({frame.frame_id for frame in evidence if frame.ranks})
    assert found[0] and len(found[0] & found[1]) >= 2, "scores differ by rounding only"


@pytest.mark.parametrize(("written", "read"), [("device", "cpu"), ("cpu", "device")])
def test_a_saved_memory_goes_on_elsewhere(
    models: dict[str, VideoLanguageModel], written: str, read: str, tmp_path: Path
) -> None:
    memory, other = fed(models[written]), fed(models[read], 1)
    memory.save(tmp_path / "memory")
    other.load(tmp_path / "memory")
    assert same([tensor.cpu() for tensor in contents(memory.arena)], [tensor.cpu() for tensor in contents(other.arena)])
    assert other.ask(QUESTION).text == memory.ask(QUESTION).text


def test_pairs_and_patches_that_are_left_out_work_too(models: dict[str, VideoLanguageModel]) -> None:
    memory = fed(models["device"], frames_per_grid=2)
    kept = memory.kept_patches(memory.arena.frames_kept())
    assert kept and all(np.isfinite(patches).all() for patches in kept.values())
    tokens = models["device"].encode_frames(frames_of(1, 1))[0]
    half = torch.arange(len(tokens.embeddings)) % 2 == 0
    assert len(models["device"].complete(tokens, 0.0, half).embeddings) == int(half.sum())


def test_the_ingest_benchmark_measures_both_paths() -> None:
    from benchmarks.ingest import IngestShape, make_network, time_language, time_vision

    shape = IngestShape(layers=1, blocks=2, slots=(288,), repeats=1, dtype=torch.float32, device=DEVICE)
    network = make_network(shape)
    pairs = [time_vision(network, shape), *time_language(network, shape, 288).values()]
    for pair in pairs:
        assert pair.difference < 1e-2 and pair.plain_ms > 0 < pair.ours_ms
