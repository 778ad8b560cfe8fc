# SPDX-License-Identifier: Apache-2.0
"""sensor_msgs/CompressedImage -> RGB uint8 [height, width, 3], independent of the spelling of ``format``."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import cv2
import numpy as np

from ros_kvstream.errors import FrameError
from ros_kvstream.node.images import DEFAULT_INGEST, Pixels, Rgb, refuse_depth, render_depth, to_eight_bits
from ros_kvstream.node.settings import IngestSettings

if TYPE_CHECKING:
    from sensor_msgs.msg import CompressedImage

MAX_PIXELS = 1 << 26
"""Largest image that is decoded (67 megapixels); the size is checked before decoding."""
_COMPRESSED_DEPTH_HEADER = 12
"""Bytes before the PNG in a compressedDepth message: an enumeration and two floats."""
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of a frame header, which contains the size."""


def compressed_to_rgb(message: CompressedImage, ingest: IngestSettings = DEFAULT_INGEST) -> Rgb:
    """Decode a JPEG, PNG or WebP message to RGB.

    The file type is detected from the data, because drivers write "jpeg", "jpg", "rgb8; jpeg compressed bgr8",
    "image/png" or nothing into ``format``. ``format`` only distinguishes depth images from colour images. Orientation
    tags are ignored, so that pixels match the camera's calibration.

    :returns: uint8 [height, width, 3].
    :raises FrameError: another file type, truncated data, too large an image, or a depth image that is not rendered.
    """
    text = message.format.strip()
    encoding = text.split(";")[0].strip().lower()
    data = bytes(message.data)
    if "compresseddepth" in text.lower():
        refuse_depth(text[:40], ingest)
        if encoding not in ("16uc1", ""):
            raise FrameError(f"compressed depth of encoding {text[:40]!r} is not supported; 16UC1 is.")
        return render_depth(_single_depth_channel(_decode(data[_COMPRESSED_DEPTH_HEADER:], text), text), ingest)
    pixels = _decode(data, text)
    if encoding in ("16uc1", "32fc1"):
        refuse_depth(text[:40], ingest)
        return render_depth(_single_depth_channel(pixels, text), ingest)
    return _to_rgb(to_eight_bits(pixels))


def _to_rgb(pixels: Pixels) -> Rgb:
    """Convert the output of OpenCV (grey, BGR or BGRA) to RGB."""
    if pixels.ndim == 2:
        code = cv2.COLOR_GRAY2RGB
    else:
        code = cv2.COLOR_BGRA2RGB if pixels.shape[2] == 4 else cv2.COLOR_BGR2RGB
    return np.asarray(cv2.cvtColor(pixels, code), dtype=np.uint8)


def _single_depth_channel(pixels: Pixels, text: str) -> Pixels:
    if pixels.ndim != 2 or pixels.dtype != np.uint16:
        raise FrameError(f"compressed image of format {text[:40]!r} contains no 16-bit depth.")
    return pixels


def _decode(data: bytes, text: str) -> Pixels:
    """Decode to [height, width] or [height, width, 3 or 4], 8 or 16 bits, colours in OpenCV's order."""
    width, height = _size(data, text)
    if width * height > MAX_PIXELS:
        raise FrameError(f"compressed image has {width} x {height} pixels; at most {MAX_PIXELS} are decoded.")
    flags = cv2.IMREAD_IGNORE_ORIENTATION | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise FrameError(f"compressed image of format {text[:40]!r} cannot be decoded: {error.err}.") from error
    if pixels is None or pixels.size == 0 or pixels.dtype not in (np.uint8, np.uint16):
        raise FrameError(f"compressed image of format {text[:40]!r} ({len(data)} bytes) cannot be decoded.")
    return pixels


def _size(data: bytes, text: str) -> tuple[int, int]:
    """Read (width, height) from the header; raise FrameError for another file type or truncated data."""
    if data.startswith(b"\xff\xd8"):
        if data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda") or b"\xff\xda" not in data:
            raise FrameError(f"JPEG image is cut short: no end marker in {len(data)} bytes.")
        return _jpeg_size(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        if b"IEND" not in data[-64:]:
            raise FrameError(f"PNG image is cut short: no end in {len(data)} bytes.")
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP" and len(data) >= 30:
        if struct.unpack("<I", data[4:8])[0] + 8 > len(data):
            raise FrameError(f"WebP image is cut short at {len(data)} bytes.")
        return _webp_size(data)
    raise FrameError(f"compressed image of format {text[:40]!r} ({len(data)} bytes) is not JPEG, PNG or WebP.")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Read the size from the frame header of a JPEG file."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _JPEG_SIZES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        # Skip a fill byte (0xFF), or a segment with its length.
        at += 1 if marker == 0xFF else 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    raise FrameError(f"JPEG image of {len(data)} bytes has no frame header.")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Read the size from the first chunk of a WebP file (lossy, lossless or extended)."""
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack("<HH", data[26:30])
    return width & 0x3FFF, height & 0x3FFF
