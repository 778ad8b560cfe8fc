# SPDX-License-Identifier: Apache-2.0
"""sensor_msgs/Image -> RGB uint8 [height, width, 3]: one table of encodings, at most one copy of the pixels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import FrameError
from ros_kvstream.node.image_files import file_among_pixels
from ros_kvstream.node.settings import CameraSettings, IngestSettings, value_range
from ros_kvstream.records import Note, ignore

if TYPE_CHECKING:
    from sensor_msgs.msg import Image

Pixels = NDArray[Any]
Rgb = NDArray[np.uint8]
DEFAULT_INGEST = IngestSettings()
DEFAULT_CAMERA = CameraSettings("camera")
FEW_LEVELS = 32
"""Fewer of the 256 levels in a 16-bit picture are reported."""
ENOUGH_VALUES = 256
"""A 16-bit picture whose values span fewer loses little; it is not reported."""
OUTLIERS = 1e-3
"""Share of the values of a 16-bit picture that ``auto`` clips at either end."""
LONGEST_TAIL = 4096
"""Most bytes of a buffer that are ignored behind the planes: one memory page."""
ROW_ALIGNMENTS = (16, 32, 64)
"""Drivers pad a luma plane to a multiple of one of these, in rows."""


@dataclass(frozen=True)
class Layout:
    """Memory layout of one encoding and its conversion to RGB."""

    dtype: type[np.generic]
    channels: int
    to_rgb: Callable[[Pixels], Pixels]
    """[height, width, channels] (no last axis when 1) -> [height, width, 3], of the same type."""
    rows: float = 1.0
    """Rows of data per image row: 1.5 for an image with a second plane in 4:2:0, 3 in 4:4:4."""
    even_width: bool = False
    even_height: bool = False


def _colour(code: int) -> Callable[[Pixels], Pixels]:
    return lambda pixels: cv2.cvtColor(pixels, code)


def _as_is(pixels: Pixels) -> Pixels:
    return np.ascontiguousarray(pixels)


def _colour_layouts() -> dict[str, Layout]:
    layouts: dict[str, Layout] = {}
    depths: tuple[tuple[str, type[np.generic]], ...] = (("8", np.uint8), ("16", np.uint16))
    for bits, dtype in depths:
        layouts |= {
            f"rgb{bits}": Layout(dtype, 3, _as_is),
            f"bgr{bits}": Layout(dtype, 3, _colour(cv2.COLOR_BGR2RGB)),
            f"rgba{bits}": Layout(dtype, 4, _colour(cv2.COLOR_RGBA2RGB)),
            f"bgra{bits}": Layout(dtype, 4, _colour(cv2.COLOR_BGRA2RGB)),
            f"mono{bits}": Layout(dtype, 1, _colour(cv2.COLOR_GRAY2RGB)),
            # OpenCV names a Bayer pattern by the second and third pixel of its second row, ROS by its first row.
            f"bayer_rggb{bits}": Layout(dtype, 1, _colour(cv2.COLOR_BayerBG2RGB)),
            f"bayer_bggr{bits}": Layout(dtype, 1, _colour(cv2.COLOR_BayerRG2RGB)),
            f"bayer_gbrg{bits}": Layout(dtype, 1, _colour(cv2.COLOR_BayerGR2RGB)),
            f"bayer_grbg{bits}": Layout(dtype, 1, _colour(cv2.COLOR_BayerGB2RGB)),
        }
    return layouts


def _video_layouts() -> dict[str, Layout]:
    uyvy = Layout(np.uint8, 2, _colour(cv2.COLOR_YUV2RGB_UYVY), even_width=True)
    yuyv = Layout(np.uint8, 2, _colour(cv2.COLOR_YUV2RGB_YUYV), even_width=True)
    nv12 = Layout(np.uint8, 1, _colour(cv2.COLOR_YUV2RGB_NV12), rows=1.5, even_width=True, even_height=True)
    nv21 = Layout(np.uint8, 1, _colour(cv2.COLOR_YUV2RGB_NV21), rows=1.5, even_width=True, even_height=True)
    nv24 = Layout(np.uint8, 1, _nv24_to_rgb, rows=3.0)
    return {"yuv422": uyvy, "uyvy": uyvy, "yuv422_yuy2": yuyv, "yuyv": yuyv, "nv12": nv12, "nv21": nv21, "nv24": nv24}


def _nv24_to_rgb(pixels: Pixels) -> Pixels:
    """Convert as uyvy does, every pixel doubled so that it has chroma of its own."""
    height, width = pixels.shape[0] // 3, pixels.shape[1]
    luma, chroma = pixels[:height], pixels[height:].reshape(height, width, 2)
    doubled = np.stack([chroma[..., 0], luma, chroma[..., 1], luma], axis=-1).reshape(height, 2 * width, 2)
    return np.ascontiguousarray(cv2.cvtColor(doubled, cv2.COLOR_YUV2RGB_UYVY)[:, ::2])


LAYOUTS: dict[str, Layout] = {
    **_colour_layouts(),
    **_video_layouts(),
    # Plain OpenCV types do not name colours: one channel is grey, three and four are BGR and BGRA as in OpenCV.
    "8UC1": Layout(np.uint8, 1, _colour(cv2.COLOR_GRAY2RGB)),
    "8UC3": Layout(np.uint8, 3, _colour(cv2.COLOR_BGR2RGB)),
    "8UC4": Layout(np.uint8, 4, _colour(cv2.COLOR_BGRA2RGB)),
}
"""Supported colour and grey encodings, by their sensor_msgs names."""

DEPTH_LAYOUTS: dict[str, Layout] = {
    "16UC1": Layout(np.uint16, 1, _as_is),
    "32FC1": Layout(np.float32, 1, _as_is),
}
"""Supported depth encodings, rejected or rendered according to ``IngestSettings.depth`` (REP 118)."""

_ALIASES = {name.lower(): name for name in (*LAYOUTS, *DEPTH_LAYOUTS)} | {"8uc": "8UC1"}


def is_picture_encoding(text: str) -> bool:
    """Whether this is the name of a supported encoding that is not depth."""
    return _ALIASES.get(text.strip().lower()) in LAYOUTS


def image_to_rgb(message: Image, ingest: IngestSettings = DEFAULT_INGEST, camera: CameraSettings = DEFAULT_CAMERA,
                 warn: Note = ignore) -> Rgb:
    """Convert a raw image message to RGB.

    For rgb8 without row padding the result is a view of the message's data; other 8-bit encodings are copied once.

    :param message: image with any encoding, step and byte order; :param ingest: handling of depth images.
    :param camera: name and range of 16-bit values; :param warn: is called with what is lost in a 16-bit picture.
    :returns: uint8 [height, width, 3].
    :raises FrameError: an unsupported encoding, a depth image that is not rendered, or an inconsistent size.
    """
    if kind := file_among_pixels(memoryview(message.data)):
        raise FrameError(f"image of encoding {message.encoding[:40]!r} holds a {kind} file instead of pixels. Publish "
                         f"it as sensor_msgs/CompressedImage and set {camera.name}.transport to compressed, or let the "
                         "camera driver decode it (usb_cam: pixel_format mjpeg2rgb).")
    name = _ALIASES.get(message.encoding.strip().lower())
    if name is None:
        raise FrameError(f"image encoding {message.encoding[:40]!r} is not supported; supported are "
                         + ", ".join((*LAYOUTS, *DEPTH_LAYOUTS)) + ".")
    if name in DEPTH_LAYOUTS:
        refuse_depth(name, ingest)
        return render_depth(_pixels(message, name, DEPTH_LAYOUTS[name]), ingest)
    layout = LAYOUTS[name]
    return to_eight_bits(layout.to_rgb(_pixels(message, name, layout)), camera, warn)


def _pixels(message: Image, name: str, layout: Layout) -> Pixels:
    """View the data as [rows, width, channels] in native byte order; raise FrameError when the sizes do not fit."""
    height, width, step = int(message.height), int(message.width), int(message.step)
    item = np.dtype(layout.dtype)
    row_bytes = width * layout.channels * item.itemsize
    rows = int(height * layout.rows)
    if height == 0 or width == 0:
        raise FrameError(f"image of {width} x {height} pixels is empty.")
    if (layout.even_width and width % 2) or (layout.even_height and height % 2):
        raise FrameError(f"image of {width} x {height} pixels cannot be {name}: "
                         "the size must be even.")
    if step < row_bytes or step % item.itemsize:
        raise FrameError(f"image step is {step} bytes; {width} pixels of {name} need {row_bytes}"
                         + (f" and a multiple of {item.itemsize}." if step >= row_bytes else "."))
    needed = step * (rows - 1) + row_bytes  # some drivers omit the padding of the last row
    if len(message.data) < needed:
        raise FrameError(f"image data is truncated: {len(message.data)} of {needed} bytes for "
                         f"{width} x {height} {name}.")
    if layout.rows > 1:
        return _planes(message, name, layout)
    shape: tuple[int, ...] = (rows, width) if layout.channels == 1 else (rows, width, layout.channels)
    strides = (step, layout.channels * item.itemsize, item.itemsize)[: len(shape)]
    native = item.itemsize == 1 or bool(message.is_bigendian) == (sys.byteorder == "big")
    stored = item if native else item.newbyteorder("S")
    pixels: Pixels = np.ndarray(shape, stored, buffer=memoryview(message.data), strides=strides)
    return pixels if native else pixels.astype(item)


def _planes(message: Image, name: str, layout: Layout) -> Pixels:
    """Join the luma and chroma planes to [rows, width]; the length of the data shows where padded planes begin.

    :raises FrameError: when the length fits neither adjacent planes nor ones with ROW_ALIGNMENTS.
    """
    height, width, step = int(message.height), int(message.width), int(message.step)
    data = np.frombuffer(message.data, np.uint8)
    wide = 1 if layout.rows < 2 else 2  # a row of chroma has as many bytes as this many of luma

    def unused(luma_rows: int) -> int:
        """Bytes behind the last row of chroma, which need not have the padding of the others."""
        return len(data) - int(step * luma_rows * layout.rows) + wide * (step - width)

    aligned = {-(-height // rows) * rows for rows in ROW_ALIGNMENTS} - {height}
    padded = [rows for rows in aligned if 0 <= unused(rows) < wide * step]
    if not padded and unused(height) >= wide * (step - width) + max(wide * step, LONGEST_TAIL):
        raise FrameError(f"{name} image of {width} x {height} pixels has {unused(height)} bytes behind its planes. "
                         "This fits no padding to 16, 32 or 64 rows: where chroma begins is unknown. Set the camera "
                         "driver to publish planes without padding, or rgb8.")
    if wide == 1 and not padded:
        return np.ndarray((int(height * layout.rows), width), np.uint8, data, strides=(step, 1))
    start = step * (padded[0] if padded else height)
    luma = np.ndarray((height, width), np.uint8, data, strides=(step, 1))
    chroma_rows = int(height * (layout.rows - 1)) // wide
    chroma = np.ndarray((chroma_rows, wide * width), np.uint8, data, start, (wide * step, 1))
    return np.concatenate([luma, chroma.reshape(-1, width)])


def to_eight_bits(pixels: Pixels, camera: CameraSettings = DEFAULT_CAMERA, warn: Note = ignore) -> Rgb:
    """Scale 16-bit pixels to 8 bits, rounded; 8-bit pixels pass unchanged.

    :param camera: its range is mapped to 0 - 255; the default 0 - 65535 gives what cv_bridge gives.
    :param warn: is called when most levels of the result are unused although the values differ enough.
    """
    if pixels.dtype == np.uint8:
        return pixels
    low, high = value_range(camera) or _values_of(pixels)
    scaled = pixels if (low, high) == (0, 65535) else np.clip(pixels, low, high) - np.uint16(low)
    found = np.asarray(cv2.convertScaleAbs(scaled, alpha=255.0 / max(1, high - low)), dtype=np.uint8)
    levels = np.count_nonzero(cv2.calcHist([found.reshape(-1, 1)], [0], None, [256], [0, 256]))
    if levels < FEW_LEVELS:
        first, last = _values_of(pixels)
        if last - first >= ENOUGH_VALUES:
            warn(f"the 16-bit picture uses {levels} of 256 levels: its values are {first} - {last}, and "
                 f"{camera.name}.range = {camera.range!r} maps {low} - {high}. Set it to 'auto' or '{first} {last}'.")
    return found


def _values_of(pixels: Pixels) -> tuple[int, int]:
    """Smallest and largest value of a 16-bit picture without OUTLIERS."""
    counts = cv2.calcHist([pixels.reshape(-1, 1)], [0], None, [65536], [0, 65536])
    below = np.cumsum(counts, dtype=np.float64)
    few = OUTLIERS * pixels.size
    return int(np.searchsorted(below, few, "right")), int(np.searchsorted(below, below[-1] - few))


def refuse_depth(encoding: str, ingest: IngestSettings, remedy: str = "") -> None:
    """Raise FrameError unless depth images are rendered."""
    if ingest.depth == "refuse":
        raise FrameError(f"{encoding} is a depth image; set ingest.depth to 'grey' to render it.{remedy}")


def render_depth(pixels: Pixels, ingest: IngestSettings) -> Rgb:
    """Render depth [height, width] as grey RGB: near is white, far is dark, no measurement (0, NaN, inf) is black.

    :param pixels: uint16 millimetres or float32 metres.
    """
    metres = pixels.astype(np.float32) * (np.float32(1e-3) if pixels.dtype == np.uint16 else np.float32(1.0))
    measured = np.isfinite(metres) & (metres > 0.0)
    near, far = ingest.depth_near, ingest.depth_far
    share = np.clip((np.where(measured, metres, far) - near) / (far - near), 0.0, 1.0)
    grey = np.where(measured, np.rint(255.0 - 254.0 * share), 0.0).astype(np.uint8)
    return np.asarray(cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB), dtype=np.uint8)
