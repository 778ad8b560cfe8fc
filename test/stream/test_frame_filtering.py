# SPDX-License-Identifier: Apache-2.0
"""The stream with frame gate, saliency and mixed precision: what is left out, and what is still known of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.scenes import PATCH, scene, with_noise, with_thing
from support.tiny_models import cheap_vision, qwen2_5_vl

from ros_kvstream.errors import FrameError
from ros_kvstream.models.qwen2_5_vl import Qwen25VL
from ros_kvstream.settings import (
    GateSettings,
    MemorySettings,
    QuantizedSettings,
    SaliencySettings,
    StreamSettings,
)
from ros_kvstream.stream.memory import VideoMemory

QUESTION = "what colour is the cone ?"
OFF = GateSettings(mode="off")


def picture(seed: int, height: int = 112, width: int = 112) -> np.ndarray:
    """Soft random blots; 4 x 4 visual tokens."""
    small = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    return np.ascontiguousarray(np.kron(small, np.ones((height // 8, width // 8, 1), np.uint8)))


def half_plain(seed: int) -> np.ndarray:
    """The lower half without any structure."""
    frame = picture(seed)
    frame[56:] = 120
    return frame


def memory_of(
    model: Qwen25VL | None = None, budget_mib: float = 0.5, policy: str = "infinipot_v", **parts: object
) -> VideoMemory:
    memory = MemorySettings(budget_mib=budget_mib, policy=policy, max_question_tokens=16, max_answer_tokens=8)
    model = model or cheap_vision(qwen2_5_vl(pixels=112 * 112))
    return VideoMemory(StreamSettings(memory=memory, **parts), model)  # type: ignore[arg-type]


def test_a_gated_frame_costs_no_computation_and_lengthens_the_span_of_the_last_kept_one() -> None:
    memory = memory_of()
    seen = []
    encode = memory.model.encode_frames
    memory.model.encode_frames = lambda frames: (seen.append(len(frames)), encode(frames))[1]  # type: ignore
    found = [memory.observe(picture(seed), stamp) for seed, stamp in ((1, 0.0), (1, 0.5), (1, 1.0), (2, 1.5))]
    assert [observation.kept for observation in found] == [True, False, False, True]
    assert [observation.frame_id for observation in found] == [0, 0, 0, 1]
    assert found[1].tokens == 0 and sum(seen) == 2
    stats = memory.stats()
    assert (stats.frames_seen, stats.frames_kept, stats.frames_gated) == (4, 2, 2)
    evidence = {item.frame_id: item for item in memory.ask(QUESTION).evidence}
    assert evidence[0].stamp == 0.0 and evidence[0].stamp_end == 1.0


def test_now_is_the_newest_frame_seen_also_when_it_was_gated() -> None:
    memory = memory_of()
    for stamp in (0.0, 0.5, 1.0):
        memory.observe(picture(1), stamp)
    assert memory.ask(QUESTION).asked_at == 1.0
    assert memory.stats().newest_stamp == 1.0


def test_a_frame_passes_again_once_what_it_repeats_has_been_evicted() -> None:
    settings = MemorySettings(0.12, "sliding_window", max_question_tokens=16, max_answer_tokens=8,
                              camera_shares={"busy": 1.0})  # fmt: skip
    memory = VideoMemory(StreamSettings(memory=settings), cheap_vision(qwen2_5_vl(pixels=112 * 112)))
    memory.observe(picture(1), 0.0, "still")
    step = 0
    while 0 in memory.frame_index:
        step += 1
        assert step < 500
        memory.observe(picture(100 + step), 0.01 * step, "busy")
    assert memory.observe(picture(1), 4.0, "still").kept


def test_a_failed_prefill_does_not_hide_the_next_frame() -> None:
    memory = memory_of()
    memory.observe(picture(1), 0.0)
    forward, memory.model.forward = memory.model.forward, lambda *args, **kwargs: 1 / 0  # type: ignore
    with pytest.raises(ZeroDivisionError):
        memory.observe(picture(2), 0.5)
    memory.model.forward = forward  # type: ignore[method-assign]
    assert memory.observe(picture(2), 1.0).kept
    assert memory.stats().frames_seen == 2


def test_a_frame_that_is_refused_leaves_the_gate_as_it_was() -> None:
    memory = memory_of()
    memory.observe(picture(1), 0.0)
    with pytest.raises(FrameError):
        memory.observe(picture(2), float("nan"))
    assert not memory.observe(picture(1), 0.5).kept


def test_clear_lets_the_next_frame_pass() -> None:
    memory = memory_of()
    memory.observe(picture(1), 0.0)
    memory.clear()
    assert memory.observe(picture(1), 0.1).kept


def test_gated_frames_of_a_block_that_waits_are_folded_into_it() -> None:
    memory = VideoMemory(
        StreamSettings(memory=MemorySettings(budget_mib=0.5, block_frames=4, max_question_tokens=16)),
        cheap_vision(qwen2_5_vl(pixels=112 * 112)),
    )
    for stamp in (0.0, 0.5, 1.0):
        memory.observe(picture(1), stamp)
    evidence = memory.ask(QUESTION).evidence
    assert [(item.stamp, item.stamp_end) for item in evidence] == [(0.0, 1.0)]


def test_pruned_patches_are_left_out_and_the_others_keep_their_true_positions() -> None:
    saliency = SaliencySettings(mode="prune", guard=0, max_pruned=1.0)
    memory = memory_of(gate=OFF, saliency=saliency)
    whole = memory_of(memory.model, gate=OFF)
    found = [memory.observe(half_plain(seed), 0.5 * seed) for seed in range(3)]
    for seed in range(3):
        whole.observe(half_plain(seed), 0.5 * seed)
    assert 0 < found[0].tokens < 16
    kept_patches = sum(observation.tokens for observation in found)
    assert (memory.stats().patches_kept, memory.stats().patches_pruned) == (kept_patches, 3 * 16 - kept_patches)
    assert (whole.stats().patches_kept, whole.stats().patches_pruned) == (3 * 16, 0)
    for index in range(memory.model.shape.layers):
        ours, theirs = memory.arena.frame_slots(index), whole.arena.frame_slots(index)
        kept = {tuple(place) for place in ours.positions[0].tolist()}
        assert len(kept) == sum(observation.tokens for observation in found)
        assert kept <= {tuple(place) for place in theirs.positions[0].tolist()}
    first_row = len(memory.model.prefix_ids)
    assert {place[1] - first_row for place in memory.arena.frame_slots(0).positions[0].tolist()} <= {0, 1, 2}


def test_pruned_attention_equals_that_of_the_kept_tokens_alone() -> None:
    """First layer, where keys do not depend on other tokens: ragged frames hold just the kept ones."""
    memory = memory_of(gate=OFF, saliency=SaliencySettings(mode="prune", guard=0, max_pruned=1.0))
    whole = memory_of(memory.model, gate=OFF)
    memory.observe(half_plain(1), 0.0)
    whole.observe(half_plain(1), 0.0)
    ours, theirs = memory.arena.frame_slots(0), whole.arena.frame_slots(0)
    rows = [theirs.positions[0].tolist().index(place) for place in ours.positions[0].tolist()]
    assert torch.allclose(ours.keys, theirs.keys[:, rows], atol=1e-5)
    assert torch.allclose(ours.values, theirs.values[:, rows], atol=1e-5)


@pytest.mark.parametrize("policy", ["infinipot_v", "tar", "van", "aks", "uniform", "sliding_window", "recent"])
@pytest.mark.parametrize("quantized", ["off", "on"])
def test_ragged_frames_go_through_every_policy_and_compaction(policy: str, quantized: str) -> None:
    model = cheap_vision(qwen2_5_vl(pixels=112 * 112))
    memory = VideoMemory(
        StreamSettings(
            memory=MemorySettings(budget_mib=0.25, policy=policy, max_question_tokens=16, max_answer_tokens=8),
            saliency=SaliencySettings(mode="prune", guard=0, max_pruned=0.9),
            quantized=QuantizedSettings(mode=quantized),
        ),
        model,
    )
    for seed in range(60):
        memory.observe(half_plain(seed) if seed % 3 else picture(seed), 0.5 * seed)
    stats = memory.stats()
    assert stats.compactions > 0 and stats.allocated_bytes <= stats.budget_bytes
    assert memory.ask(QUESTION).evidence


def test_a_quantized_arena_remembers_more_frames_in_the_same_bytes_and_rolls_back() -> None:
    model = cheap_vision(
        qwen2_5_vl(layers=8, pixels=112 * 112, head_dim=64, sections=(16, 8, 8), dtype=torch.bfloat16)
    )
    plain = memory_of(model, 2.0, "sliding_window", gate=OFF)
    quantized = memory_of(model, 2.0, "sliding_window", gate=OFF, quantized=QuantizedSettings(mode="on"))
    assert quantized.arena.plan.quantized
    for seed in range(40):
        for memory in (plain, quantized):
            memory.observe(picture(seed), 0.5 * seed)
    ours, theirs = quantized.stats(), plain.stats()
    assert ours.allocated_bytes <= ours.budget_bytes == theirs.budget_bytes
    assert ours.slots > 1.4 * theirs.slots, "of eight layers one is decoded in the scratch"
    assert ours.frames_remembered > theirs.frames_remembered
    first = quantized.ask(QUESTION)
    assert quantized.ask(QUESTION).text == first.text
    assert quantized.stats().used_bytes == ours.used_bytes


@pytest.mark.parametrize("mode", ["off", "prune", "novel"])
def test_a_thing_of_two_patches_that_crosses_for_half_a_second_is_remembered_patch_by_patch(mode: str) -> None:
    """10 Hz, noise of 4 grey levels, default gate; 16 x 12 visual tokens."""
    model = cheap_vision(qwen2_5_vl(pixels=448 * 336))
    memory = memory_of(model, 16.0, saliency=SaliencySettings(mode=mode, max_pruned=0.9))
    memory.observe(with_noise(scene(5), 4.0, 99), 0.0)
    for step in range(1, 7):
        column, row = 2 * step, 6
        frame = with_thing(scene(5), column * PATCH, row * PATCH, 2 * PATCH, PATCH, (150, 150, 140))
        seen = memory.observe(with_noise(frame, 4.0, step), 0.1 * step)
        assert seen.kept
        for index in range(model.shape.layers):
            view = memory.arena.frame_slots(index)
            coordinates = view.positions[0][view.frames[0] == seen.frame_id][:, 1:] - model.layout.origin
            assert {(row, column), (row, column + 1)} <= {tuple(place) for place in coordinates.tolist()}
    assert memory.stats().frames_gated == 0 and memory.stats().compactions == 0


def test_the_budget_of_a_quantized_arena_can_be_lowered_and_raised_while_it_runs() -> None:
    memory = memory_of(budget_mib=0.5, gate=OFF, quantized=QuantizedSettings(mode="on"))
    for seed in range(40):
        memory.observe(picture(seed), 0.5 * seed)
    for budget in (0.3, 0.6):
        memory.set_budget(budget)
        stats = memory.stats()
        assert stats.allocated_bytes <= stats.budget_bytes == int(budget * 2**20)
        memory.observe(picture(1000 + int(10 * budget)), 100 * budget)
        assert memory.ask(QUESTION).evidence
