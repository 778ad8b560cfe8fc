# SPDX-License-Identifier: Apache-2.0
"""Every encoding against values worked out by hand: equal to the pixel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import Image

from ros_kvstream.errors import FrameError, SettingsError
from ros_kvstream.node.images import LAYOUTS, image_to_rgb
from ros_kvstream.node.settings import CameraSettings, IngestSettings

HEIGHT, WIDTH = 6, 8
RGB = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
GREY = np.repeat(RGB[..., :1], 3, axis=2)
ONE_COLOUR = np.broadcast_to(np.array([200, 90, 20], np.uint8), (HEIGHT, WIDTH, 3))
ALPHA = np.full((HEIGHT, WIDTH, 1), 7, np.uint8)


def message(pixels: np.ndarray, encoding: str, *, rows: int = HEIGHT, columns: int = WIDTH, padding: int = 0,
            big: bool = False) -> Image:
    """An image message of pixels [rows of data, ...], padded and in the byte order asked for."""
    if pixels.dtype.itemsize > 1:
        pixels = pixels.astype(pixels.dtype.newbyteorder(">" if big else "<"))
    lines = [line.tobytes() + b"\xa5" * padding for line in pixels]
    found = Image(height=rows, width=columns, encoding=encoding, step=len(lines[0]), is_bigendian=big)
    found.data.frombytes(b"".join(lines))
    return found


def sixteen(pixels: np.ndarray) -> np.ndarray:
    """The 16-bit values that are these 8-bit ones exactly."""
    return pixels.astype(np.uint16) * 257


def mosaic(rgb: np.ndarray, pattern: str) -> np.ndarray:
    """What a sensor with this colour pattern sees."""
    seen = np.empty(rgb.shape[:2], np.uint8)
    for at, colour in enumerate(pattern):
        seen[at // 2 :: 2, at % 2 :: 2] = rgb[at // 2 :: 2, at % 2 :: 2, "rgb".index(colour)]
    return seen


def planes(encoding: str, luma: np.ndarray, chroma: np.ndarray, *, step: int, rows: int = 0, behind: int = 0) -> Image:
    """A message of two planes, luma padded to ``rows`` rows and chroma in proportion, and bytes behind them."""
    height, width = luma.shape
    share, wide = len(chroma) / height, chroma[0].size // width
    padded = np.full((rows or height, step), 0xA5, np.uint8)
    padded[:height, :width] = luma
    second = np.full((int((rows or height) * share), step * wide), 0x5A, np.uint8)
    second[: len(chroma), : width * wide] = chroma.reshape(len(chroma), -1)
    found = Image(height=height, width=width, encoding=encoding, step=step)
    found.data.frombytes(padded.tobytes() + second.tobytes() + b"\x77" * behind)
    return found


LUMA = np.random.default_rng(2).integers(0, 256, (HEIGHT, WIDTH), dtype=np.uint8)
HALF = np.random.default_rng(3).integers(0, 256, (HEIGHT, WIDTH // 2, 2), dtype=np.uint8)
QUARTER = HALF[::2]


def from_yuv(luma: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """ITU-R BT.601 video range to RGB, in the 20-bit fixed point that OpenCV documents."""
    y = np.maximum(luma.astype(np.int64) - 16, 0) * 1220542
    u, v = u.astype(np.int64) - 128, v.astype(np.int64) - 128
    half = 1 << 19
    channels = [y + half + 1673527 * v, y + half - 852492 * v - 409993 * u, y + half + 2116026 * u]
    return np.clip(np.stack([channel >> 20 for channel in channels], -1), 0, 255).astype(np.uint8)


def packed(first: int) -> np.ndarray:
    """4:2:2 rows with luma at byte ``first`` of each pair of bytes."""
    data = np.empty((HEIGHT, WIDTH, 2), np.uint8)
    data[..., first] = LUMA
    data[:, 0::2, 1 - first], data[:, 1::2, 1 - first] = HALF[..., 0], HALF[..., 1]
    return data


YUV422 = from_yuv(LUMA, *(np.repeat(HALF[..., i], 2, axis=1) for i in (0, 1)))
YUV420 = from_yuv(LUMA, *(np.repeat(np.repeat(QUARTER[..., i], 2, axis=0), 2, axis=1) for i in (0, 1)))
NV12 = np.concatenate([LUMA, QUARTER.reshape(HEIGHT // 2, WIDTH)])
NV21 = np.concatenate([LUMA, QUARTER[..., ::-1].reshape(HEIGHT // 2, WIDTH)])
FULL = np.random.default_rng(4).integers(0, 256, (HEIGHT, WIDTH, 2), dtype=np.uint8)
NV24 = np.concatenate([LUMA, FULL.reshape(2 * HEIGHT, WIDTH)])

TABLE: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "rgb8": (RGB, RGB),
    "bgr8": (RGB[..., ::-1], RGB),
    "rgba8": (np.concatenate([RGB, ALPHA], 2), RGB),
    "bgra8": (np.concatenate([RGB[..., ::-1], ALPHA], 2), RGB),
    "mono8": (RGB[..., 0], GREY),
    "rgb16": (sixteen(RGB), RGB),
    "bgr16": (sixteen(RGB[..., ::-1]), RGB),
    "rgba16": (sixteen(np.concatenate([RGB, ALPHA], 2)), RGB),
    "bgra16": (sixteen(np.concatenate([RGB[..., ::-1], ALPHA], 2)), RGB),
    "mono16": (sixteen(RGB[..., 0]), GREY),
    "8UC1": (RGB[..., 0], GREY),
    "8UC3": (RGB[..., ::-1], RGB),
    "8UC4": (np.concatenate([RGB[..., ::-1], ALPHA], 2), RGB),
    "yuv422": (packed(1), YUV422),
    "uyvy": (packed(1), YUV422),
    "yuv422_yuy2": (packed(0), YUV422),
    "yuyv": (packed(0), YUV422),
    "nv12": (NV12, YUV420),
    "nv21": (NV21, YUV420),
    "nv24": (NV24, from_yuv(LUMA, FULL[..., 0], FULL[..., 1])),
    **{f"bayer_{pattern}8": (mosaic(ONE_COLOUR, pattern), ONE_COLOUR) for pattern in ("rggb", "bggr", "gbrg", "grbg")},
    **{f"bayer_{pattern}16": (sixteen(mosaic(ONE_COLOUR, pattern)), ONE_COLOUR)
       for pattern in ("rggb", "bggr", "gbrg", "grbg")},
}


def test_the_table_holds_every_encoding_that_is_understood() -> None:
    assert set(TABLE) == set(LAYOUTS)


@pytest.mark.parametrize("padding", [0, 6], ids=["tight", "padded"])
@pytest.mark.parametrize("encoding", TABLE)
def test_an_encoding_gives_exactly_its_pixels(encoding: str, padding: int) -> None:
    pixels, expected = TABLE[encoding]
    found = image_to_rgb(message(pixels, encoding, padding=padding) if encoding != "nv24" else
                         planes(encoding, LUMA, FULL, step=WIDTH + padding))
    assert found.dtype == np.uint8 and found.shape == (HEIGHT, WIDTH, 3)
    np.testing.assert_array_equal(found, expected)


def with_rosbags(image: Image) -> np.ndarray:
    from rosbags.image import message_to_cvimage

    return np.asarray(message_to_cvimage(image, "rgb8"))


def with_cv_bridge(image: Image) -> np.ndarray:
    """A distribution's cv_bridge, where it is and does not end the process (as it does beside another NumPy)."""
    probe = "import numpy, sensor_msgs.msg, cv_bridge; cv_bridge.CvBridge().cv2_to_imgmsg(numpy.zeros((2, 2, 3), 'u1'))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no healthy cv_bridge here: {(done.stderr.strip().splitlines() or [done.returncode])[-1]}")
    from cv_bridge import CvBridge

    return np.asarray(CvBridge().imgmsg_to_cv2(image, "rgb8"))


