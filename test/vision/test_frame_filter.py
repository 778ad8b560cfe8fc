# SPDX-License-Identifier: Apache-2.0
"""Gate and saliency of several cameras together."""

from __future__ import annotations

import numpy as np
from support.scenes import PATCH, scene, with_noise, with_thing

from ros_kvstream.settings import GateSettings, SaliencySettings
from ros_kvstream.vision.frame_filter import FrameFilter

GRID, SIZE = (12, 16), (336, 448)


def test_each_camera_is_compared_with_itself_only() -> None:
    frame_filter = FrameFilter(GateSettings(), SaliencySettings())
    seen = [("left", scene(1)), ("right", scene(2)), ("left", scene(1)), ("right", scene(2))]
    kept = [frame_filter.decide(frame, 0.1 * i, camera).kept for i, (camera, frame) in enumerate(seen)]
    assert kept == [True, True, False, False]


def test_forget_lets_one_camera_pass_and_reset_all() -> None:
    frame_filter = FrameFilter(GateSettings(), SaliencySettings())
    for camera in ("left", "right"):
        frame_filter.decide(scene(1), 0.0, camera)
        assert frame_filter.patches(scene(1), 0.0, camera, GRID, SIZE) is None, "saliency is off"
    frame_filter.forget("left")
    assert [frame_filter.decide(scene(1), 0.1, camera).kept for camera in ("left", "right")] == [True, False]
    frame_filter.reset()
    assert [frame_filter.decide(scene(1), 0.2, camera).kept for camera in ("left", "right")] == [True, True]


def test_novel_keeps_what_changed_and_now_and_then_the_whole_frame() -> None:
    frame_filter = FrameFilter(
        GateSettings(max_silence=2.0), SaliencySettings(mode="novel", guard=0, max_pruned=1.0, threshold=3.0)
    )
    shares, coordinates = [], []
    for step in range(8):
        frame = with_thing(scene(1), 2 * step * PATCH, 6 * PATCH, PATCH, PATCH, (255, 255, 0))
        frame = with_noise(frame, 2.0, step)
        assert frame_filter.decide(frame, 0.5 * step, "left").kept
        kept = frame_filter.patches(frame, 0.5 * step, "left", GRID, SIZE)
        shares.append(1.0 if kept is None else float(kept.mean()))
        coordinates.append(kept is None or bool(kept.reshape(GRID)[6, 2 * step]))
    assert [share == 1.0 for share in shares] == [True, False, False, False, True, False, False, False]
    assert max(share for share in shares if share < 1) < 0.1
    assert all(coordinates), "the thing's own patch is kept in every frame"


def test_prune_works_without_a_gate() -> None:
    frame_filter = FrameFilter(GateSettings(mode="off"), SaliencySettings(mode="prune", guard=0, max_pruned=1.0))
    frame = with_thing(np.full((336, 448, 3), 90, np.uint8), 100, 100, 50, 50, (255, 0, 0))
    frame_filter.decide(frame, 0.0, "left")
    kept = frame_filter.patches(frame, 0.0, "left", GRID, SIZE)
    assert kept is not None and 0 < kept.sum() < 20
