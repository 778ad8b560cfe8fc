# SPDX-License-Identifier: Apache-2.0
"""Bag writer for patrol streams. Needs no ROS installation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

from ros_kvstream.patrol.patrol import MAP_FRAME, PatrolWorld
from ros_kvstream.poses import ODOMETRY_TYPE
from ros_kvstream.settings import require, require_finite

STORAGES = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}
ODOMETRY, ODOMETRY_HZ = "/odom", 20.0
BASE_FRAME = "base_link"
POSE_VARIANCE = 1e-6
"""Variance of every coordinate of the odometry; zero would stand for "unknown"."""
_GEOMETRY = ("Point", "Quaternion", "Pose", "PoseWithCovariance", "Vector3", "Twist", "TwistWithCovariance")
_TICK = -1
"""Stands for odometry where a frame has its index."""
_STEP = 0.01
"""Half the time over which velocities are measured, seconds."""
_MARGIN = 2
"""Messages of odometry before the first and after the last frame, so that every frame is between two of them."""


def write_bag(
    world: PatrolWorld,
    folder: Path,
    *,
    topic: str = "/image",
    compressed: bool = False,
    storage: str = "mcap",
    frame_id: str = "camera",
    odometry: str = ODOMETRY,
    odometry_hz: float = ODOMETRY_HZ,
) -> None:
    """Write every frame as sensor_msgs/Image (rgb8) or sensor_msgs/CompressedImage (png) into a new bag folder.

    Beside them, nav_msgs/Odometry has the robot's true poses; the camera is at the origin of the base and looks along
    its x axis. Header stamps and receive times are the world's stamps. Only one frame is in memory at a time.

    :param odometry: topic of the poses; '' leaves them out; :param odometry_hz: their rate.
    :raises SettingsError: on an unknown storage, a negative start or an invalid rate.
    :raises WriterError: where the folder exists.
    """
    require(storage in STORAGES, "storage", storage, "one of " + ", ".join(STORAGES))
    require(world.settings.start >= 0, "start", world.settings.start, "0 or more in a bag")
    require_finite("odometry_hz", odometry_hz, 0.1, 1000.0)
    types = get_typestore(Stores.ROS2_JAZZY)
    kind = "sensor_msgs/msg/CompressedImage" if compressed else "sensor_msgs/msg/Image"
    with Writer(folder, version=9, storage_plugin=STORAGES[storage]) as writer:
        connection = writer.add_connection(topic, kind, typestore=types)
        poses = writer.add_connection(odometry, ODOMETRY_TYPE, typestore=types) if odometry else None
        frames = ((world.stamp(index), index) for index in range(len(world)))
        ticks = ((stamp, _TICK) for stamp in odometry_stamps(world, odometry_hz)) if poses else ()
        for stamp, index in merge(ticks, frames):
            if poses is not None and index == _TICK:
                data = types.serialize_cdr(_odometry(types, world, stamp), ODOMETRY_TYPE)
                writer.write(poses, _nanoseconds(stamp), data)
            else:
                message = _image(types, kind, world.picture(index), _header(types, stamp, frame_id))
                writer.write(connection, _nanoseconds(stamp), types.serialize_cdr(message, kind))


def odometry_stamps(world: PatrolWorld, rate_hz: float) -> Iterator[float]:
    """Stamps of the odometry of a bag, from before the first frame to after the last one; none is negative."""
    first, last = world.stamp(0), world.stamp(len(world) - 1)
    for number in range(-_MARGIN, math.ceil((last - first) * rate_hz) + _MARGIN + 1):
        stamp = first + number / rate_hz
        if stamp >= 0:
            yield stamp


def _nanoseconds(stamp: float) -> int:
    return round(stamp * 1e9)


def _header(types: Typestore, stamp: float, frame_id: str) -> Any:
    seconds, nanoseconds = divmod(_nanoseconds(stamp), 10**9)
    time = types.types["builtin_interfaces/msg/Time"](sec=seconds, nanosec=nanoseconds)
    return types.types["std_msgs/msg/Header"](stamp=time, frame_id=frame_id)


def _image(types: Typestore, kind: str, picture: NDArray[np.uint8], header: Any) -> Any:
    """An Image or a CompressedImage."""
    if kind.endswith("CompressedImage"):
        _, data = cv2.imencode(".png", picture[..., ::-1])
        return types.types[kind](header=header, format="rgb8; png compressed bgr8", data=data.reshape(-1))
    height, width = picture.shape[:2]
    return types.types[kind](
        header=header, height=height, width=width, encoding="rgb8", is_bigendian=0, step=3 * width,
        data=np.ascontiguousarray(picture).reshape(-1),
    )  # fmt: skip


def _odometry(types: Typestore, world: PatrolWorld, stamp: float) -> Any:
    """Pose and velocity of the base; the velocity is in the frame of the base, as nav_msgs/Odometry has it."""
    make = {name: types.types[f"geometry_msgs/msg/{name}"] for name in _GEOMETRY}
    pose = world.pose_at(stamp)
    moved = world.pose_at(stamp - _STEP).inverse().compose(world.pose_at(stamp + _STEP))
    x, y, z = (part / (2 * _STEP) for part in moved.position)
    turned = 2 * math.atan2(moved.orientation[2], moved.orientation[3])
    turning = math.remainder(turned, 2 * math.pi) / (2 * _STEP)
    covariance = (POSE_VARIANCE * np.eye(6)).reshape(-1)
    qx, qy, qz, qw = pose.orientation
    position, orientation = make["Point"](*pose.position), make["Quaternion"](qx, qy, qz, qw)
    twist = make["Twist"](linear=make["Vector3"](x, y, z), angular=make["Vector3"](0.0, 0.0, turning))
    return types.types[ODOMETRY_TYPE](
        header=_header(types, stamp, MAP_FRAME),
        child_frame_id=BASE_FRAME,
        pose=make["PoseWithCovariance"](make["Pose"](position, orientation), covariance),
        twist=make["TwistWithCovariance"](twist, covariance),
    )
