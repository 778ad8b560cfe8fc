# SPDX-License-Identifier: Apache-2.0
"""A frame is reduced in few steps, and no step is made that a decision does not need."""

from __future__ import annotations

import numpy as np
import pytest
from support.scenes import PATCH, scene, shifted, with_noise, with_thing

from ros_kvstream.vision.change import Comparison, block_means
from ros_kvstream.vision.small_frame import COARSE, SmallFrame, coarse, medians


@pytest.mark.parametrize("size", [(336, 448), (120, 160), (480, 640), (200, 300), (72, 80)])
def test_coarse_means_are_those_of_the_small_picture(size: tuple[int, int]) -> None:
    small = SmallFrame(with_noise(scene(1, *size), 3.0, 0), 160)
    there, direct = coarse(small.colour).astype(int), small.coarse.astype(int)
    assert there.shape == direct.shape == (small.size[1] // COARSE, small.size[0] // COARSE, 3)
    assert np.abs(there - direct).mean() < 0.6


def test_a_smaller_frame_keeps_its_pixels_and_the_callers_are_not_shared() -> None:
    frame = scene(2, 72, 80)
    small = SmallFrame(frame, 160)
    assert np.array_equal(small.colour, frame) and small.scale == (1.0, 1.0)
    assert not np.may_share_memory(small.colour, frame)


def test_an_obvious_change_is_found_on_the_coarse_picture_alone() -> None:
    reference = SmallFrame(scene(3), 160)
    new = SmallFrame(with_thing(scene(3), 100, 100, 2 * PATCH, PATCH, (255, 0, 0)), 160)
    change = Comparison(reference, new).change(8, 3.0, 8.0, lambda *_: pytest.fail("no flow is needed"))
    assert change.beyond and change.residual > 3.0
    assert "colour" not in vars(reference) and "noise" not in vars(new)


@pytest.mark.parametrize("right", [0.0, 1.0, 4.0, 12.0])
def test_what_no_allowed_motion_explains_has_also_changed(right: float) -> None:
    """So it does not matter which of the two is looked at first."""
    pair = Comparison(
        SmallFrame(with_noise(scene(4), 3.0, 0), 160), SmallFrame(with_noise(shifted(scene(4), right), 3.0, 1), 160)
    )
    blocks = float(block_means(pair.changed, 8).max())
    beyond = [pair.excess_beyond(reach, 8) for reach in (0, 1, 3, 7)]
    assert beyond == sorted(beyond, reverse=True)
    assert beyond[0] == blocks


def test_medians_lie_between_whole_numbers_as_their_values_do() -> None:
    values = np.zeros((10, 10, 3), np.uint8)
    values[..., 1], values[:4, :, 2] = 7, 255
    assert medians(values) == pytest.approx([0.0, 7.0, 50 / 60 - 0.5])
    random = np.random.default_rng(0).integers(0, 200, (101, 101, 3), dtype=np.uint8)
    assert medians(random) == pytest.approx(np.median(random.reshape(-1, 3), axis=0), abs=0.5)


@pytest.mark.parametrize("deviation", [1.0, 4.0, 12.0])
def test_noise_is_told_from_one_picture(deviation: float) -> None:
    noisy = with_noise(np.full((120, 160, 3), 120), deviation, 5)
    assert SmallFrame(noisy, 160).noise == pytest.approx([deviation] * 3, rel=0.15)
