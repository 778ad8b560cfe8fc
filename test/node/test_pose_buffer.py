# SPDX-License-Identifier: Apache-2.0
"""Poses at a stamp against interpolation in NumPy, and each reason for which there is none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros_kvstream.node.pose_buffer import JUMP_TOLERANCE, MAX_SAMPLES, PoseBuffer, PoseGap, PoseSample
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import Pose

SETTINGS = PoseSettings(max_age_s=0.5, max_covariance=1.0, max_speed=2.0)
finite = st.floats(-100.0, 100.0)
angles = st.floats(-math.pi, math.pi)


def sample(stamp: float, x: float = 0.0, yaw: float = 0.0, **values) -> PoseSample:
    return replace(PoseSample(stamp, "odom", Pose.from_euler((x, 0.0, 0.0), 0.0, 0.0, yaw)), **values)


def buffer(*samples: PoseSample, settings: PoseSettings = SETTINGS) -> PoseBuffer:
    made = PoseBuffer(settings)
    for each in samples:
        made.add(each)
    return made


def yaw_of(pose: Pose) -> float:
    return 2 * math.atan2(pose.orientation[2], pose.orientation[3])


def test_positions_are_interpolated_as_numpy_does_at_every_stamp_of_a_drive() -> None:
    generator = np.random.default_rng(1)
    stamps = 100.0 + np.cumsum(generator.uniform(0.01, 0.04, 200))
    positions = np.cumsum(generator.uniform(-0.02, 0.02, (200, 3)), axis=0)
    yaws = np.cumsum(generator.uniform(-0.1, 0.1, 200))
    drive = buffer(*[PoseSample(float(stamp), "odom", Pose.from_euler(position, 0.0, 0.0, yaw))
                     for stamp, position, yaw in zip(stamps, positions, yaws, strict=True)])
    for stamp in generator.uniform(stamps[0], stamps[-1], 500):
        found = drive.at(float(stamp))
        assert isinstance(found, PoseSample) and found.pose is not None and found.stamp == stamp
        expected = [np.interp(stamp, stamps, positions[:, axis]) for axis in range(3)]
        np.testing.assert_allclose(found.pose.position, expected, atol=1e-12)
        turned = math.remainder(yaw_of(found.pose) - np.interp(stamp, stamps, yaws), 2 * math.pi)
        assert abs(turned) < 1e-7


@given(x=st.floats(-0.2, 0.2), one=angles, other=angles, share=st.floats(0.0, 1.0))
def test_between_two_poses_the_robot_is_on_the_way_and_turns_the_shorter_way(
    x: float, one: float, other: float, share: float
) -> None:
    found = buffer(sample(0.0, 0.0, one), sample(0.125, x, other)).at(0.125 * share)
    assert isinstance(found, PoseSample) and found.pose is not None
    assert math.isclose(found.pose.position[0], share * x, abs_tol=1e-9)
    angle = math.remainder(other - one, 2 * math.pi)
    turned = abs(math.remainder(yaw_of(found.pose) - one, 2 * math.pi))
    assert turned <= abs(angle) + 1e-6


@given(st.lists(st.floats(0.0, 8.0), min_size=1, max_size=30), st.floats(-1.0, 9.0), st.randoms())
def test_the_order_of_arrival_changes_nothing(stamps: list[float], stamp: float, order) -> None:
    samples = [sample(each, 0.1 * each) for each in stamps]
    shuffled = list(samples)
    order.shuffle(shuffled)
    assert buffer(*samples).at(stamp, final=True) == buffer(*shuffled).at(stamp, final=True)


@given(st.lists(st.tuples(st.floats(0.0, 1e4), finite), max_size=30), st.floats(-10.0, 1e4))
def test_a_pose_or_a_reason_is_found_at_last_whatever_arrived(samples: list[tuple[float, float]], stamp: float) -> None:
    found = buffer(*[sample(at, x) for at, x in samples])
    assert found.at(stamp, final=True) is not None
    before = found.at(stamp)
    assert before is None or before == found.at(stamp, final=True)


@pytest.mark.parametrize(("samples", "stamp", "gap"), [
    ([], 1.0, PoseGap.MISSING),
    ([sample(1.0)], 1.3, PoseGap.EXTRAPOLATION),
    ([sample(1.0)], 1.6, PoseGap.AGE),
    ([sample(1.0)], 0.8, PoseGap.EXTRAPOLATION),
    ([sample(1.0)], 0.4, PoseGap.AGE),
    ([sample(1.0), sample(2.0)], 1.5, None),
    ([sample(1.0), sample(2.0)], 1.4, PoseGap.AGE),
    ([sample(1.0), sample(2.0)], 1.6, PoseGap.AGE),
    ([sample(1.0), sample(1.1, pose=None)], 1.05, PoseGap.INVALID),
    ([sample(1.0, pose=None), sample(1.1)], 1.05, PoseGap.INVALID),
    ([sample(1.0, variance=1.01), sample(1.1)], 1.05, PoseGap.COVARIANCE),
    ([sample(1.0), sample(1.1, variance=math.nan)], 1.05, PoseGap.COVARIANCE),
    ([sample(1.0, variance=1.0), sample(1.1)], 1.05, None),
    ([sample(1.0), sample(1.1, 0.2 + JUMP_TOLERANCE + 0.01)], 1.05, PoseGap.JUMP),
    ([sample(1.0), sample(1.1, 0.2 + JUMP_TOLERANCE - 0.01)], 1.05, None),
    ([sample(1.0), sample(1.1, frame_id="map")], 1.05, PoseGap.JUMP),
    ([sample(1.0), sample(1.1, frame_id="map")], 1.1, None),
])
def test_a_pose_is_refused_for_each_cause_and_up_to_the_limit_it_is_not(
    samples: list[PoseSample], stamp: float, gap: PoseGap | None
) -> None:
    found = buffer(*samples).at(stamp, final=True)
    assert found is gap if gap is not None else isinstance(found, PoseSample)


def test_a_pose_behind_the_newest_is_waited_for_and_one_before_the_oldest_is_not() -> None:
    made = buffer(sample(1.0), sample(1.1))
    assert made.at(1.2) is None and made.at(0.9) is PoseGap.EXTRAPOLATION
    made.add(sample(1.3))
    assert isinstance(made.at(1.2), PoseSample)
    assert buffer().at(1.0) is None


def test_stamps_that_go_back_far_begin_anew_and_those_that_are_a_little_late_do_not() -> None:
    made = buffer(sample(100.0), sample(100.2), sample(100.1))
    assert isinstance(made.at(100.05), PoseSample)
    made.add(sample(50.0))
    assert made.newest is not None and made.newest.stamp == 50.0


def test_the_number_of_poses_is_bounded_and_the_newest_stay() -> None:
    made = buffer(*[sample(0.01 * number) for number in range(MAX_SAMPLES + 100)])
    assert made.at(0.5) is PoseGap.EXTRAPOLATION or made.at(0.5) is PoseGap.AGE
    assert isinstance(made.at(0.01 * MAX_SAMPLES), PoseSample)
    made.clear()
    assert made.newest is None and made.at(1.0, final=True) is PoseGap.MISSING
