# SPDX-License-Identifier: Apache-2.0
"""Transforms are composed along the tree at a stamp, as matrices are, and what is unknown says why."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ros_kvstream.node.pose_buffer import PoseGap, PoseSample
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import Pose, rotate
from ros_kvstream.recordings.transforms import TransformBuffer

NUMBERS = st.floats(-50, 50)
ANGLES = st.floats(-math.pi, math.pi)
POSES = st.builds(lambda x, y, z, roll, pitch, yaw: Pose.from_euler((x, y, z), roll, pitch, yaw),
                  NUMBERS, NUMBERS, NUMBERS, ANGLES, ANGLES, ANGLES)  # fmt: skip


def matrix(pose: Pose) -> NDArray[np.float64]:
    found = np.eye(4)
    found[:3, :3] = np.array([rotate(pose.orientation, tuple(axis)) for axis in np.eye(3)]).T
    found[:3, 3] = pose.position
    return found


def tree(**links: tuple[str, Pose]) -> TransformBuffer:
    buffer = TransformBuffer(PoseSettings())
    for child, (parent, pose) in links.items():
        buffer.add(child, PoseSample(0.0, parent, pose), static=True)
    return buffer


@given(POSES, POSES, POSES)
def test_a_chain_is_the_product_of_its_matrices(one: Pose, two: Pose, three: Pose) -> None:
    buffer = tree(odom=("map", one), base_link=("odom", two), camera=("base_link", three))
    found = buffer.lookup("map", "camera", 5.0)
    assert isinstance(found, Pose)
    assert np.allclose(matrix(found), matrix(one) @ matrix(two) @ matrix(three), atol=1e-6)


def test_moving_links_are_interpolated_at_the_stamp() -> None:
    buffer = tree(camera=("base_link", Pose((1.0, 0.0, 0.0))))
    for stamp, x in ((10.0, 0.0), (10.2, 0.4)):
        buffer.add("base_link", PoseSample(stamp, "odom", Pose((x, 0.0, 0.0))))
    found = buffer.lookup("odom", "camera", 10.05)
    assert isinstance(found, Pose) and found.position == pytest.approx((1.1, 0.0, 0.0))
    assert buffer.lookup("odom", "camera", 9.9) is PoseGap.EXTRAPOLATION
    assert buffer.lookup("odom", "camera", 12.0) is PoseGap.AGE


def test_frames_that_are_not_connected_and_loops_have_no_transform() -> None:
    buffer = tree(a=("b", Pose((1.0, 0.0, 0.0))), b=("a", Pose((1.0, 0.0, 0.0))))
    assert buffer.lookup("map", "a", 0.0) is PoseGap.TRANSFORM
    assert buffer.lookup("map", "unknown", 0.0) is PoseGap.TRANSFORM
    assert buffer.lookup("map", "", 0.0) is PoseGap.TRANSFORM


def test_a_jump_of_one_link_is_no_pose() -> None:
    buffer = TransformBuffer(PoseSettings(max_speed=2.0))
    for stamp, x in ((0.0, 0.0), (0.1, 50.0)):
        buffer.add("base_link", PoseSample(stamp, "odom", Pose((x, 0.0, 0.0))))
    assert buffer.lookup("odom", "base_link", 0.05) is PoseGap.JUMP


def test_a_transform_without_usable_numbers_is_ignored() -> None:
    buffer = tree(base_link=("map", Pose((1.0, 2.0, 3.0))))
    buffer.add("base_link", PoseSample(1.0, "map", None), static=True)
    found = buffer.lookup("map", "base_link", 0.0)
    assert isinstance(found, Pose) and found.position == (1.0, 2.0, 3.0)
