# SPDX-License-Identifier: Apache-2.0
"""Several cameras in one memory: none pushes another's moments out, and shares can be set and changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.tiny_models import cheap_vision, qwen2_5_vl

from ros_kvstream.errors import SettingsError
from ros_kvstream.settings import GateSettings, MemorySettings, QuantizedSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

MODEL = cheap_vision(qwen2_5_vl())
SLOW_TOKENS = 2
"""Of one frame of the slow camera."""


def make(policy: str = "recent", shares: dict[str, float] | None = None, **groups: Any) -> VideoMemory:
    memory = MemorySettings(budget_mib=0.35, policy=policy, max_question_tokens=16, max_answer_tokens=8,
                            camera_shares=shares or {})  # fmt: skip
    return VideoMemory(StreamSettings(memory=memory, gate=GateSettings(mode="off"), **groups), MODEL)


def watch(memory: VideoMemory, seconds: range, fast: str = "fast", slow: str = "slow", rate: int = 20) -> None:
    """Many fast frames a second, one slow one every two seconds."""
    for second in seconds:
        for tick in range(rate):
            pixels = np.random.default_rng(second * 100 + tick).integers(0, 256, (56, 56, 3), dtype=np.uint8)
            memory.observe(pixels, second + tick / rate, fast)
        if slow and second % 2 == 0:
            pixels = np.random.default_rng(second).integers(0, 256, (56, 84, 3), dtype=np.uint8)
            memory.observe(pixels, second + 0.99, slow)


def held(memory: VideoMemory, camera: str) -> list[float]:
    """Stamps of the frames that the arena holds of a camera."""
    records = [memory.frame_index[frame] for frame in memory.arena.frames_kept()]
    return [record.stamp for record in records if record.camera == camera]


@pytest.mark.parametrize("policy", ["recent", "sliding_window", "infinipot_v", "uniform"])
def test_a_fast_camera_does_not_push_a_slow_ones_memory_out(policy: str) -> None:
    memory = make(policy)
    watch(memory, range(12))
    assert memory.arena.compactions > 2
    assert held(memory, "slow") == [second + 0.99 for second in range(0, 12, 2)]
    assert memory.ask("what is there ?", camera="slow").evidence
    stats = memory.stats()
    assert stats.camera_slots["slow"] == 6 * SLOW_TOKENS and sum(stats.camera_slots.values()) == stats.slots_used


def test_shares_hold_in_a_quantized_arena_too() -> None:
    memory = make(quantized=QuantizedSettings(mode="on", group=16))
    watch(memory, range(24))
    assert memory.arena.compactions > 2 and len(held(memory, "slow")) == 12


def test_a_share_guarantees_and_lends() -> None:
    memory = make(shares={"fast": 0.0, "slow": 0.1})
    watch(memory, range(6))
    whole = memory.arena.plan.frame_slots
    assert memory.stats().camera_slots["slow"] == 3 * SLOW_TOKENS < 0.1 * whole  # lent to the fast one
    assert memory.stats().camera_slots["fast"] > 0.8 * whole
    watch(memory, range(6, 20), fast="slow", slow="fast")  # the other way round: only a tenth is guaranteed to "slow"
    assert memory.stats().camera_slots["slow"] < 0.25 * whole and memory.stats().camera_slots["fast"] > 0.7 * whole


def test_frames_of_a_camera_without_a_share_are_evicted_first() -> None:
    memory = make(shares={"new": 0.0})
    watch(memory, range(8), fast="old", slow="")
    before = memory.stats().camera_slots["old"]
    watch(memory, range(8, 16), fast="new", slow="")
    assert before > 0.8 * memory.arena.plan.frame_slots and held(memory, "old") == []


def test_shares_can_be_changed_on_the_live_stream() -> None:
    memory = make()
    watch(memory, range(8), slow="")
    watch(memory, range(8, 16), fast="other", slow="")
    equal = memory.stats().camera_slots
    assert abs(equal["fast"] - equal["other"]) < 0.2 * memory.arena.plan.frame_slots
    settings = memory.settings
    memory.reconfigure(replace(settings, memory=replace(settings.memory, camera_shares={"fast": 0.1, "other": 0.9})))
    watch(memory, range(16, 20), fast="other", slow="")
    assert memory.stats().camera_slots["fast"] < 0.2 * memory.arena.plan.frame_slots


@pytest.mark.parametrize(("shares", "reason"), [
    ({"a": 0.6, "b": 0.5}, "shares of all cameras together = 1.1: must be at most 1"),
    ({"a": -0.1}, "a.share"), ({"a": float("nan")}, "a.share"), ({"a": 1.5}, "a.share"),
])
def test_shares_that_make_no_sense_are_refused(shares: dict[str, float], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        MemorySettings(camera_shares=shares)


def test_shares_survive_a_lower_budget() -> None:
    memory = make()
    watch(memory, range(12))
    memory.set_budget(0.28)
    assert len(held(memory, "slow")) == 6