@pytest.mark.parametrize(("convert", "left_out"), [
    (with_rosbags, ("8UC", "nv")),  # takes an nv12 image of six rows for one of four
    (with_cv_bridge, ("8UC", "nv", "yuyv", "uyvy")),
], ids=["rosbags-image", "cv_bridge"])
def test_what_another_library_makes_of_an_encoding_is_the_same_to_the_pixel(
        convert: Callable[[Image], Any], left_out: tuple[str, ...]) -> None:
    """Left out are the names without colours (8UC..), which others guess otherwise or refuse, and what they lack."""
    compared = [encoding for encoding in TABLE if not encoding.startswith(left_out)]
    for encoding in compared:
        pixels, expected = TABLE[encoding]
        np.testing.assert_array_equal(convert(message(pixels, encoding)), expected, err_msg=encoding)
    assert len(compared) >= 18


@pytest.mark.parametrize("encoding", [name for name, (pixels, _) in TABLE.items() if pixels.dtype == np.uint16])
def test_big_endian_pixels_are_read_as_such(encoding: str) -> None:
    pixels, expected = TABLE[encoding]
    np.testing.assert_array_equal(image_to_rgb(message(pixels, encoding, big=True)), expected)


def test_sixteen_bits_are_rounded_to_the_nearest_eight_bit_value() -> None:
    values = np.array([[0, 128, 129, 257, 40000, 65535, 1, 65406]], np.uint16)
    found = image_to_rgb(message(values, "mono16", rows=1))
    np.testing.assert_array_equal(found[0, :, 0], np.rint(values[0] / 257.0))


