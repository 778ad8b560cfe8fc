# SPDX-License-Identifier: Apache-2.0
"""Bags of the patrol world read back as they were written."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore

from ros_kvstream.errors import SettingsError
from ros_kvstream.patrol.bags import write_bag
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_bag_holds_the_stream_bit_for_bit(tmp_path: Path, compressed: bool, storage: str) -> None:
    world = PatrolWorld(PatrolSettings(seed=5, frames=9, size=112, start=1000.0))
    write_bag(world, tmp_path / "bag", topic="/camera/image", compressed=compressed, storage=storage)
    types = get_typestore(Stores.ROS2_JAZZY)
    with Reader(tmp_path / "bag") as reader:
        rows = list(reader.messages())
    assert len(rows) == len(world)
    for frame, (connection, time, data) in zip(world, rows, strict=True):
        message = types.deserialize_cdr(bytes(data), connection.msgtype)
        assert connection.topic == "/camera/image"
        stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
        assert stamp == pytest.approx(frame.stamp, abs=1e-6) and time * 1e-9 == pytest.approx(frame.stamp, abs=1e-6)
        if compressed:
            picture = cv2.imdecode(np.asarray(message.data), cv2.IMREAD_COLOR)[..., ::-1]
        else:
            assert (message.encoding, message.step) == ("rgb8", 3 * 112)
            picture = np.asarray(message.data).reshape(message.height, message.width, 3)
        assert np.array_equal(picture, frame.picture)


def test_an_unknown_storage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="mcap, sqlite3"):
        write_bag(PatrolWorld(PatrolSettings(frames=1)), tmp_path / "bag", storage="tar")
