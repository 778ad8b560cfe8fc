# SPDX-License-Identifier: Apache-2.0
"""The thinning benchmark measures what it says: on small random models, no time is asserted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny_models import qwen2_5_vl

from benchmarks.accuracy import budget_for_slots, make_stream
from benchmarks.thinning import (
    GATE,
    NOVEL,
    PLAIN,
    LayerStates,
    attention_errors,
    bag_frames,
    measure_stream,
    memory_states,
    patrol_accuracy,
    patrol_frames,
    slots_ratio,
    text_states,
)
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.settings import MemorySettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory
from ros_kvstream.vision.frame_gate import FrameGate

YARD = Path(__file__).parent.parent / "data" / "yard"


def small(settings: StreamSettings) -> StreamSettings:
    return replace(settings, memory=MemorySettings(budget_mib=1, max_question_tokens=16, max_answer_tokens=8))


def test_still_frames_are_gated_and_frames_of_a_busy_yard_are_not() -> None:
    model = qwen2_5_vl(layers=1)
    still = measure_stream(model, ((np.full((56, 56, 3), 90, np.uint8), 0.5 * i) for i in range(8)), small(GATE))
    assert still["gated"] == 7 / 8 and still["pruned"] == 0
    yard = list(bag_frames(YARD, 6))
    assert [stamp - yard[0][1] for _, stamp in yard] == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])
    assert measure_stream(model, yard, small(GATE))["gated"] == 0


def test_patches_that_did_not_change_are_pruned_on_the_yard() -> None:
    figures = measure_stream(qwen2_5_vl(layers=1, pixels=448 * 336), bag_frames(YARD, 5), small(NOVEL))
    assert figures["gated"] == 0 and 0.2 < figures["pruned"] < 0.9


def test_no_sighting_of_a_patrol_stream_is_gated_away() -> None:
    for seed in range(6):
        world, gate = PatrolWorld(PatrolSettings(seed=seed, frames=96)), FrameGate(GATE.gate)
        kept = [gate.decide(frame.picture, frame.stamp).kept for frame in world]
        assert sum(kept) < 0.6 * len(kept)
        for sighting in world.sightings:
            assert kept[sighting.first], "the first frame with something new in view"
            assert sighting.last + 1 == len(kept) or kept[sighting.last + 1], "the first frame without it"


def test_patrols_follow_each_other_on_one_clock() -> None:
    stamps = [stamp for _, stamp in patrol_frames(5, (1, 2))]
    assert len(stamps) == 10 and stamps == sorted(stamps)


def test_attention_error_grows_with_fewer_bits_and_mixed_precision_copes_best_with_a_common_mean() -> None:
    generator = torch.Generator().manual_seed(1)
    rotary = Rotary(1.0 / (1e4 ** (torch.arange(16).float() / 16)), torch.zeros(16, dtype=torch.long))
    layers = []
    for _ in range(3):
        keys = torch.randn(2, 300, 32, generator=generator) + 4 * torch.randn(2, 1, 32, generator=generator)
        values, queries = torch.randn(2, 300, 32, generator=generator), torch.randn(4, 8, 32, generator=generator)
        at = torch.arange(300, dtype=torch.int32)[None, :, None].expand(2, 300, 3)
        layers.append(LayerStates(queries, keys, values, at, rotary))
    errors = attention_errors(layers)
    for scheme in ("rotated", "unrotated", "mixed_precision"):
        assert errors[scheme]["int8"] < errors[scheme]["int4"] / 4
    assert errors["mixed_precision"]["int4"] < 0.8 * min(errors["rotated"]["int4"], errors["unrotated"]["int4"])


def test_states_of_a_memory_give_its_own_attention_and_leave_it_unchanged() -> None:
    model = qwen2_5_vl(layers=2)
    memory = VideoMemory(small(PLAIN), model)
    for seed in range(6):
        frame = np.random.default_rng(seed).integers(0, 255, (56, 56, 3), dtype=np.uint8)
        memory.observe(frame, 0.5 * seed)
    before = memory.arena.layer(1)[0].clone()
    states = memory_states(memory, "where is the cone ?")
    assert torch.equal(before, memory.arena.layer(1)[0])
    view = memory.arena.frame_slots(1)
    rotated = states[1].rotary.rotate(states[1].raw_keys, states[1].positions)
    assert torch.allclose(rotated, view.keys, atol=1e-4)
    errors = attention_errors(states)
    assert 0 < errors["mixed_precision"]["int8"] < errors["mixed_precision"]["int4"] < 1


def test_accuracy_counts_right_answers_word_for_word() -> None:
    model = qwen2_5_vl(layers=1)
    stream = make_stream(PatrolWorld(PatrolSettings(seed=1, frames=6)), 4)
    assert patrol_accuracy(model, [stream], budget_for_slots(model, 40, 40), PLAIN) == 0.0


def test_states_of_a_text_are_those_of_its_newest_tokens() -> None:
    model = qwen2_5_vl(layers=2)
    states = text_states(model, [5 + index % 20 for index in range(85)])
    assert [tuple(layer.raw_keys.shape[1:2] + layer.queries.shape[1:2]) for layer in states] == [(85, 64)] * 2
    assert all(0 < row["int8"] < row["int4"] for row in list(attention_errors(states).values())[:3])


def test_mixed_precision_holds_1_8_times_the_slots() -> None:
    figures = slots_ratio()
    assert figures["slots_ratio"] >= 1.8
    slots = figures["slots"]
    assert slots["full"] + slots["int8"] + slots["int4"] > 1.8 * slots["plain"]
