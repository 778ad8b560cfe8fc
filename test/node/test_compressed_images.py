# SPDX-License-Identifier: Apache-2.0
"""Compressed images: by content, whatever the driver wrote into ``format``; damaged ones are refused."""

from __future__ import annotations

import struct
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running_node import compressed

from ros_kvstream.errors import FrameError
from ros_kvstream.node.compressed_images import MAX_PIXELS, compressed_to_rgb
from ros_kvstream.node.settings import CameraSettings, IngestSettings

RGB = np.random.default_rng(1).integers(0, 256, (24, 32, 3), dtype=np.uint8)
SMOOTH = cv2.GaussianBlur(RGB, (0, 0), 5)


def encode(kind: str, rgb: np.ndarray, *options: int) -> bytes:
    pixels = rgb[..., ::-1] if rgb.ndim == 3 else rgb
    return cv2.imencode(f".{kind}", np.ascontiguousarray(pixels), list(options))[1].tobytes()


JPEG, PNG = encode("jpg", SMOOTH, cv2.IMWRITE_JPEG_QUALITY, 95), encode("png", RGB)
WEBP = encode("webp", SMOOTH, cv2.IMWRITE_WEBP_QUALITY, 95)
WEBP_LOSSLESS = encode("webp", RGB, cv2.IMWRITE_WEBP_QUALITY, 101)
GREY_JPEG = encode("jpg", SMOOTH[..., 0], cv2.IMWRITE_JPEG_QUALITY, 95)
PROGRESSIVE = encode("jpg", SMOOTH, cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
DEPTH = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) * 10
FORMATS = ["jpeg", "jpg", "JPEG", "png", "image/jpeg", "", "rgb8; jpeg compressed bgr8",
           "bgr8; jpeg compressed bgr8", "rgb8; png compressed bgr8", "mono8; jpeg compressed ", "webp",
           "bayer_rggb8; jpeg compressed bgr8", "%n%s{}"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("data", "expected"), [(PNG, RGB), (WEBP_LOSSLESS, RGB)], ids=["png", "webp"])
def test_lossless_pictures_are_exact_whatever_the_format_string(data: bytes, expected: np.ndarray, form: str) -> None:
    np.testing.assert_array_equal(compressed_to_rgb(compressed(data, 1.0, form)), expected)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("data", [JPEG, WEBP, PROGRESSIVE], ids=["jpeg", "webp", "progressive"])
def test_lossy_pictures_have_their_colours_in_the_right_order(data: bytes, form: str) -> None:
    found = compressed_to_rgb(compressed(data, 1.0, form)).astype(int)
    assert np.abs(found - SMOOTH).mean() < 4 < np.abs(found - SMOOTH[..., ::-1]).mean()


def test_grey_pictures_become_three_equal_channels() -> None:
    found = compressed_to_rgb(compressed(GREY_JPEG, 1.0))
    assert found.shape == (24, 32, 3) and (found == found[..., :1]).all()


@pytest.mark.parametrize(("pixels", "form", "expected"), [
    (RGB[..., 0].astype(np.uint16) * 257, "mono16; png compressed ", np.repeat(RGB[..., :1], 3, axis=2)),
    (np.concatenate([np.full_like(RGB[..., :1], 9), RGB], axis=2), "png", RGB),
], ids=["sixteen bits are scaled as in a raw image", "transparency is dropped"])
def test_every_kind_of_png_becomes_eight_bit_rgb(pixels: np.ndarray, form: str, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(compressed_to_rgb(compressed(encode("png", pixels), 1.0, form)), expected)


@pytest.mark.parametrize("data", [JPEG, PNG, WEBP, PROGRESSIVE], ids=["jpeg", "png", "webp", "progressive"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.95])
def test_a_picture_cut_short_is_refused(data: bytes, share: float) -> None:
    with pytest.raises(FrameError):
        compressed_to_rgb(compressed(data[: int(share * len(data))], 1.0))


def test_zeros_behind_a_jpeg_are_accepted() -> None:
    np.testing.assert_array_equal(compressed_to_rgb(compressed(JPEG + b"\0" * 500, 1.0)),
                                  compressed_to_rgb(compressed(JPEG, 1.0)))


@pytest.mark.parametrize("form", ["h264", "ffmpeg", "zstd"])
def test_what_is_no_picture_is_refused_with_its_format(form: str) -> None:
    with pytest.raises(FrameError, match=f"'{form}'.*is not JPEG, PNG or WebP"):
        compressed_to_rgb(compressed(b"\0\0\0\1\x67" * 30, 1.0, form))


def test_a_small_file_that_claims_a_huge_picture_is_refused_before_decoding() -> None:
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    data = PNG[:8] + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + PNG[33:]
    with pytest.raises(FrameError, match=f"60000 x 60000 pixels; at most {MAX_PIXELS}"):
        compressed_to_rgb(compressed(data, 1.0, "png"))


HALF_KINDS = {
    "baseline": [], "optimized": [cv2.IMWRITE_JPEG_OPTIMIZE, 1], "restarts": [cv2.IMWRITE_JPEG_RST_INTERVAL, 4]}


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("options", HALF_KINDS.values(), ids=HALF_KINDS)
@pytest.mark.parametrize("grey", [False, True])
def test_half_a_jpeg_with_an_end_mark_is_refused(options: list[int], share: float, grey: bool) -> None:
    scene = cv2.resize(SMOOTH, (330, 250))
    data = encode("jpg", scene[..., 0] if grey else scene, *options)
    for end in range(int(share * len(data)), int(share * len(data)) + 40):
        with pytest.raises(FrameError, match="JPEG image of 330 x 250 pixels is cut short: .* Check the"):
            compressed_to_rgb(compressed(data[:end] + b"\xff\xd9", 1.0))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1), st.integers(20, 100), st.booleans(),
       st.sampled_from([*HALF_KINDS.values(), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]]),
       st.sampled_from(["noise", "grey", "end"]))
