# SPDX-License-Identifier: Apache-2.0
"""sensor_msgs/CompressedImage -> RGB uint8 [height, width, 3], independent of the spelling of ``format``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from ros_kvstream.errors import FrameError
from ros_kvstream.node.image_files import extended, file_size
from ros_kvstream.node.images import (
    DEFAULT_CAMERA,
    DEFAULT_INGEST,
    Pixels,
    Rgb,
    is_picture_encoding,
    refuse_depth,
    render_depth,
    to_eight_bits,
)
from ros_kvstream.node.settings import CameraSettings, IngestSettings
from ros_kvstream.records import Note, ignore

if TYPE_CHECKING:
    from sensor_msgs.msg import CompressedImage

MAX_PIXELS = 1 << 26
"""Largest image that is decoded (67 megapixels); the size is checked before decoding."""
_COMPRESSED_DEPTH_HEADER = 12
"""Bytes before the PNG in a compressedDepth message: an enumeration and two floats."""


def compressed_to_rgb(message: CompressedImage, ingest: IngestSettings = DEFAULT_INGEST,
                      camera: CameraSettings = DEFAULT_CAMERA, warn: Note = ignore) -> Rgb:
    """Decode a JPEG, PNG or WebP message to RGB.

    The file type is detected from the data, because drivers write "jpeg", "jpg", "rgb8; jpeg compressed bgr8",
    "image/png" or nothing into ``format``. ``format`` only distinguishes depth images from others: one channel of 16
    bits is depth unless ``format`` begins with the encoding of a picture, such as mono16. Orientation tags are ignored,
    so that pixels match the camera's calibration.

    :param ingest, camera, warn: as for ``image_to_rgb``.
    :returns: uint8 [height, width, 3].
    :raises FrameError: another file type, truncated data, too large an image, or a depth image that is not rendered.
    """
    text = message.format.strip()
    encoding = text.split(";")[0].strip().lower()
    data = bytes(message.data)
    if "compresseddepth" in text.lower():
        refuse_depth(text[:40], ingest)
        if encoding not in ("16uc1", "mono16", "") and not encoding.startswith("compresseddepth"):
            raise FrameError(f"compressed depth of encoding {text[:40]!r} is not supported; 16UC1 is.")
        return render_depth(_single_depth_channel(_decode(data[_COMPRESSED_DEPTH_HEADER:], text), text), ingest)
    pixels = _decode(data, text)
    if encoding in ("16uc1", "32fc1"):
        refuse_depth(text[:40], ingest)
        return render_depth(_single_depth_channel(pixels, text), ingest)
    if pixels.ndim == 2 and pixels.dtype == np.uint16 and not is_picture_encoding(encoding):
        refuse_depth(f"one channel of 16 bits with format {text[:40]!r}", ingest,
                     " If it is a picture, let the publisher write 'mono16; png compressed' into format.")
        return render_depth(pixels, ingest)
    return _to_rgb(to_eight_bits(pixels, camera, warn))


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
    width, height = file_size(data, text)
    if width * height > MAX_PIXELS:
        raise FrameError(f"compressed image has {width} x {height} pixels; at most {MAX_PIXELS} are decoded.")
    try:
        pixels = _decoded(data)
        incomplete = pixels is not None and data.startswith(b"\xff\xd8") and _lacks_rows(pixels, data)
    except cv2.error as error:
        raise FrameError(f"compressed image of format {text[:40]!r} cannot be decoded: {error.err}.") from error
    if pixels is None or pixels.size == 0 or pixels.dtype not in (np.uint8, np.uint16):
        raise FrameError(f"compressed image of format {text[:40]!r} ({len(data)} bytes) cannot be decoded.")
    if incomplete:
        raise FrameError(f"JPEG image of {width} x {height} pixels is cut short: its {len(data)} bytes end before its "
                         "last rows. Check the buffer size of the camera driver and whatever relays the images.")
    return pixels


def _lacks_rows(pixels: Pixels, data: bytes) -> bool:
    """Whether a JPEG file with an end marker lacks data, which the decoder replaces by grey rows.

    A complete picture that ends in this grey decodes to the same pixels when data is added.
    """
    if (pixels[-1, -8:] != 128).any():
        return False
    again = _decoded(extended(data))
    return again is not None and again.shape == pixels.shape and bool((again != pixels).any())


def _decoded(data: bytes) -> Any:
    flags = cv2.IMREAD_IGNORE_ORIENTATION | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR
    return cv2.imdecode(np.frombuffer(data, np.uint8), flags)
