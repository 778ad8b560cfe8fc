# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.models.layout import (
    Layout,
    SequencedGrids,
    TimedGrids,
    TokenSequence,
    patch_coordinates,
    text_coordinates,
)


def frame_places(rows: int, columns: int, before: int, after: int) -> torch.Tensor:
    """All tokens of a frame in the order of the sequence."""
    first, last = text_coordinates(before, after)
    return torch.cat([first, patch_coordinates(rows, columns), last])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 12), st.integers(0, 3))
def test_a_sequence_gives_every_token_the_next_position(rows: int, columns: int, before: int, after: int) -> None:
    layout, coordinates = TokenSequence(), frame_places(rows, columns, before, after)
    positions = layout.frame(100 + before, coordinates, rows, columns)
    assert positions[:, 0].tolist() == list(range(100, 100 + len(coordinates)))
    assert positions[:, 1:].tolist() == coordinates.tolist()
    assert before + layout.span(rows, columns) + after == len(coordinates)
    assert len({tuple(place) for place in coordinates.tolist()}) == len(coordinates)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 12), st.integers(0, 3))
def test_sequenced_grids_count_text_and_take_the_longer_side(rows: int, columns: int, before: int, after: int) -> None:
    layout, coordinates = SequencedGrids(), frame_places(rows, columns, before, after)
    along = layout.frame(100 + before, coordinates, rows, columns)[:, 0].tolist()
    grid = 100 + before
    end = grid + max(rows, columns)
    assert along == [*range(100, grid), *[grid] * (rows * columns), *range(end, end + after)]


def test_timed_grids_stand_at_one_time_with_places_from_the_prompts_end() -> None:
    layout = TimedGrids(7)
    assert layout.frame(40, patch_coordinates(2, 3), 2, 3).tolist() == [[40, 7 + i // 3, 7 + i % 3] for i in range(6)]
    assert layout.text(9, 2).tolist() == [[9, 9, 9], [10, 10, 10]]
    assert layout.after(8, 5) == 12
    assert layout.after(50, 5) == 51


@pytest.mark.parametrize("layout", [TokenSequence(), SequencedGrids()], ids=lambda layout: type(layout).__name__)
def test_text_of_no_frame_is_on_no_grid_and_follows_the_newest(layout: Layout) -> None:
    assert layout.text(9, 2).tolist() == [[9, -1, -1], [10, -1, -1]]
    assert layout.after(50, 99) == 51
