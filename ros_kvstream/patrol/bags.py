# SPDX-License-Identifier: Apache-2.0
"""Bag writer for patrol streams. Needs no ROS installation."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from ros_kvstream.patrol.patrol import PatrolWorld
from ros_kvstream.settings import require

STORAGES = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}


def write_bag(
    world: PatrolWorld,
    folder: Path,
    *,
    topic: str = "/image",
    compressed: bool = False,
    storage: str = "mcap",
    frame_id: str = "camera",
) -> None:
    """Write every frame as sensor_msgs/Image (rgb8) or sensor_msgs/CompressedImage (png) into a new bag folder.

    Header stamps and receive times are the world's stamps. Only one frame is in memory at a time.

    :raises SettingsError: on an unknown storage or a negative start. :raises WriterError: where the folder exists.
    """
    require(storage in STORAGES, "storage", storage, "one of " + ", ".join(STORAGES))
    require(world.settings.start >= 0, "start", world.settings.start, "0 or more in a bag")
    types = get_typestore(Stores.ROS2_JAZZY)
    name = "sensor_msgs/msg/CompressedImage" if compressed else "sensor_msgs/msg/Image"
    header_type, time_type = types.types["std_msgs/msg/Header"], types.types["builtin_interfaces/msg/Time"]
    with Writer(folder, version=9, storage_plugin=STORAGES[storage]) as writer:
        connection = writer.add_connection(topic, name, typestore=types)
        for frame in world:
            nanoseconds = round(frame.stamp * 1e9)
            stamp = time_type(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9)
            header = header_type(stamp=stamp, frame_id=frame_id)
            size = world.settings.size
            if compressed:
                _, data = cv2.imencode(".png", frame.picture[..., ::-1])
                message = types.types[name](header=header, format="rgb8; png compressed bgr8", data=data.reshape(-1))
            else:
                message = types.types[name](
                    header=header, height=size, width=size, encoding="rgb8", is_bigendian=0, step=3 * size,
                    data=np.ascontiguousarray(frame.picture).reshape(-1),
                )  # fmt: skip
            writer.write(connection, nanoseconds, types.serialize_cdr(message, name))
