"""Kept patches counted from the slot table."""

from __future__ import annotations

import numpy as np
from support.tiny_models import qwen2_5_vl

from ros_kvstream.settings import GateSettings, MemorySettings, QuantizedSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory


def watched(frames: int, **groups) -> VideoMemory:
    settings = StreamSettings(memory=MemorySettings(budget_mib=0.25, policy="tar", max_question_tokens=16,
                                                    max_answer_tokens=8), gate=GateSettings(mode="off"), **groups)
    memory = VideoMemory(settings, qwen2_5_vl())
    for number in range(frames):
        memory.observe(np.random.default_rng(number).integers(0, 256, (56, 84, 3), dtype=np.uint8), number / 2)
    return memory


def test_a_frame_that_is_kept_whole_is_one_everywhere() -> None:
    memory = watched(3)
    rows, columns = memory.model.grid(56, 84)
    kept = memory.kept_patches([0, 2, 77])
    assert set(kept) == {0, 2}
    np.testing.assert_array_equal(kept[2], np.ones((rows, columns), np.float32))


def test_after_compactions_the_shares_add_up_to_the_slots_in_use() -> None:
    for groups in ({}, {"quantized": QuantizedSettings(mode="on", group=16)}):
        memory = watched(200, **groups)
        assert memory.stats().compactions > 0
        kept = memory.kept_patches(range(200))
        assert set(kept) == set(memory.arena.frames_kept())
        total = sum(float(share.sum()) for share in kept.values())
        assert abs(total - memory.arena.frame_slots_used) < 1e-2 and all(share.max() <= 1.0 for share in kept.values())
        assert any(0.0 < share.min() < 1.0 or share.min() == 0.0 for share in kept.values())


def test_an_empty_memory_keeps_nothing() -> None:
    memory = watched(0)
    assert memory.kept_patches([0]) == {}
