# SPDX-License-Identifier: Apache-2.0
"""Poses: position and orientation in a frame, their composition and interpolation, and the pose of a camera frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import PoseError

POSE_NUMBERS = 7
"""Numbers of a stored pose: x y z, then the quaternion x y z w; 28 bytes in float32."""
SEGMENT_BYTES = 96
"""Longest name of a map segment in UTF-8 bytes that storage keeps."""
ODOMETRY_TYPE = "nav_msgs/msg/Odometry"
POSE_TYPES = (ODOMETRY_TYPE, "geometry_msgs/msg/PoseWithCovarianceStamped", "geometry_msgs/msg/PoseStamped")
"""Types of messages that hold the pose of a robot's base."""
LEAST_NORM = 1e-3
"""Quaternions that are shorter than this have no direction."""
PARALLEL = 1 - 1e-9
"""Quaternions whose product is above this are interpolated linearly: the angle between them is too small for sines."""

Vector = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]


@dataclass(frozen=True)
class Pose:
    """Position and orientation of one frame in another (REP-103: metres, right-handed); refuses unusable values."""

    position: Vector
    """x, y, z in metres."""
    orientation: Quaternion = (0.0, 0.0, 0.0, 1.0)
    """Quaternion x, y, z, w; scaled to length 1."""

    def __post_init__(self) -> None:
        """Normalize the quaternion; raise PoseError for values that are not finite, or a quaternion of length 0."""
        if len(self.position) != 3 or not all(map(math.isfinite, self.position)):
            raise PoseError(f"position = {self.position}: must be three finite numbers of metres")
        norm = math.hypot(*self.orientation) if len(self.orientation) == 4 else math.nan
        if not math.isfinite(norm) or norm < LEAST_NORM:
            raise PoseError(f"orientation = {self.orientation}: must be a quaternion x y z w of length 1")
        x, y, z = map(float, self.position)
        qx, qy, qz, qw = (float(value) / norm for value in self.orientation)
        object.__setattr__(self, "position", (x, y, z))
        object.__setattr__(self, "orientation", (qx, qy, qz, qw))

    @classmethod
    def from_euler(cls, position: Sequence[float], roll: float, pitch: float, yaw: float) -> Pose:
        """Pose of fixed-axis angles in radians: roll about x, then pitch about y, then yaw about z (REP-103)."""
        (sr, sp, sy), (cr, cp, cy) = ([of(angle / 2) for angle in (roll, pitch, yaw)] for of in (math.sin, math.cos))
        x, y, z = position
        return cls((x, y, z), (sr * cp * cy - cr * sp * sy, cr * sp * cy + sr * cp * sy,
                               cr * cp * sy - sr * sp * cy, cr * cp * cy + sr * sp * sy))  # fmt: skip

    @classmethod
    def from_message(cls, position: Any, orientation: Any) -> Pose:
        """Pose of a message: a point or vector with x y z, and a quaternion with x y z w."""
        at, turned = position, orientation
        return cls((at.x, at.y, at.z), (turned.x, turned.y, turned.z, turned.w))

    @classmethod
    def from_numbers(cls, numbers: Sequence[float] | NDArray[np.float32]) -> Pose:
        """Return the pose that :meth:`numbers` describes, with exactly these values."""
        values = tuple(float(number) for number in numbers)
        pose = cls(values[:3], values[3:])  # type: ignore[arg-type]  # lengths are checked there
        object.__setattr__(pose, "orientation", values[3:])
        return pose

    def numbers(self) -> NDArray[np.float32]:
        """Position and orientation, float32 [7]."""
        return np.array([*self.position, *self.orientation], dtype=np.float32)

    def stored(self) -> Pose:
        """Return the pose as storage keeps it, rounded to float32."""
        return Pose.from_numbers(self.numbers())

    def compose(self, other: Pose) -> Pose:
        """Return ``other``, given in this pose's frame, in the frame that this pose is given in."""
        turned = rotate(self.orientation, other.position)
        x, y, z = (own + add for own, add in zip(self.position, turned, strict=True))
        return Pose((x, y, z), multiply(self.orientation, other.orientation))

    def inverse(self) -> Pose:
        """Return the pose of this pose's reference frame, given in this pose's frame."""
        qx, qy, qz, qw = self.orientation
        back = (-qx, -qy, -qz, qw)
        x, y, z = rotate(back, self.position)
        return Pose((-x, -y, -z), back)

    def distance(self, other: Pose) -> float:
        """Distance between the positions, metres."""
        return math.dist(self.position, other.position)


@dataclass(frozen=True)
class FramePose:
    """Where the robot and its camera were when a frame was taken."""

    map: str
    """Segment of the map, see :func:`map_segment`; poses of different segments are never compared."""
    base: Pose
    """Pose of the robot's base in the map."""
    camera: Pose
    """Pose of the camera in the map."""

    @property
    def frame_id(self) -> str:
        """Frame in which both poses are given, such as "map"."""
        return map_frame(self.map)

    def stored(self) -> FramePose:
        """Return the poses as storage keeps them, rounded to float32."""
        return FramePose(self.map, self.base.stored(), self.camera.stored())


def map_segment(frame_id: str, name: str) -> str:
    """Name of a segment: frame id, and what tells it from other maps or runs with the same frame id."""
    return f"{frame_id}#{name}"


def map_frame(segment: str) -> str:
    """Frame id of a segment; empty for an empty one."""
    return segment.rpartition("#")[0]


def segment_name(segment: str) -> str:
    """Name that tells a segment from others with the same frame id; empty for an empty one."""
    return segment.rpartition("#")[2]


def multiply(one: Quaternion, other: Quaternion) -> Quaternion:
    """Product of two quaternions: the rotation ``other``, then ``one``."""
    ax, ay, az, aw = one
    bx, by, bz, bw = other
    return (aw * bx + ax * bw + ay * bz - az * by, aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw, aw * bw - ax * bx - ay * by - az * bz)  # fmt: skip


def rotate(quaternion: Quaternion, vector: Vector) -> Vector:
    """Rotate a vector by a quaternion of length 1."""
    x, y, z, w = quaternion
    vx, vy, vz = vector
    tx, ty, tz = 2 * (y * vz - z * vy), 2 * (z * vx - x * vz), 2 * (x * vy - y * vx)
    return (vx + w * tx + y * tz - z * ty, vy + w * ty + z * tx - x * tz, vz + w * tz + x * ty - y * tx)


def slerp(one: Quaternion, other: Quaternion, share: float) -> Quaternion:
    """Spherical interpolation between two rotations along the shorter arc (Shoemake, 1985); share 0 - 1."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    sign = -1.0 if product < 0 else 1.0  # a quaternion and its negative are the same rotation
    if abs(product) > PARALLEL:
        first, second = 1 - share, share
    else:
        angle = math.acos(min(1.0, abs(product)))
        first, second = (math.sin(part * angle) / math.sin(angle) for part in (1 - share, share))
    x, y, z, w = (first * a + sign * second * b for a, b in zip(one, other, strict=True))
    norm = math.hypot(x, y, z, w)
    return (x / norm, y / norm, z / norm, w / norm)


def interpolate(one: Pose, other: Pose, share: float) -> Pose:
    """Pose between two: the position linearly, the orientation spherically; share 0 gives ``one``, 1 ``other``."""
    x, y, z = (a + share * (b - a) for a, b in zip(one.position, other.position, strict=True))
    return Pose((x, y, z), slerp(one.orientation, other.orientation, share))