def test_rgb8_is_not_copied() -> None:
    image = message(RGB, "rgb8")
    assert np.shares_memory(image_to_rgb(image), np.frombuffer(image.data, np.uint8))


@pytest.mark.parametrize("encoding", ["RGB8", " rgb8 "])
def test_the_name_of_an_encoding_may_differ_in_case_and_blanks(encoding: str) -> None:
    np.testing.assert_array_equal(image_to_rgb(message(RGB, encoding)), RGB)


@pytest.mark.parametrize("encoding", ["", "rgb7", "32FC3", "yuv444", "%s%n{0}"])
def test_an_unknown_encoding_is_refused_by_name(encoding: str) -> None:
    with pytest.raises(FrameError, match="not supported; supported are rgb8, bgr8"):
        image_to_rgb(message(RGB, encoding))


@pytest.mark.parametrize("encoding", TABLE)
def test_data_cut_short_by_one_byte_is_refused(encoding: str) -> None:
    image = message(TABLE[encoding][0], encoding)
    image.data.pop()
    with pytest.raises(FrameError, match="truncated"):
        image_to_rgb(image)


def test_padding_missing_behind_the_last_row_only_is_accepted() -> None:
    image = message(RGB, "rgb8", padding=4)
    del image.data[-4:]
    np.testing.assert_array_equal(image_to_rgb(image), RGB)


@pytest.mark.parametrize(("changed", "reason"), [
    ({"height": 0}, "is empty"), ({"width": 0}, "is empty"), ({"height": 0, "width": 0}, "is empty"),
    *(({"step": step}, f"step is {step} bytes") for step in (0, 1, WIDTH * 3 - 1)),
], ids=str)
def test_an_image_without_pixels_or_with_a_step_below_its_width_is_refused(
        changed: dict[str, int], reason: str) -> None:
    image = message(RGB, "rgb8")
    for name, value in changed.items():
        setattr(image, name, value)
    with pytest.raises(FrameError, match=reason):
        image_to_rgb(image)


def test_a_step_that_splits_a_pixel_is_refused() -> None:
    with pytest.raises(FrameError, match="multiple of 2"):
        image_to_rgb(message(sixteen(RGB), "rgb16", padding=1))


@pytest.mark.parametrize("encoding", ["yuv422", "yuv422_yuy2", "nv12", "nv21"])
def test_an_odd_width_is_refused_where_colours_come_in_pairs(encoding: str) -> None:
    with pytest.raises(FrameError, match="must be even"):
        image_to_rgb(message(TABLE[encoding][0], encoding, columns=WIDTH - 1))


@pytest.mark.parametrize("encoding", ["16UC1", "32FC1"])
def test_depth_is_refused_unless_it_is_to_be_rendered(encoding: str) -> None:
    with pytest.raises(FrameError, match="depth image.*ingest.depth"):
        image_to_rgb(message(np.zeros((HEIGHT, WIDTH), np.uint16), encoding))


