"""Recordings: their image topics, their messages as they lie in the file, and what is wrong with a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest
from rosbags.highlevel import AnyReader

from ros_kvstream.patrol.bags import write_bag
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.recordings.bags import BagError, find_image_topic, header_stamp, picture_size, read_messages

WORLD = PatrolWorld(PatrolSettings(frames=12, rate_hz=4.0, start=1000.0, objects=1))


@pytest.fixture(scope="module", params=[("mcap", False), ("sqlite3", True)], ids=["mcap-raw", "sqlite3-compressed"])
def bag(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    storage, compressed = request.param
    folder = tmp_path_factory.mktemp("bags") / "bag"
    write_bag(WORLD, folder, topic="/front/image", compressed=compressed, storage=storage)
    return folder, compressed


def test_the_only_image_topic_is_found_with_its_transport_size_and_length(bag: tuple[Path, bool]) -> None:
    folder, compressed = bag
    topic = find_image_topic(folder)
    assert topic == find_image_topic(folder, "/front/image")
    assert topic.transport == ("compressed" if compressed else "raw")
    assert topic.played_as == ("/front/image/compressed" if compressed else "/front/image")
    assert (topic.frames, picture_size(folder, topic)) == (12, (56, 56))
    assert topic.seconds == pytest.approx(WORLD.stamp(11) - WORLD.stamp(0), abs=1e-6)


def test_messages_come_in_order_with_the_stamps_of_their_headers(bag: tuple[Path, bool]) -> None:
    folder, _ = bag
    topic = find_image_topic(folder)
    messages = list(read_messages(folder, topic))
    stamps = [header_stamp(data) for _, data in messages]
    assert stamps == pytest.approx([WORLD.stamp(index) for index in range(12)], abs=1e-6)
    with AnyReader([folder]) as reader:
        header = reader.deserialize(messages[3][1], topic.type).header
    assert header.stamp.sec + header.stamp.nanosec / 1e9 == pytest.approx(stamps[3], abs=1e-9)


def test_a_part_of_a_recording_is_its_first_seconds(bag: tuple[Path, bool]) -> None:
    folder, _ = bag
    received = [stamp for stamp, _ in read_messages(folder, find_image_topic(folder), seconds=1.6)]
    assert 0 < len(received) < 12
    assert received[-1] - received[0] <= 1.6e9


def test_a_topic_that_is_not_there_is_refused_with_those_that_are(bag: tuple[Path, bool]) -> None:
    with pytest.raises(BagError, match=r"'/rear/image'.*/front/image"):
        find_image_topic(bag[0], "/rear/image")


@pytest.mark.parametrize("kind", ["missing", "empty folder", "damaged"])
def test_what_is_no_recording_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "bag"
    if kind != "missing":
        folder.mkdir()
    if kind == "damaged":
        (folder / "metadata.yaml").write_text("rosbag2_bagfile_information: {}")
    with pytest.raises(BagError, match=str(folder)):
        find_image_topic(folder)


def test_stamps_are_read_in_either_byte_order() -> None:
    little = b"\x00\x01\x00\x00" + (7).to_bytes(4, "little") + (500_000_000).to_bytes(4, "little")
    big = b"\x00\x00\x00\x00" + (7).to_bytes(4, "big") + (500_000_000).to_bytes(4, "big")
    assert header_stamp(little) == header_stamp(big) == 7.5
