# SPDX-License-Identifier: Apache-2.0
"""Which frames share a temporal grid, and what a stream of pairs counts, keeps and loses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_models import cheap_vision, qwen2_5_vl

from ros_kvstream.errors import SettingsError
from ros_kvstream.settings import GateSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.frame_block import LONGEST_PAIR_SECONDS, FrameBlock, PendingGrid
from ros_kvstream.stream.memory import VideoMemory

SIZE = (56, 84)


def waiting(frame_id: int, camera: str = "a", grid: tuple[int, int] = (2, 3), stamp: float = 0.0) -> PendingGrid:
    picture = np.zeros((*SIZE, 3), dtype=np.uint8)
    return PendingGrid(frame_id, camera, grid, stamp, (picture,), (stamp,), None)


def memory_of(*, gate: str = "off", **options: Any) -> VideoMemory:
    values: dict[str, Any] = {"budget_mib": 2.0, "frames_per_grid": 2, "max_question_tokens": 16, **options}
    settings = StreamSettings(memory=MemorySettings(**values), gate=GateSettings(mode=gate))
    return VideoMemory(settings, qwen2_5_vl(layers=2, pixels=SIZE[0] * SIZE[1]))


def picture(seed: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)


# -- the block ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("camera", "grid", "stamp", "found"),
    [
        ("a", (2, 3), 10.0, True), ("a", (2, 3), 10.0 + LONGEST_PAIR_SECONDS, True), ("b", (2, 3), 10.5, False),
        ("a", (3, 2), 10.5, False), ("a", (2, 3), 10.1 + LONGEST_PAIR_SECONDS, False), ("a", (2, 3), 9.9, False),
    ],
)  # fmt: skip
def test_a_frame_joins_one_of_its_camera_and_size_that_came_shortly_before(
    camera: str, grid: tuple[int, int], stamp: float, found: bool
) -> None:
    block = FrameBlock(4, 2)
    block.add(waiting(0, stamp=10.0))
    assert (block.partner(camera, grid, stamp) is not None) == found


def test_a_frame_joins_the_newest_of_its_camera_or_none() -> None:
    block = FrameBlock(4, 2)
    block.add(waiting(0))
    block.add(waiting(1, grid=(3, 2)))
    assert block.partner("a", (2, 3), 0.5) is None, "a grid must not hold frames around another one"


def test_with_one_frame_a_grid_nothing_joins_and_the_block_is_full_at_its_limit() -> None:
    block = FrameBlock(2, 1)
    block.add(waiting(0))
    assert block.partner("a", (2, 3), 0.0) is None and not block.full
    block.add(waiting(1))
    assert block.full


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.0, 0.9)), max_size=40), st.integers(1, 4))
def test_no_frame_is_lost_or_doubled_and_no_grid_holds_more_than_two(
    arrivals: list[tuple[str, float]], limit: int
) -> None:
    block, given_out, stamp = FrameBlock(limit, 2), 0, 0.0
    for number, (camera, pause) in enumerate(arrivals):
        stamp += pause
        partner = block.partner(camera, (2, 3), stamp)
        if partner is None:
            if block.crowded:
                given_out += block.frames
                block.clear()
            block.add(waiting(number, camera, stamp=stamp))
        else:
            partner.join(partner.frames[0], stamp, None)
        assert len(block) <= limit
        assert all(len(grid.frames) <= 2 and grid.seconds == tuple(sorted(grid.seconds)) for grid in block)
        if block.full:
            assert block.frames == 2 * limit
            given_out += block.frames
            block.clear()
    assert given_out + block.frames == len(arrivals)


def test_a_patch_of_a_pair_is_prefilled_where_either_frame_wants_it() -> None:
    grid = waiting(0)
    grid.kept = torch.tensor([True, False, False])
    grid.join(grid.frames[0], 1.0, torch.tensor([False, False, True]))
    assert grid.kept.tolist() == [True, False, True]
    assert grid.mean_seconds == 0.5
    whole = waiting(0)
    whole.join(whole.frames[0], 1.0, torch.tensor([False]))
    assert whole.kept is None


@pytest.mark.parametrize("value", [0, 3, -1])
def test_other_numbers_of_frames_a_grid_are_refused(value: int) -> None:
    with pytest.raises(SettingsError, match=r"memory.frames_per_grid"):
        MemorySettings(frames_per_grid=value)


# -- a stream of pairs -------------------------------------------------------------------------------------------------


def test_two_cameras_pair_side_by_side_when_the_block_has_a_grid_for_each() -> None:
    memory = memory_of(block_frames=2)
    for index in range(8):
        memory.observe(picture(index), index / 10, "ab"[index % 2])
    assert sorted(memory.arena.frames_kept()) == [0, 1, 2, 3]
    assert [memory.frame_index[number].camera for number in range(4)] == ["a", "b", "a", "b"]
    assert [memory.frame_index[number].stamp_end for number in range(4)] == [0.2, 0.3, 0.6, 0.7]


def test_a_frame_that_finds_no_room_sends_the_waiting_ones_ahead_alone() -> None:
    memory = memory_of(block_frames=1)
    for index in range(4):
        memory.observe(picture(index), index / 10, "ab"[index % 2])
    stats = memory.stats()
    assert stats.frames_kept == 4 and stats.frames_remembered == 3, "the fourth still waits"
    memory.ask("what is it ?")
    assert memory.stats().frames_remembered == 4


def test_a_question_sees_the_first_frame_of_a_pair() -> None:
    memory = memory_of()
    memory.observe(picture(0), 1.0)
    answer = memory.ask("what is it ?")
    assert [evidence.stamp for evidence in answer.evidence] == [1.0]
    memory.observe(picture(1), 1.5)
    assert memory.stats().frames_remembered == 1, "what was flushed for a question is not joined any more"


def test_a_pair_whose_prefill_fails_is_taken_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of()
    for index in range(2):
        memory.observe(picture(index), float(index))
    memory.observe(picture(2), 2.0)
    with monkeypatch.context() as patch:
        patch.setattr(memory.model, "encode_pairs", lambda pairs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            memory.observe(picture(3), 3.0)
    assert (memory.stats().frames_seen, memory.stats().frames_remembered) == (2, 1)
    for index in (4, 5):
        memory.observe(picture(index), float(index))
    assert (memory.stats().frames_seen, memory.stats().frames_remembered) == (4, 2)


def test_a_frame_in_whose_stead_a_block_failed_is_no_reference_for_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of(gate="flow")
    memory.observe(picture(0), 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(memory.model, "encode_frames", lambda frames: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            memory.observe(picture(1), 60.0)  # too late to join: the first is sent ahead, and lost
    again = memory.observe(picture(1), 60.1)
    assert again.kept, "it was never remembered, so it must not be folded into anything"


def test_redundant_frames_extend_the_pair_they_are_like() -> None:
    memory = memory_of(gate="flow")
    for index, seed in enumerate([0, 0, 0, 1, 1]):
        memory.observe(picture(seed), index / 10)
    stats = memory.stats()
    assert (stats.frames_seen, stats.frames_kept, stats.frames_gated, stats.frames_remembered) == (5, 2, 3, 1)
    assert memory.frame_index[0].stamp_end == 0.4


def test_pairs_keep_the_budget_over_a_long_stream_of_two_cameras_and_sizes() -> None:
    memory = memory_of(block_frames=2, budget_mib=0.2)
    cheap_vision(memory.model)  # type: ignore[arg-type]
    memory.model.encode_pairs = lambda pairs: memory.model.encode_frames([pair[1] for pair in pairs])  # type: ignore
    for index in range(300):
        size = SIZE if index % 3 else (84, 56)
        memory.observe(picture(index, size), index / 7, "ab"[index % 2])
    stats = memory.stats()
    assert stats.compactions > 3 and stats.peak_bytes <= stats.allocated_bytes <= stats.budget_bytes
    assert stats.frames_seen == stats.frames_kept == 300
