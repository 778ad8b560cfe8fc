# SPDX-License-Identifier: Apache-2.0
"""Poses against rotation matrices in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros_kvstream.errors import PoseError
from ros_kvstream.poses import FramePose, Pose, interpolate, map_frame, map_segment, slerp

metres = st.floats(-1e3, 1e3)
angles = st.floats(-math.pi, math.pi)
shares = st.floats(0.0, 1.0)
poses = st.builds(lambda x, y, z, r, p, w: Pose.from_euler((x, y, z), r, p, w), *[metres] * 3, *[angles] * 3)


def matrix(pose: Pose) -> np.ndarray:
    """Homogeneous matrix [4, 4] of a pose."""
    x, y, z, w = pose.orientation
    rotation = np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip
    whole = np.eye(4)
    whole[:3, :3], whole[:3, 3] = rotation, pose.position
    return whole


def euler_matrix(roll: float, pitch: float, yaw: float) -> np.ndarray:
    def about(axis: int, angle: float) -> np.ndarray:
        turn, (one, two) = np.eye(3), [index for index in range(3) if index != axis]
        turn[one, one] = turn[two, two] = math.cos(angle)
        turn[one, two], turn[two, one] = -math.sin(angle), math.sin(angle)
        return turn if axis != 1 else turn.T

    return about(2, yaw) @ about(1, pitch) @ about(0, roll)


def angle_between(one: Pose, other: Pose) -> float:
    product = abs(np.dot(one.orientation, other.orientation))
    return 2 * math.acos(min(1.0, product))


@given(angles, angles, angles)
def test_fixed_axis_angles_are_roll_then_pitch_then_yaw(roll, pitch, yaw):
    found = matrix(Pose.from_euler((0, 0, 0), roll, pitch, yaw))[:3, :3]
    np.testing.assert_allclose(found, euler_matrix(roll, pitch, yaw), atol=1e-9)


@given(poses, poses)
def test_composition_is_the_product_of_the_matrices(one, other):
    np.testing.assert_allclose(matrix(one.compose(other)), matrix(one) @ matrix(other), atol=1e-6)


@given(poses)
def test_a_pose_and_its_inverse_cancel(pose):
    np.testing.assert_allclose(matrix(pose.compose(pose.inverse())), np.eye(4), atol=1e-6)


@given(poses, poses, shares)
def test_slerp_turns_by_the_share_of_the_angle_along_the_shorter_arc(one, other, share):
    between = Pose((0, 0, 0), slerp(one.orientation, other.orientation, share))
    whole = angle_between(one, other)
    assert angle_between(one, between) == pytest.approx(share * whole, abs=1e-4)
    assert angle_between(between, other) == pytest.approx((1 - share) * whole, abs=1e-4)


@given(poses, poses, shares)
def test_positions_are_interpolated_linearly_and_the_sign_of_a_quaternion_does_not_matter(one, other, share):
    found = interpolate(one, other, share)
    linear = (1 - share) * np.array(one.position) + share * np.array(other.position)
    np.testing.assert_allclose(found.position, linear, atol=1e-9)
    negative = Pose(other.position, tuple(-value for value in other.orientation))  # type: ignore[arg-type]
    assert angle_between(interpolate(one, negative, share), found) == pytest.approx(0.0, abs=1e-4)


@given(poses)
def test_a_stored_pose_is_28_bytes_and_comes_back_bit_for_bit(pose):
    numbers = pose.numbers()
    assert numbers.nbytes == 28
    stored = Pose.from_numbers(numbers)
    assert np.array_equal(stored.numbers(), numbers) and stored == pose.stored() == pose.stored().stored()


@pytest.mark.parametrize("position, orientation", [
    ((math.nan, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
    ((0.0, math.inf, 0.0), (0.0, 0.0, 0.0, 1.0)),
    ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)),
    ((0.0, 0.0, 0.0), (0.0, math.nan, 0.0, 1.0)),
    ((0.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
    ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0)),
])  # fmt: skip
def test_unusable_values_are_refused_with_the_value(position, orientation):
    with pytest.raises(PoseError, match="must be"):
        Pose(position, orientation)


def test_a_quaternion_is_scaled_to_length_one():
    assert Pose((0, 0, 0), (0, 0, 0, 2)).orientation == (0, 0, 0, 1)


def test_segments_of_one_frame_id_differ_and_name_it():
    one, other = map_segment("map", "hall"), map_segment("map", "yard")
    assert one != other and map_frame(one) == map_frame(other) == "map"
    assert map_frame(map_segment("robot#1/odom", "a")) == "robot#1/odom" and map_frame("") == ""
    assert FramePose(one, Pose((0, 0, 0)), Pose((0, 0, 0))).frame_id == "map"
