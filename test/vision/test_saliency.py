# SPDX-License-Identifier: Apache-2.0
"""Saliency is absolute and lies exactly on the model's patch grid."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenes import PATCH, with_noise, with_thing

from ros_kvstream.errors import FrameError
from ros_kvstream.settings import GateSettings, SaliencySettings
from ros_kvstream.vision.frame_gate import FrameGate
from ros_kvstream.vision.saliency import novel_patches, saliency_map, salient_patches, write_overlay

PRUNE = SaliencySettings(mode="prune", threshold=5.0, guard=0, max_pruned=1.0)
GREY = np.full((12 * PATCH, 16 * PATCH, 3), 120, np.uint8)


def test_a_plain_wall_has_no_saliency_even_with_noise() -> None:
    assert saliency_map(GREY, 12, 16, GREY.shape[:2]).max() == 0
    assert saliency_map(with_noise(GREY, 4.0, 0), 12, 16, GREY.shape[:2]).max() < 5.0


@given(row=st.integers(0, 11), column=st.integers(0, 15), colour=st.sampled_from([(230, 40, 40), (180, 97, 100)]))
def test_exactly_the_patch_of_a_thing_is_salient_even_of_equal_lightness(
    row: int, column: int, colour: tuple[int, int, int]
) -> None:
    frame = with_thing(GREY, column * PATCH + 8, row * PATCH + 8, 12, 12, colour)
    salient = saliency_map(frame, 12, 16, GREY.shape[:2]) > 5.0
    assert salient[row, column] and salient.sum() == 1


def test_the_models_own_resize_is_followed() -> None:
    """A thing in a 640 x 480 picture, resized to 448 x 336 by the model, 12 x 16 patches of 40 original pixels."""
    frame = with_thing(np.full((480, 640, 3), 90, np.uint8), 9 * 40 + 10, 3 * 40 + 10, 20, 20, (240, 240, 60))
    salient = saliency_map(frame, 12, 16, (336, 448)) > 5.0
    assert salient[3, 9] and salient.sum() == 1


def test_values_do_not_depend_on_the_rest_of_the_frame() -> None:
    one = with_thing(GREY, 4 * PATCH + 8, 4 * PATCH + 8, 10, 10, (160, 120, 120))
    both = with_thing(one, 9 * PATCH, 9 * PATCH, 90, 90, (255, 255, 0))
    maps = [saliency_map(frame, 12, 16, GREY.shape[:2]) for frame in (one, both)]
    assert maps[0][4, 4] == pytest.approx(maps[1][4, 4], abs=1e-5)


def test_guard_patches_surround_the_salient_ones() -> None:
    saliency = np.zeros((7, 9), np.float32)
    saliency[3, 4] = 100
    settings = SaliencySettings(mode="prune", guard=1, max_pruned=1.0)
    kept = salient_patches(saliency, settings)
    assert kept.sum() == 9 and kept[2:5, 3:6].all()


@given(
    rows=st.integers(1, 9), columns=st.integers(1, 9), share=st.floats(0, 1), guard=st.integers(0, 2),
    seed=st.integers(0, 99), threshold=st.floats(0, 30), mode=st.sampled_from(["prune", "novel"]),
)  # fmt: skip
def test_at_least_one_patch_and_the_promised_share_stay(
    rows: int, columns: int, share: float, guard: int, seed: int, threshold: float, mode: str
) -> None:
    random = np.random.default_rng(seed)
    saliency = random.exponential(4.0, (rows, columns)).astype(np.float32)
    changed = random.exponential(1.0, (rows, columns)).astype(np.float32)
    settings = SaliencySettings(mode=mode, threshold=threshold, guard=guard, max_pruned=share)
    kept = salient_patches(saliency, settings, changed)
    assert kept.shape == (rows, columns) and kept.dtype == bool
    assert kept.sum() >= max(1, rows * columns - int(share * rows * columns))
    wanted = changed if mode == "novel" else np.maximum(saliency, changed)
    assert kept[wanted >= threshold].all()
    if not kept.all():
        missing_most = saliency[~kept].max()
        needed = rows * columns - min(int(share * rows * columns), rows * columns - 1)
        brought_back = kept.sum() == needed
        assert brought_back or (wanted[~kept] < threshold).all() or missing_most < threshold


@given(share=st.floats(0, 1), guard=st.integers(0, 2), seed=st.integers(0, 99), threshold=st.floats(0, 6))
def test_novel_needs_the_map_only_to_bring_patches_back(share: float, guard: int, seed: int, threshold: float) -> None:
    random = np.random.default_rng(seed)
    changed = random.exponential(1.0, (6, 8)).astype(np.float32)
    settings = SaliencySettings(mode="novel", threshold=threshold, guard=guard, max_pruned=share)
    alone = novel_patches(changed, settings)
    full = salient_patches(random.exponential(4.0, (6, 8)).astype(np.float32), settings, changed)
    if alone is None:
        assert full.sum() == 48 - min(int(share * 48), 47)
    else:
        assert np.array_equal(alone, full)


@pytest.mark.parametrize("mode", ["off", "novel"])
def test_off_and_novel_without_a_frame_to_compare_with_keep_everything(mode: str) -> None:
    assert salient_patches(np.zeros((3, 3), np.float32), SaliencySettings(mode=mode)).all()


@pytest.mark.parametrize("mode", ["prune", "novel"])
@pytest.mark.parametrize("contrast", [14, 40])
def test_a_thing_of_two_patches_that_crosses_keeps_its_patches(mode: str, contrast: int) -> None:
    """A plain thing before a plain wall: little saliency, so it is the change that keeps it."""
    gate = FrameGate(GateSettings(max_silence=1e6))
    settings = SaliencySettings(mode=mode, guard=1, max_pruned=0.9)
    gate.decide(with_noise(GREY, 3.0, 99), 0.0)
    for step in range(6):
        row, column = 6, 1 + 2 * step
        thing = with_thing(GREY, column * PATCH, row * PATCH, 2 * PATCH, PATCH, (120 + contrast,) * 3)
        frame = with_noise(thing, 3.0, step)
        assert gate.decide(frame, 0.1 * (step + 1)).kept
        kept = salient_patches(saliency_map(frame, 12, 16, GREY.shape[:2]), settings, gate.changed_patches(12, 16))
        assert kept[row, column : column + 2].all()
        assert kept.mean() < 0.5


def test_what_is_no_frame_and_a_size_that_the_grid_does_not_divide_are_refused() -> None:
    with pytest.raises(FrameError, match="must be RGB uint8"):
        saliency_map(np.zeros((8, 8), np.uint8), 1, 1, (28, 28))
    with pytest.raises(FrameError, match="divisible"):
        saliency_map(GREY, 5, 16, (336, 448))


def test_the_overlay_darkens_what_would_be_left_out(tmp_path: Path) -> None:
    frame = with_thing(GREY, 9 * PATCH + 4, 9 * PATCH + 4, 40, 40, (255, 255, 255))
    figures = write_overlay(frame, tmp_path / "out.png", PRUNE, (12, 16), GREY.shape[:2])
    out = cv2.imread(str(tmp_path / "out.png"))
    assert figures["rows"] == 12 and figures["columns"] == 16
    assert figures["kept_share"] == pytest.approx(4 / 192)
    cell = out.shape[0] // 12
    assert out[cell // 3, cell // 3].max() < 40, "a left-out patch is dark"
    assert out[9 * cell + 10, 9 * cell + 30].max() > 200, "a kept patch is not"
    with pytest.raises(FrameError, match="no_folder"):
        write_overlay(frame, tmp_path / "no_folder" / "out.png", PRUNE, (12, 16), GREY.shape[:2])