@pytest.mark.parametrize("big", [False, True])
def test_rendered_depth_is_bright_near_dark_far_and_black_where_nothing_was_measured(big: bool) -> None:
    depth = IngestSettings(depth="grey", depth_near=1.0, depth_far=3.0)
    metres = np.array([[0.5, 1.0, 2.0, 3.0, 9.0, 0.0, np.nan, np.inf]], np.float32)
    expected = [255, 255, 128, 1, 1, 0, 0, 0]
    found = image_to_rgb(message(metres, "32FC1", rows=1, big=big), depth)
    np.testing.assert_array_equal(found, np.repeat(np.array(expected, np.uint8)[None, :, None], 3, axis=2))
    millimetres = np.array([[500, 1000, 2000, 3000, 9000, 0, 0, 0]], np.uint16)
    np.testing.assert_array_equal(image_to_rgb(message(millimetres, "16UC1", rows=1, big=big), depth), found)


@pytest.mark.parametrize("limits", [
    {"depth": "colour"}, {"depth_near": 5.0, "depth_far": 5.0}, {"depth_near": -1.0}, {"depth_far": float("nan")},
])
def test_impossible_depth_limits_are_refused(limits: dict) -> None:
    with pytest.raises(SettingsError, match="ingest.depth"):
        IngestSettings(**limits)


@pytest.mark.parametrize(("rows", "behind"), [(16, 0), (16, 3), (32, 0), (64, 0), (6, 3), (6, 4000)])
@pytest.mark.parametrize("step", [WIDTH, WIDTH + 4, 4096])
@pytest.mark.parametrize(("encoding", "chroma"), [("nv12", QUARTER), ("nv21", QUARTER[..., ::-1]), ("nv24", FULL)])
def test_chroma_is_read_from_where_it_begins_also_behind_a_padded_luma_plane(
        encoding: str, chroma: np.ndarray, step: int, rows: int, behind: int) -> None:
    image = planes(encoding, LUMA, chroma, step=step, rows=rows, behind=behind)
    np.testing.assert_array_equal(image_to_rgb(image), TABLE[encoding][1])


@pytest.mark.parametrize("encoding", ["nv12", "nv21"])
def test_1088_rows_of_luma_for_1080_are_found(encoding: str) -> None:
    luma = np.full((1080, 64), 90, np.uint8)
    luma[1078:] = 200
    chroma = np.full((540, 32, 2), 128, np.uint8)
    chroma[:4] = (90, 200)
    tight = image_to_rgb(planes(encoding, luma, chroma, step=64))
    np.testing.assert_array_equal(image_to_rgb(planes(encoding, luma, chroma, step=64, rows=1088)), tight)


@pytest.mark.parametrize(("encoding", "rows"), [("nv12", 1628), ("nv12", 1750), ("nv21", 2000), ("nv24", 3300)])
def test_planes_whose_beginning_is_unknown_are_refused(encoding: str, rows: int) -> None:
    image = Image(height=1080, width=640, encoding=encoding, step=640)
    image.data.frombytes(bytes(640 * rows))
    with pytest.raises(FrameError, match="bytes behind its planes.*where chroma begins is unknown. Set the camera"):
        image_to_rgb(image)


def losses(values: np.ndarray, encoding: str = "mono16", value_range: str = "0 65535") -> tuple[np.ndarray, list[str]]:
    """The picture that 16-bit values become, and what is said of it."""
    said: list[str] = []
    rows, columns = values.shape[:2]
    image = message(values.astype(np.uint16), encoding, rows=rows, columns=columns)
    return image_to_rgb(image, camera=CameraSettings("front", range=value_range), warn=said.append), said


RAMP = np.linspace(0.0, 1.0, 64 * 64).reshape(64, 64)


@pytest.mark.parametrize(("low", "high", "levels"), [(0, 1023, 5), (7000, 9000, 9), (0, 4095, 17)])
@pytest.mark.parametrize("encoding", ["mono16", "rgb16", "bayer_rggb16"])
def test_16_bit_values_that_use_few_levels_are_reported_with_the_range_that_mends_it(
        encoding: str, low: int, high: int, levels: int) -> None:
    values = np.rint(low + (high - low) * RAMP)
    values = np.repeat(values[..., None], 3, axis=2) if encoding == "rgb16" else values
    picture, (text,) = losses(values, encoding)
    assert len(np.unique(picture)) == levels
    assert f"uses {levels} of 256 levels" in text and "front.range = '0 65535' maps 0 - 65535" in text
    for value_range in ("auto", text.rsplit("'", 2)[-2]):
        picture, said = losses(values, encoding, value_range)
        assert not said and len(np.unique(picture)) > 230


