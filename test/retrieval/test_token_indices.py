from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.models.base import FrameTokens
from ros_kvstream.models.layout import SEPARATOR, grid_places, text_places
from ros_kvstream.retrieval.token_indices import cell_numbers, cell_places


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 12), st.integers(0, 3), st.booleans(), st.integers(0, 4))
def test_places_come_back_from_numbers(
    rows: int, columns: int, before: int, after: int, separators: bool, spare: int
) -> None:
    model = SimpleNamespace(
        frame_text_room=before + after + spare, frame_text=lambda seconds: ([0] * before, [0] * after)
    )
    first, last = text_places(before, after)
    ends = torch.tensor([[SEPARATOR, row] for row in range(rows * separators)], dtype=torch.int32).view(-1, 2)
    places = torch.cat([first, grid_places(rows, columns), ends, last])
    tokens = FrameTokens(torch.zeros(len(places), 1), rows, columns, places, before, after)
    numbers = cell_numbers(model, tokens)
    assert numbers is not None
    assert len(set(numbers.tolist())) == len(places)
    assert int(numbers.max()) < rows * columns + model.frame_text_room + rows * separators
    assert numbers[before : before + rows * columns].tolist() == list(range(rows * columns))
    assert torch.equal(cell_places(model, numbers, rows, columns), places)


def test_a_frame_of_patches_alone_needs_no_numbers() -> None:
    assert cell_numbers(SimpleNamespace(frame_text_room=0), FrameTokens(torch.zeros(4, 1), 2, 2)) is None
