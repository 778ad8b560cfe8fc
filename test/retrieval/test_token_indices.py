# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.models.base import FrameTokens
from ros_kvstream.models.layout import patch_coordinates, text_coordinates
from ros_kvstream.retrieval.token_indices import grid_coordinates, token_indices


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 12), st.integers(0, 3), st.integers(0, 4))
def test_places_come_back_from_numbers(rows: int, columns: int, before: int, after: int, spare: int) -> None:
    model = SimpleNamespace(
        frame_text_tokens=before + after + spare, frame_text=lambda seconds: ([0] * before, [0] * after)
    )
    first, last = text_coordinates(before, after)
    coordinates = torch.cat([first, patch_coordinates(rows, columns), last])
    tokens = FrameTokens(torch.zeros(len(coordinates), 1), rows, columns, coordinates, before, after)
    numbers = token_indices(model, tokens)
    assert numbers is not None
    assert len(set(numbers.tolist())) == len(coordinates)
    assert int(numbers.max()) < rows * columns + model.frame_text_tokens
    assert numbers[before : before + rows * columns].tolist() == list(range(rows * columns))
    assert torch.equal(grid_coordinates(model, numbers, rows, columns), coordinates)


def test_a_frame_of_patches_alone_needs_no_numbers() -> None:
    assert token_indices(SimpleNamespace(frame_text_tokens=0), FrameTokens(torch.zeros(4, 1), 2, 2)) is None