def test_a_range_maps_its_ends_to_black_and_white_and_clips_beyond() -> None:
    values = np.array([[0, 6999, 7000, 7100, 8000, 9000, 9001, 65535]])
    picture, _ = losses(values, value_range="7000 9000")
    np.testing.assert_array_equal(picture[0, :, 0], [0, 0, 0, 13, 128, 255, 255, 255])


def test_the_automatic_range_leaves_out_a_thousandth_of_outliers() -> None:
    values = np.rint(7000 + 2000 * RAMP)
    values[3, 5], values[40, 7] = 0, 65535
    picture, said = losses(values, value_range="auto")
    assert not said and picture[0, 10, 0] < 3 and picture[-1, -10, 0] > 252 and picture[40, 7, 0] == 255


@pytest.mark.parametrize("value_range", ["0 65535", "auto"])
@pytest.mark.parametrize("values", [np.full((8, 8), 7000), 30000 + RAMP * 200, RAMP * 65535],
                         ids=["flat", "dim", "full"])
def test_pictures_that_lose_little_are_not_reported(values: np.ndarray, value_range: str) -> None:
    assert losses(np.rint(values), value_range=value_range)[1] == []


def test_a_range_that_misses_the_values_is_reported() -> None:
    assert "uses 1 of 256 levels: its values are 700" in losses(7000 + 2000 * RAMP, value_range="0 1023")[1][0]


@pytest.mark.parametrize("value_range", ["", "full", "5", "1 2 3", "9 3", "4 4", "-1 7", "0 65536", "0.5 7", "nan inf"])
def test_an_impossible_range_is_refused_by_name(value_range: str) -> None:
    with pytest.raises(SettingsError, match=r"front.range = .*: must be auto, or two whole numbers"):
        CameraSettings("front", range=value_range)


FILES = {kind: cv2.imencode(suffix, cv2.GaussianBlur(np.tile(RGB, (20, 20, 1)), (0, 0), 5), options)[1].tobytes()
         for kind, suffix, options in (("JPEG", ".jpg", []), ("JPEG ", ".jpg", [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
                                       ("PNG", ".png", []), ("WebP", ".webp", [cv2.IMWRITE_WEBP_QUALITY, 80]))}


@pytest.mark.parametrize("encoding", ["rgb8", "yuv422_yuy2", "mono8", "nv12", "bayer_rggb8", "16UC1", "mjpeg"])
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("padded", [True, False])
def test_a_file_in_place_of_pixels_is_refused_with_its_kind_and_what_to_set(
        kind: str, encoding: str, padded: bool) -> None:
    channels = {"rgb8": 3, "yuv422_yuy2": 2, "16UC1": 2}.get(encoding, 1)
    image = Image(height=480, width=640, encoding=encoding, step=640 * channels)
    image.data.frombytes(FILES[kind].ljust(480 * 640 * 3 * padded, b"\0"))
    with pytest.raises(FrameError, match=f"holds a {kind.strip()} file.*front.transport to compressed.*mjpeg2rgb"):
        image_to_rgb(image, IngestSettings(depth="grey"), CameraSettings("front"))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([FILES[kind][:length] for kind in FILES for length in (2, 3, 4, 7)]), st.randoms())
def test_pixels_that_only_begin_like_a_file_are_a_picture(start: bytes, random: Any) -> None:
    data = (start + random.randbytes(RGB.size))[: RGB.size]
    pixels = np.frombuffer(data, np.uint8).reshape(RGB.shape)
    np.testing.assert_array_equal(image_to_rgb(message(pixels, "rgb8")), pixels)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*LAYOUTS, "16UC1", "32FC1", "nonsense"]), st.integers(0, 40), st.integers(0, 40),
       st.integers(0, 200), st.binary(max_size=2000), st.booleans())
def test_any_message_gives_a_picture_or_a_refusal(encoding: str, height: int, width: int, step: int, data: bytes,
                                                  big: bool) -> None:
    image = Image(height=height, width=width, encoding=encoding, step=step, is_bigendian=big)
    image.data.frombytes(data)
    try:
        found = image_to_rgb(image, IngestSettings(depth="grey"))
    except FrameError:
        return
    assert found.shape == (height, width, 3) and found.dtype == np.uint8
