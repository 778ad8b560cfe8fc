# SPDX-License-Identifier: Apache-2.0
"""Bags: topics, messages, frames on their stamps, several cameras, parts, and what is damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from ros_kvstream.patrol.bags import write_bag
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.recordings.bags import (
    BagError,
    BagSource,
    find_image_topic,
    header_stamp,
    picture_size,
    read_messages,
    with_stamp,
)
from ros_kvstream.recordings.frame_sources import FrameStore, StreamFrame

WORLD = PatrolWorld(PatrolSettings(frames=24, rate_hz=4.0, start=1000.0, objects=2))
TYPES = get_typestore(Stores.ROS2_JAZZY)


def read(source: BagSource) -> tuple[list[StreamFrame], list[str]]:
    notes: list[str] = []
    return list(source.frames(notes.append)), notes


IMAGE = "sensor_msgs/msg/Image"


def picture_message(pixels: np.ndarray[Any, Any], stamp: float, kind: str, form: str = "png") -> bytes:
    header = TYPES.types["std_msgs/msg/Header"](
        stamp=TYPES.types["builtin_interfaces/msg/Time"](sec=int(stamp), nanosec=round(stamp % 1 * 1e9)), frame_id=""
    )
    if kind.endswith("CompressedImage"):
        data = cv2.imencode(".png", pixels[..., ::-1] if pixels.ndim == 3 else pixels)[1].reshape(-1)
        message = TYPES.types[kind](header=header, format=form, data=data)
    else:
        message = TYPES.types[kind](header=header, height=pixels.shape[0], width=pixels.shape[1], encoding="rgb8",
                                    is_bigendian=0, step=pixels[0].nbytes, data=pixels.reshape(-1))  # fmt: skip
    return bytes(TYPES.serialize_cdr(message, kind))


def write_messages(folder: Path, messages: list[tuple[str, str, int, bytes]]) -> Path:
    """A bag of (topic, type, nanoseconds, data)."""
    with Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connections = {
            topic: writer.add_connection(topic, kind, typestore=TYPES)
            for topic, kind in dict((message[0], message[1]) for message in messages).items()
        }
        for topic, _, received, data in messages:
            writer.write(connections[topic], received, data)
    return folder


def write_stamps(folder: Path, *cameras: tuple[str, list[float]], rate: float = 10.0) -> Path:
    """A bag of cameras that are received together at a rate from 100 s on, with these header stamps."""
    messages = [
        (topic, IMAGE, round((100 + index / rate) * 1e9), picture_message(WORLD.picture(index % 24), stamp, IMAGE))
        for index in range(max(len(stamps) for _, stamps in cameras))
        for topic, stamps in cameras if index < len(stamps) for stamp in stamps[index : index + 1]
    ]  # fmt: skip
    return write_messages(folder, messages)


@pytest.fixture(scope="module", params=["mcap", "sqlite3"])
def bag(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bags") / "bag"
    write_bag(WORLD, folder, topic="/front/image_raw", compressed=request.param == "mcap", storage=request.param,
              odometry="")  # fmt: skip
    return folder


def test_every_frame_comes_with_the_pixels_and_the_stamp_that_were_recorded(bag: Path) -> None:
    frames, notes = read(BagSource(bag))
    assert notes == []
    assert [frame.stamp for frame in frames] == pytest.approx([WORLD.stamp(i) for i in range(24)], abs=1e-6)
    assert {frame.camera for frame in frames} == {"camera"}
    for index in (0, 11, 23):
        assert np.array_equal(frames[index].picture, WORLD.picture(index))
    assert BagSource(bag).count() == 24
    assert BagSource(bag).first_stamp() == pytest.approx(1000.0, abs=1e-6)
    assert BagSource(bag).name == "bag"


def test_a_part_is_what_lies_between_start_and_start_plus_duration(bag: Path) -> None:
    frames, _ = read(BagSource(bag, start=1.0, duration=2.0))
    expected = [WORLD.stamp(i) for i in range(24) if 1.0 <= round(WORLD.stamp(i) - 1000.0, 6) <= 3.0]
    assert [frame.stamp for frame in frames] == pytest.approx(expected, abs=1e-6)
    assert 0 < len(frames) < 24


def test_the_storage_file_alone_is_a_recording_too(bag: Path) -> None:
    (file,) = [file for file in bag.iterdir() if file.suffix in (".mcap", ".db3")]
    assert len(read(BagSource(file))[0]) == 24
    assert BagSource(file).name == "bag"


STEPS = [index / 10 for index in range(60)]
CLOCKS = {
    "set back after the third": [1000 + step - (500 if index > 2 else 0) for index, step in enumerate(STEPS)],
    "zero": [0.0] * 60, "constant": [77.5] * 60,
}  # fmt: skip


@pytest.mark.parametrize("clock", CLOCKS)
def test_pictures_with_unusable_header_stamps_come_on_the_times_of_their_reception(clock: str, tmp_path: Path) -> None:
    source = BagSource(write_stamps(tmp_path / "bag", ("/image", CLOCKS[clock])))
    frames, notes = read(source)
    assert [frame.stamp for frame in frames] == pytest.approx([100 + step for step in STEPS])
    assert source.first_stamp() == 100.0
    assert len(notes) == 1 and "/image" in notes[0] and "times of reception are used" in notes[0]
    assert all(header_stamp(message.data) == stamp for stamp, _, message in source.messages()), "as played to a node"
    assert len(read(BagSource(source.path, start=1.0, duration=2.0))[0]) == 21


def test_cameras_on_different_clocks_come_on_the_times_of_their_reception(tmp_path: Path) -> None:
    boot = write_stamps(tmp_path / "bag", ("/front", [100 + step for step in STEPS]), ("/rear", [5 + s for s in STEPS]))
    frames, notes = read(BagSource(boot))
    assert len(frames) == 120 and {frame.stamp for frame in frames if frame.camera == "rear"} == {
        frame.stamp for frame in frames if frame.camera == "front"}  # fmt: skip
    assert len(notes) == 1 and "/front and /rear are 95 s apart" in notes[0]


def test_a_picture_stamped_before_the_first_one_is_read_unless_start_excludes_it(tmp_path: Path) -> None:
    early = write_stamps(tmp_path / "bag", ("/front", [100 + s for s in STEPS]), ("/rear", [99.95 + s for s in STEPS]))
    frames, notes = read(BagSource(early))
    assert len(frames) == 120 and notes == []
    assert min(frame.stamp for frame in frames) == pytest.approx(99.95)
    assert min(frame.stamp for frame in read(BagSource(early, start=1.0))[0]) >= 101.0 - 1e-6


@pytest.fixture(scope="module")
def two_cameras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    messages = []
    for index in range(6):
        front, rear = WORLD.picture(index), WORLD.picture(index)[:, ::-1].copy()
        stamp = 50.0 + index
        raw, compressed = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
        messages += [
            ("/front/image_raw", raw, round(stamp * 1e9), picture_message(front, stamp, raw)),
            ("/front/image_raw/compressed", compressed, round(stamp * 1e9),
             picture_message(front, stamp, compressed)),
            ("/rear/image_raw/compressed", compressed, round((stamp + 0.5) * 1e9),
             picture_message(rear, stamp + 0.5, compressed)),
        ]  # fmt: skip
    return write_messages(tmp_path_factory.mktemp("bags") / "two", messages)


def test_cameras_are_named_by_their_topics_and_a_compressed_double_is_left_out_aloud(two_cameras: Path) -> None:
    frames, notes = read(BagSource(two_cameras))
    assert [(frame.camera, frame.stamp) for frame in frames[:4]] == [
        ("front", 50.0), ("rear", 50.5), ("front", 51.0), ("rear", 51.5),
    ]  # fmt: skip
    assert len(frames) == 12
    assert notes == ["/front/image_raw/compressed: left out because the bag holds the raw images too"]


def test_cameras_can_be_chosen_and_named(two_cameras: Path) -> None:
    source = BagSource(two_cameras, (("back", "/rear/image_raw/compressed"),))
    frames, _ = read(source)
    assert {frame.camera for frame in frames} == {"back"} and len(frames) == 6
    assert np.array_equal(frames[2].picture, WORLD.picture(2)[:, ::-1])
    with pytest.raises(BagError, match=r"no image topic /left.*/rear/image_raw/compressed \(compressed, 6 frames\)"):
        read(BagSource(two_cameras, (("left", "/left"),)))


def test_the_only_image_topic_is_found_with_its_transport_size_and_length(bag: Path) -> None:
    topic = find_image_topic(bag)
    assert topic == find_image_topic(bag, "/front/image_raw")
    compressed = topic.type.endswith("CompressedImage")
    assert topic.transport == ("compressed" if compressed else "raw")
    assert topic.played_as == ("/front/image_raw/compressed" if compressed else "/front/image_raw")
    assert (topic.frames, picture_size(bag, topic)) == (24, (56, 56))
    assert topic.seconds == pytest.approx(WORLD.stamp(23) - WORLD.stamp(0), abs=1e-6)


def test_messages_come_in_order_with_the_stamps_of_their_headers(bag: Path) -> None:
    topic = find_image_topic(bag)
    messages = list(read_messages(bag, {topic.name}))
    stamps = [header_stamp(message.data) for message in messages]
    assert stamps == pytest.approx([WORLD.stamp(index) for index in range(24)], abs=1e-6)
    stamp = TYPES.deserialize_cdr(messages[3].data, topic.type).header.stamp  # type: ignore[attr-defined]
    assert stamp.sec + stamp.nanosec / 1e9 == pytest.approx(stamps[3], abs=1e-9)


def test_a_topic_that_is_not_there_or_not_the_only_one_is_refused_with_those_that_are(two_cameras: Path) -> None:
    for name, said in (("/left", "no image topic '/left'"), ("", "has 3 image topics")):
        with pytest.raises(BagError, match=rf"{said}.*/front/image_raw \(raw, 6 frames\)"):
            find_image_topic(two_cameras, name)


@pytest.mark.parametrize("start", [b"\0\1\0\0", b"\0\0\0\0"], ids=["little endian", "big endian"])
def test_a_stamp_is_replaced_in_either_byte_order(start: bytes) -> None:
    data = start + bytes(8) + b"the rest"
    found = with_stamp(data, 1_700_000_000_500_000_000)
    assert header_stamp(found) == 1_700_000_000.5 and found[:4] == start and found[12:] == b"the rest"


def test_stamps_are_read_in_either_byte_order() -> None:
    little = b"\x00\x01\x00\x00" + (7).to_bytes(4, "little") + (500_000_000).to_bytes(4, "little")
    big = b"\x00\x00\x00\x00" + (7).to_bytes(4, "big") + (500_000_000).to_bytes(4, "big")
    assert header_stamp(little) == header_stamp(big) == 7.5


def copy(bag: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in bag.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def storage(folder: Path) -> Path:
    return next(file for file in folder.iterdir() if file.suffix in (".mcap", ".db3"))


def test_without_its_metadata_a_recording_is_read_whole_and_that_is_said(bag: Path, tmp_path: Path) -> None:
    folder = copy(bag, tmp_path / "bag")
    (folder / "metadata.yaml").unlink()
    frames, notes = read(BagSource(folder))
    assert len(frames) == 24
    assert len(notes) == 1 and "has no index" in notes[0]


@pytest.mark.parametrize("kind", ["mcap", "sqlite3"])
def test_a_file_that_was_cut_off_gives_the_frames_before_the_cut(kind: str, tmp_path: Path) -> None:
    if kind == "mcap":
        file = write_chunks(tmp_path / "cut.mcap")
    else:
        write_bag(WORLD, tmp_path / "bag", storage="sqlite3", odometry="")
        file = storage(tmp_path / "bag")
    file.write_bytes(file.read_bytes()[: int(0.6 * file.stat().st_size)])
    frames, notes = read(BagSource(file))
    assert 3 < len(frames) < 24
    expected = [10.0 + i if kind == "mcap" else WORLD.stamp(i) for i in range(len(frames))]
    assert [frame.stamp for frame in frames] == pytest.approx(expected, abs=1e-6)
    assert any(file.name in note and ("breaks off" in note or "cut off at byte" in note) for note in notes)
    assert BagSource(file).count() == len(frames)
    topic = find_image_topic(file)
    assert (topic.frames, picture_size(file, topic)) == (len(frames), (56, 56))
    assert topic.seconds == pytest.approx(frames[-1].stamp - frames[0].stamp, abs=1e-6)


def write_chunks(path: Path, seconds: Sequence[int] = range(10, 18), index: bool = True) -> Path:
    """An mcap file in which every picture is a chunk of its own; picture 0 is that of second 10."""
    import mcap.writer

    indexes = mcap.writer.IndexType.ALL if index else mcap.writer.IndexType.NONE
    with path.open("wb") as stream:
        writer = mcap.writer.Writer(stream, chunk_size=1, compression=mcap.writer.CompressionType.NONE,
                                    index_types=indexes)  # fmt: skip
        writer.start(profile="ros2")
        channel = writer.register_channel("/image", "cdr", writer.register_schema(IMAGE, "ros2msg", b""))
        for second in seconds:
            data = picture_message(WORLD.picture(second - 10), float(second), IMAGE)
            writer.add_message(channel, second * 10**9, data, second * 10**9)
        writer.finish()
    return path


@pytest.mark.parametrize("kind", ["mcap", "db3"])
def test_split_files_without_metadata_are_read_by_their_first_message(kind: str, tmp_path: Path) -> None:
    for part in range(12):
        name = f"bag_{part}.{kind}"
        if kind == "mcap":
            write_chunks(tmp_path / name, [10 + 2 * part, 11 + 2 * part])
        else:
            world = PatrolWorld(PatrolSettings(frames=2, rate_hz=1.0, start=10.0 + 2 * part))
            write_bag(world, tmp_path / str(part), storage="sqlite3", odometry="")
            storage(tmp_path / str(part)).rename(tmp_path / name)
    frames, notes = read(BagSource(tmp_path))
    assert [frame.stamp for frame in frames] == pytest.approx([10.0 + index for index in range(24)], abs=0.2)
    assert not any("time order" in note for note in notes)


def test_an_unindexed_mcap_out_of_time_order_is_read_by_time_and_that_is_said(tmp_path: Path) -> None:
    mixed = write_chunks(tmp_path / "mixed.mcap", [14, 15, 16, 10, 11, 12, 13, 18, 17], index=False)
    frames, notes = read(BagSource(mixed))
    assert [frame.stamp for frame in frames] == [10.0 + index for index in range(9)]
    assert all(np.array_equal(frame.picture, WORLD.picture(index)) for index, frame in enumerate(frames))
    assert any("mixed.mcap is out of time order" in note for note in notes)


def test_a_failure_of_the_index_is_said_also_where_nothing_is_lost(tmp_path: Path) -> None:
    notes: list[str] = []
    path = write_chunks(tmp_path / "a.mcap", index=False)
    assert len(list(read_messages(path, {"/image"}, notes.append))) == 8
    assert len(notes) == 1 and "a.mcap has no index that can be used" in notes[0]


def test_pictures_that_the_node_made_itself_are_no_camera_unless_they_are_chosen(tmp_path: Path) -> None:
    stamps = [100.0, 100.1, 100.2]
    folder = write_stamps(tmp_path / "bag", ("/front", stamps), ("/kvstream/kept_tokens", stamps))
    frames, notes = read(BagSource(folder))
    assert [frame.camera for frame in frames] == ["camera"] * 3
    assert notes == ["/kvstream/kept_tokens: left out because it holds pictures that the node made"]
    assert find_image_topic(folder).name == "/front"
    assert len(read(BagSource(folder, (("own", "/kvstream/kept_tokens"),)))[0]) == 3
    assert find_image_topic(folder, "/kvstream/kept_tokens").frames == 3


def test_an_mcap_without_a_footer_or_index_gives_every_frame(tmp_path: Path) -> None:
    write_bag(WORLD, tmp_path / "bag", odometry="")
    file = storage(tmp_path / "bag")
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(b"\x0f\x04\x00\x00\x00\x00\x00\x00\x00") + 13])  # up to the end of its data
    frames, notes = read(BagSource(file))
    assert len(frames) == 24
    assert any("breaks off" in note for note in notes)


def test_a_damaged_chunk_is_left_out_and_the_rest_is_read(tmp_path: Path) -> None:
    path = write_chunks(tmp_path / "chunks.mcap")
    data = bytearray(path.read_bytes())
    victim = data.index(WORLD.picture(3).tobytes()[:600])
    data[victim : victim + 8] = b"\x00\xff\x00\xff\x00\xff\x00\xff"
    path.write_bytes(data)
    frames, notes = read(BagSource(path))
    assert [frame.stamp for frame in frames] == [10.0, 11.0, 12.0, 14.0, 15.0, 16.0, 17.0]
    assert len(notes) == 1 and "damaged chunk" in notes[0]


def test_a_database_row_that_cannot_be_read_costs_only_that_row(tmp_path: Path) -> None:
    write_bag(WORLD, tmp_path / "bag", storage="sqlite3", odometry="")
    file = storage(tmp_path / "bag")
    with sqlite3.connect(file) as database:
        page_size = database.execute("PRAGMA page_size").fetchone()[0]
    data = bytearray(file.read_bytes())
    first_row = data.index(WORLD.picture(4).tobytes()[:500])
    leaf = first_row // page_size * page_size
    data[leaf : leaf + 8] = b"\xff" * 8  # the page's own header
    file.write_bytes(data)
    frames, notes = read(BagSource(tmp_path / "bag"))
    stamps = [round(frame.stamp - 1000, 6) for frame in frames]
    assert 12 <= len(frames) < 24 and stamps == sorted(stamps)
    assert any("damaged after row" in note for note in notes)


def test_a_picture_that_cannot_be_decoded_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    kind = "sensor_msgs/msg/CompressedImage"
    messages = []
    for index in range(5):
        data = picture_message(WORLD.picture(index), 7.0 + index, kind)
        messages.append(("/image/compressed", kind, (7 + index) * 10**9, data[: 900 if index == 2 else len(data)]))
    folder = write_messages(tmp_path / "bag", messages)
    frames, notes = read(BagSource(folder))
    assert [frame.stamp for frame in frames] == [7.0, 8.0, 10.0, 11.0]
    assert len(notes) == 1 and notes[0].startswith("/image/compressed: 1 images cannot be decoded")


def test_16_bit_pictures_that_lose_most_of_their_levels_are_counted_and_depth_is_left_out(tmp_path: Path) -> None:
    kind, values = "sensor_msgs/msg/CompressedImage", np.linspace(0, 1023, 64 * 64).astype(np.uint16).reshape(64, 64)
    messages = [(topic, kind, (1 + index) * 10**9, picture_message(values, 1.0 + index, kind, form))
                for topic, form in (("/infrared/compressed", "mono16; png compressed "), ("/depth/compressed", "png"))
                for index in range(2)]
    frames, notes = read(BagSource(write_messages(tmp_path / "bag", messages)))
    assert [frame.camera for frame in frames] == ["infrared"] * 2
    lost, depth = notes
    assert lost.startswith("/infrared/compressed: 2 images lose most of their levels") and "uses 5 of 256" in lost
    assert depth.startswith("/depth/compressed: 2 images cannot be decoded") and "is a depth image" in depth


@pytest.mark.parametrize("kind", ["missing", "empty folder", "other file", "no images", "metadata alone"])
def test_what_holds_no_pictures_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bag"
    if kind in ("empty folder", "metadata alone"):
        path.mkdir()
    if kind == "metadata alone":
        (path / "metadata.yaml").write_text("rosbag2_bagfile_information: {}")
    elif kind == "other file":
        path = tmp_path / "bag.txt"
        path.write_text("x")
    elif kind == "no images":
        path.mkdir()
        (path / "broken.mcap").write_bytes(b"not one at all")
    for use in (lambda: read(BagSource(path)), lambda: find_image_topic(path)):
        with pytest.raises(BagError, match=str(path)):
            use()


def write_channel(path: Path, kind: str, encoding: str = "cdr", profile: str = "ros2") -> Path:
    """An mcap file with three messages of a type and serialization format on /x."""
    import mcap.writer

    with path.open("wb") as stream:
        writer = mcap.writer.Writer(stream)
        writer.start(profile=profile)
        channel = writer.register_channel("/x", encoding, writer.register_schema(kind, "ros2msg", b""))
        for second in range(3):
            data = picture_message(WORLD.picture(second), 10.0 + second, IMAGE)
            writer.add_message(channel, (10 + second) * 10**9, data, (10 + second) * 10**9)
        writer.finish()
    return path


@pytest.mark.parametrize(
    ("kind", "encoding", "said"),
    [("sensor_msgs/Image", "ros1", "ROS 1.*rosbags-convert"),
     ("foxglove.CompressedImage", "protobuf", "convert its pictures to sensor_msgs/msg/CompressedImage"),
     ("foxglove_msgs/msg/CompressedVideo", "cdr", r"record them as JPEG \(MJPEG\)"),
     ("ffmpeg_image_transport_msgs/msg/FFMPEGPacket", "cdr", "decode them"), ("std_msgs/msg/String", "cdr", r"\)$")],
)  # fmt: skip
def test_a_recording_without_an_image_topic_is_refused_with_its_topics_by_every_reader(
    kind: str, encoding: str, said: str, tmp_path: Path
) -> None:
    path = write_channel(tmp_path / "a.mcap", kind, encoding)
    errors = set()
    for use in (lambda: find_image_topic(path), lambda: read(BagSource(path)), lambda: BagSource(path).topics()):
        with pytest.raises(BagError, match=said) as caught:
            use()
        errors.add(str(caught.value))
    (error,) = errors
    assert f"/x ({kind}, {encoding}, 3 messages)" in error


def test_video_packets_in_a_compressed_image_are_named(tmp_path: Path) -> None:
    kind = "sensor_msgs/msg/CompressedImage"
    header = TYPES.types["std_msgs/msg/Header"](
        stamp=TYPES.types["builtin_interfaces/msg/Time"](sec=1, nanosec=0), frame_id=""
    )
    packet = TYPES.types[kind](header=header, format="h264", data=np.frombuffer(b"\0\0\0\1gB" * 20, np.uint8))
    folder = write_messages(tmp_path / "bag", [("/x", kind, 10**9, bytes(TYPES.serialize_cdr(packet, kind)))])
    frames, notes = read(BagSource(folder))
    assert frames == [] and len(notes) == 1 and "h264" in notes[0] and "record them as JPEG" in notes[0]


@pytest.mark.parametrize("form", ["text", "metadata", "zstd folder", "zstd file"])
def test_a_damaged_or_packed_recording_is_refused_with_the_reason(form: str, tmp_path: Path) -> None:
    path = tmp_path / "bag.mcap"
    if form == "text":
        path.write_text("not a recording")
    else:
        path = tmp_path / "bag"
        write_bag(WORLD, path, odometry="")
        file = storage(path)
        if "zstd" in form:
            (path / f"{file.name}.zstd").write_bytes(b"\x28\xb5\x2f\xfd")
            (path / "metadata.yaml").unlink()
        file.unlink()
        path = next(path.iterdir()) if form == "zstd file" else path
    said = {"text": "bag.mcap breaks off at byte 0", "metadata": "a metadata.yaml alone"}.get(form, "zstd -d .*zstd")
    for use in (lambda: read(BagSource(path)), lambda: find_image_topic(path)):
        with pytest.raises(BagError, match=said):
            use()


@pytest.mark.parametrize("form", ["storage id", "unpacked", "profile", "compressed", "compressed file"])
def test_a_good_recording_with_an_odd_description_is_read_and_not_called_damaged(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "bag"
    writer = Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP)
    if "compressed" in form:
        writer.set_compression(CompressionMode.MESSAGE, CompressionFormat.ZSTD)
    with writer:
        connection = writer.add_connection("/image", IMAGE, typestore=TYPES)
        for index in range(3):
            writer.write(connection, (10 + index) * 10**9, picture_message(WORLD.picture(index), 10.0 + index, IMAGE))
    path, metadata = folder, folder / "metadata.yaml"
    text, name = metadata.read_text(), storage(folder).name
    if form == "storage id":
        metadata.write_text(text.replace("storage_identifier: mcap", "storage_identifier: ''"))
    elif form == "unpacked":
        metadata.write_text(text.replace(name, name + ".zstd").replace("mode: ''", "mode: FILE"))
    elif form == "profile":
        path = write_channel(tmp_path / "a.mcap", IMAGE, profile="")
    elif form == "compressed file":
        path = storage(folder)
    else:
        metadata.unlink()
    notes: list[str] = []
    assert find_image_topic(path, note=notes.append).frames == 3
    frames, more = read(BagSource(path))
    assert [frame.stamp for frame in frames] == [10.0, 11.0, 12.0]
    assert all(np.array_equal(frame.picture, WORLD.picture(index)) for index, frame in enumerate(frames))
    assert notes == more
    assert not any("damage" in note for note in (*notes, *more))


def test_a_real_recording_is_read_whole_on_its_stamps() -> None:
    frames, notes = read(BagSource(Path(__file__).parents[1] / "data" / "donkey_track"))
    assert notes == [] and len(frames) == 1000
    steps = np.diff([frame.stamp for frame in frames])
    assert steps == pytest.approx(0.05, abs=1e-5)
    assert {frame.picture.shape for frame in frames} == {(120, 160, 3)}


def test_another_recording_of_the_same_name_is_told_apart(bag: Path, tmp_path: Path) -> None:
    same = BagSource(copy(bag, tmp_path / "bag"))
    assert same.data() == BagSource(bag).data()
    storage(same.path).write_bytes(b"another")
    assert same.data() != BagSource(bag).data()


def test_a_store_decodes_once_and_gives_every_reader_the_same_frames(bag: Path) -> None:
    store, source = FrameStore(), BagSource(bag)
    first = list(store.frames(source))
    assert all(again is frame for again, frame in zip(store.frames(source), first, strict=True))
    assert store.sizes(source) == {(56, 56): 24}


def test_frames_that_do_not_fit_are_decoded_again_and_proved_equal(tmp_path: Path) -> None:
    write_bag(WORLD, tmp_path / "bag", storage="sqlite3", odometry="")
    store, source = FrameStore(limit_mib=0.05), BagSource(tmp_path / "bag")
    first = list(store.frames(source))
    digest = store.digest(source)
    second = list(store.frames(source))
    assert second[0] is not first[0] and np.array_equal(second[5].picture, first[5].picture)
    assert store.digest(source) == digest
    with sqlite3.connect(storage(tmp_path / "bag")) as database:
        database.execute("DELETE FROM messages WHERE id = 5")
    with pytest.raises(Exception, match="other frames than before"):
        list(store.frames(source))
