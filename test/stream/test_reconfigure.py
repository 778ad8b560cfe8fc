# SPDX-License-Identifier: Apache-2.0
"""Settings that change on a live stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.arenas import contents, same
from support.tiny_models import qwen2_5_vl

from ros_kvstream.errors import SettingsError
from ros_kvstream.settings import ArchiveSettings, GateSettings, MemorySettings, RetrievalSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

SETTINGS = StreamSettings(
    memory=MemorySettings(budget_mib=0.5, policy="recent", max_question_tokens=16, max_answer_tokens=8),
    gate=GateSettings(mode="off"), archive=ArchiveSettings(budget_mib=0.2), retrieval=RetrievalSettings(top_k=2))


def watched(frames: int) -> VideoMemory:
    memory = VideoMemory(SETTINGS, qwen2_5_vl())
    watch(memory, 0, frames)
    return memory


def watch(memory: VideoMemory, first: int, last: int, seed: int | None = None) -> None:
    for number in range(first, last):
        pixels = np.random.default_rng(number if seed is None else seed).integers(0, 256, (56, 56, 3), dtype=np.uint8)
        memory.observe(pixels, number / 10)


def test_another_policy_is_used_from_the_next_compaction_on() -> None:
    memory = watched(5)
    before = contents(memory.arena)
    memory.reconfigure(replace(SETTINGS, memory=replace(SETTINGS.memory, policy="uniform", keep_ratio=0.5)))
    assert memory.ingest.policy.name == "uniform" and memory.settings.memory.keep_ratio == 0.5
    assert same(before, contents(memory.arena))


def test_the_gate_can_be_switched_on_and_off() -> None:
    memory = watched(1)
    watch(memory, 1, 4, seed=0)
    assert memory.stats().frames_gated == 0
    memory.reconfigure(replace(SETTINGS, gate=GateSettings(mode="flow")))
    watch(memory, 4, 8, seed=0)
    gated = memory.stats().frames_gated
    assert gated > 0
    memory.reconfigure(SETTINGS)
    watch(memory, 8, 12, seed=0)
    assert memory.stats().frames_gated == gated


def test_how_many_frames_are_brought_back_can_change() -> None:
    memory = watched(30)
    memory.reconfigure(replace(SETTINGS, retrieval=RetrievalSettings(top_k=0)))
    assert memory.archive_retrieval is not None and memory.archive_retrieval.searchable is None
    memory.reconfigure(SETTINGS)
    assert memory.archive_retrieval.searchable is not None
    assert memory.ask("what colour is the cone ?", max_new_tokens=2).evidence


def test_what_would_need_another_plan_is_left_as_it_is() -> None:
    memory = watched(3)
    other = replace(SETTINGS, memory=replace(SETTINGS.memory, budget_mib=0.75, block_frames=4, max_answer_tokens=4))
    memory.reconfigure(other)
    assert memory.settings.memory == SETTINGS.memory


def test_a_bad_option_is_refused_and_changes_nothing() -> None:
    memory = watched(3)
    bad = replace(SETTINGS, memory=replace(SETTINGS.memory, policy="tar", policy_settings={"nonsense": 1}))
    for attempt in (memory.check_settings, memory.reconfigure):
        with pytest.raises(SettingsError, match="nonsense"):
            attempt(bad)
    assert memory.settings == SETTINGS and memory.ingest.policy.name == "recent"
