"""What is known of a frame's patches finds its tokens, whatever stands between them."""

from __future__ import annotations

import torch

from ros_kvstream.models.base import FrameTokens
from ros_kvstream.models.layout import SEPARATOR, grid_places, text_places


def test_all_patches_in_raster_order_take_their_values_as_they_are() -> None:
    values = torch.arange(6).half()
    assert torch.equal(FrameTokens(torch.zeros(6, 1), 2, 3).of_patches(values), values)


def test_texts_and_separators_take_the_greatest_value_and_left_out_patches_none() -> None:
    first, last = text_places(2, 1)
    grid = grid_places(2, 3)[torch.tensor([1, 2, 3])]
    coordinates = torch.cat([first, grid, torch.tensor([[SEPARATOR, 1]], dtype=torch.int32), last])
    tokens = FrameTokens(torch.zeros(7, 1), 2, 3, coordinates, 2, 1)
    assert tokens.of_patches(torch.tensor([9.0, 1.0, 2.0, 3.0, 4.0, 5.0])).tolist() == [9, 9, 1, 2, 3, 9, 9]
