# SPDX-License-Identifier: Apache-2.0
"""The pose at a stamp is interpolated between the poses around it, and what cannot be trusted has a cause."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros_kvstream.node.pose_buffer import JUMP_TOLERANCE, MAX_SAMPLES, RESTART_SECONDS, PoseBuffer, PoseGap, PoseSample
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import Pose

SETTINGS = PoseSettings(max_age_s=0.5, max_covariance=1.0, max_speed=2.0)


def sample(stamp: float, x: float = 0.0, yaw: float = 0.0, frame_id: str = "map", variance: float = 0.0) -> PoseSample:
    return PoseSample(stamp, frame_id, Pose.from_euler((x, 0.0, 0.0), 0.0, 0.0, yaw), variance)


def buffer(*samples: PoseSample, settings: PoseSettings = SETTINGS) -> PoseBuffer:
    found = PoseBuffer(settings)
    for one in samples:
        found.add(one)
    return found


def pose_at(poses: PoseBuffer, stamp: float) -> Pose:
    found = poses.at(stamp)
    assert isinstance(found, PoseSample) and found.pose is not None
    return found.pose


@given(st.lists(st.floats(0.01, 0.4), min_size=1, max_size=30), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_position_and_heading_are_those_of_numpy_interp(steps: list[float], share: float, seed: int) -> None:
    stamps = 100.0 + np.concatenate([[0.0], np.cumsum(steps)])
    random = np.random.default_rng(seed)
    xs = np.concatenate([[0.0], np.cumsum(random.uniform(-1.5, 1.5, len(steps)) * steps)])
    yaws = np.concatenate([[0.0], np.cumsum(random.uniform(-1.0, 1.0, len(steps)))])
    poses = buffer(*[sample(*values) for values in zip(stamps, xs, yaws, strict=True)])
    stamp = float(stamps[0] + share * (stamps[-1] - stamps[0]))
    found = pose_at(poses, stamp)
    x, y, z, w = found.orientation
    heading = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    wanted = float(np.interp(stamp, stamps, yaws))
    assert found.position[0] == pytest.approx(float(np.interp(stamp, stamps, xs)), abs=1e-6)
    assert math.cos(heading - wanted) == pytest.approx(1.0, abs=1e-9)


@given(st.permutations(range(12)))
def test_the_order_of_arrival_does_not_matter(order: list[int]) -> None:
    poses = buffer(*[sample(10.0 + 0.1 * number, 0.1 * number) for number in order])
    assert pose_at(poses, 10.55).position[0] == pytest.approx(0.55)


def test_a_pose_that_may_still_arrive_is_waited_for_until_it_is_final() -> None:
    poses = buffer(sample(10.0), sample(10.2))
    assert poses.at(10.3) is None
    assert poses.at(10.3, final=True) is PoseGap.EXTRAPOLATION
    assert poses.at(11.0, final=True) is PoseGap.AGE
    poses.add(sample(10.4))
    assert isinstance(poses.at(10.3), PoseSample)


def test_nothing_received_is_missing() -> None:
    assert buffer().at(1.0) is None
    assert buffer().at(1.0, final=True) is PoseGap.MISSING


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (sample(10.0), sample(11.2), PoseGap.AGE),
        (sample(10.5), sample(10.6, variance=1.01), PoseGap.COVARIANCE),
        (sample(10.5), sample(10.6, variance=math.nan), PoseGap.COVARIANCE),
        (sample(10.5), sample(10.6, x=2.0 * 0.1 + JUMP_TOLERANCE + 0.01), PoseGap.JUMP),
        (sample(10.5), sample(10.6, frame_id="other"), PoseGap.JUMP),
        (sample(10.5), PoseSample(10.6, "map", None), PoseGap.INVALID),
        (sample(10.56), sample(10.6), PoseGap.EXTRAPOLATION),
        (sample(12.0), sample(12.1), PoseGap.AGE),
    ],
)
def test_a_pose_that_cannot_be_trusted_has_a_cause(before: PoseSample, after: PoseSample, cause: PoseGap) -> None:
    assert buffer(before, after).at(10.55, final=True) is cause


def test_limits_themselves_are_accepted() -> None:
    poses = buffer(sample(10.0, variance=1.0), sample(10.5, x=2.0 * 0.5 + JUMP_TOLERANCE - 1e-6, variance=1.0))
    assert isinstance(poses.at(10.0), PoseSample) and isinstance(poses.at(10.25), PoseSample)


def test_a_recording_that_starts_again_begins_a_new_series() -> None:
    poses = buffer(sample(100.0, 5.0), sample(100.1, 5.0), sample(100.1 - RESTART_SECONDS - 0.1, 1.0))
    assert poses.newest is not None and poses.newest.stamp < 100
    assert poses.at(100.05, final=True) is PoseGap.AGE


def test_the_buffer_is_bounded_and_keeps_the_newest() -> None:
    poses = buffer(*[sample(0.01 * number) for number in range(MAX_SAMPLES + 100)])
    assert poses.at(0.5) is PoseGap.EXTRAPOLATION
    assert isinstance(poses.at(0.01 * (MAX_SAMPLES + 50) + 0.005), PoseSample)
    poses.clear()
    assert poses.newest is None
