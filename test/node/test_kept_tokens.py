# SPDX-License-Identifier: Apache-2.0
"""What ~/kept_tokens shows: kept patches bright, evicted ones dark, moments spread over time."""

from __future__ import annotations

import numpy as np

from ros_kvstream.node.kept_tokens import DARK, TILES, WIDTH, draw, evenly_spaced, light

WHITE = np.full((120, 160, 3), 200, np.uint8)


def test_a_patch_is_as_bright_as_it_is_kept() -> None:
    shares = np.array([[1.0, 0.0], [0.5, 1.0]], np.float32)
    lit = light(WHITE, shares)
    assert (lit[:60, :80] == 200).all() and (lit[60:, 80:] == 200).all()
    assert (lit[:60, 80:] == int(200 * DARK)).all()
    assert (lit[60:, :80] == int(200 * (DARK + (1 - DARK) / 2))).all()


def test_a_frame_of_which_nothing_is_kept_is_dark() -> None:
    assert (light(WHITE, None) == int(200 * DARK)).all()


def test_the_picture_has_the_frame_above_and_the_moments_below_in_order() -> None:
    ones = np.ones((3, 4), np.float32)
    tiles = [(np.full((45, WIDTH // TILES, 3), value, np.uint8), ones) for value in (10, 20, 30)]
    picture = draw(WHITE, ones, tiles)
    assert picture.shape == (360 + 45, WIDTH, 3)
    assert (picture[:360] == 200).all()
    strip = picture[360:]
    assert [int(strip[0, index * (WIDTH // TILES), 0]) for index in range(4)] == [10, 20, 30, 0]


def test_without_moments_there_is_no_strip() -> None:
    assert draw(WHITE, None, []).shape == (360, WIDTH, 3)


def test_moments_are_spread_from_the_oldest_to_the_newest() -> None:
    moments = {number: object() for number in reversed(range(100))}
    chosen = [number for number, _ in evenly_spaced(moments, 8)]
    assert chosen[0] == 0 and chosen[-1] == 99 and len(chosen) == 8
    gaps = np.diff(chosen)
    assert gaps.min() >= 14 and gaps.max() <= 15
    assert [number for number, _ in evenly_spaced({3: object(), 1: object()}, 8)] == [1, 3]