def test_no_complete_jpeg_is_refused_as_half_of_one(height: int, width: int, seed: int, quality: int, colour: bool,
                                                    options: list[int], kind: str) -> None:
    """Also those that are, or end in, the grey of missing data."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind != "noise":
        pixels[0 if kind == "grey" else height // 2 :] = 128
    data = encode("jpg", pixels if colour else pixels[..., 0], cv2.IMWRITE_JPEG_QUALITY, quality, *options)
    for behind in (b"", b"\0" * 100, data[len(data) // 2 :]):  # a driver's buffer holds the end of an earlier picture
        found = compressed_to_rgb(compressed(data + behind, 1.0))
        expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", ["png", "", "image/png", "16UC1; png compressed 16UC1", "png compressed"])
def test_one_channel_of_16_bits_is_depth_unless_a_picture_encoding_is_declared(form: str) -> None:
    message = compressed(encode("png", DEPTH), 1.0, form)
    with pytest.raises(FrameError, match="is a depth image; set ingest.depth"):
        compressed_to_rgb(message)
    found = compressed_to_rgb(message, IngestSettings(depth="grey", depth_near=1.0, depth_far=5.0))
    assert found[0, 0, 0] == 0 and found[3, 4, 0] == 255 and found[-1, -1, 0] == 1


@pytest.mark.parametrize("form", ["mono16; png compressed ", "mono16"])
def test_a_declared_16_bit_picture_of_few_levels_is_reported_and_its_range_mapped(form: str) -> None:
    message = compressed(encode("png", np.linspace(300, 5000, 24 * 32).astype(np.uint16).reshape(24, 32)), 1.0, form)
    said: list[str] = []
    dark = compressed_to_rgb(message, warn=said.append)
    assert dark.max() < 20 and "uses 19 of 256 levels" in said[0]
    picture = compressed_to_rgb(message, camera=CameraSettings("front", range="300 5000"), warn=said.append)
    assert len(said) == 1 and len(np.unique(picture)) > 230


@pytest.mark.parametrize("form", ["16UC1; compressedDepth png", "16UC1; compressedDepth", "compressedDepth",
                                  "compressedDepth png", "; compressedDepth", "mono16; compressedDepth png"])
def test_compressed_depth_is_refused_or_rendered(form: str) -> None:
    message = compressed(b"\0" * 12 + encode("png", DEPTH), 1.0, form)
    with pytest.raises(FrameError, match="ingest.depth"):
        compressed_to_rgb(message)
    found = compressed_to_rgb(message, IngestSettings(depth="grey", depth_near=1.0, depth_far=5.0))
    assert found[0, 0, 0] == 0 and found[3, 4, 0] == 255 and found[-1, -1, 0] == 1


def test_depth_sent_as_a_plain_picture_is_refused_as_depth() -> None:
    with pytest.raises(FrameError, match="ingest.depth"):
        compressed_to_rgb(compressed(encode("png", DEPTH), 1.0, "16UC1; png compressed 16UC1"))


def test_float_depth_compressed_is_refused_by_name() -> None:
    message = compressed(b"\0" * 12 + encode("png", DEPTH), 1.0, "32FC1; compressedDepth png")
    with pytest.raises(FrameError, match="32FC1; compressedDepth"):
        compressed_to_rgb(message, IngestSettings(depth="grey"))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([JPEG, PNG, WEBP]), st.integers(0, 400), st.binary(max_size=40), st.text(max_size=30))
def test_any_damage_gives_a_picture_or_a_refusal(data: bytes, at: int, change: bytes, form: str) -> None:
    damaged = data[:at] + change + data[at + len(change) :]
    try:
        found = compressed_to_rgb(compressed(damaged, 1.0, form))
    except FrameError:
        return
    assert found.ndim == 3 and found.shape[2] == 3 and found.dtype == np.uint8
