# SPDX-License-Identifier: Apache-2.0
"""JPEG, PNG and WebP files in image messages: which one it is, its size, and whether it is complete."""

from __future__ import annotations

import struct

from ros_kvstream.errors import FrameError

PNG_START = b"\x89PNG\r\n\x1a\n"
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of a frame header, which contains the size."""
_CODED = b"\0" + bytes(range(7, 247, 4))
_EXTENSION = _CODED + b"".join(bytes([0xFF, 0xD0 + number]) + _CODED for number in range(8))
"""Entropy-coded JPEG data, also behind every restart marker. The first byte completes a 0xFF before it."""


def file_size(data: bytes, text: str) -> tuple[int, int]:
    """Read (width, height) from the header; raise FrameError for another file type or truncated data.

    :param text: format of the message, for the error.
    """
    if data.startswith(b"\xff\xd8"):
        if data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda") or b"\xff\xda" not in data:
            raise FrameError(f"JPEG image is cut short: no end marker in {len(data)} bytes.")
        height, width = struct.unpack_from(">HH", data, _jpeg_frame_header(data) + 5)
        return width, height
    if data.startswith(PNG_START) and len(data) >= 24:
        if b"IEND" not in data[-64:]:
            raise FrameError(f"PNG image is cut short: no end in {len(data)} bytes.")
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP" and len(data) >= 30:
        if struct.unpack("<I", data[4:8])[0] + 8 > len(data):
            raise FrameError(f"WebP image is cut short at {len(data)} bytes.")
        return _webp_size(data)
    raise FrameError(f"compressed image of format {text[:40]!r} ({len(data)} bytes) is not JPEG, PNG or WebP.")


def file_among_pixels(data: memoryview) -> str:
    """Return the type of the file that raw image data holds, such as 'JPEG'; empty for pixels.

    At least 8 bytes of fixed values must agree, for JPEG a chain of segments up to a valid frame header. Pixels agree
    by chance in fewer than one of 10^15 images.
    """
    start = bytes(data[:16])
    if start.startswith(PNG_START + b"\0\0\0\rIHDR"):
        return "PNG"
    if start.startswith(b"RIFF") and start[8:].startswith(b"WEBPVP8"):
        return "WebP"
    if not start.startswith(b"\xff\xd8\xff"):
        return ""
    content = bytes(data)
    try:
        length, bits, height, width, components = struct.unpack_from(">HBHHB", content, _jpeg_frame_header(content) + 2)
    except (FrameError, struct.error):
        return ""
    valid = length == 8 + 3 * components and bits in (8, 12) and 1 <= components <= 4 and height > 0 < width
    return "JPEG" if valid else ""


def extended(data: bytes) -> bytes:
    """Return a JPEG file with additional data before its end marker.

    A decoder ignores the addition if the picture is complete, and otherwise decodes it in place of missing data.
    """
    end = data.rfind(b"\xff\xd9")
    return data[:end] + _EXTENSION + data[end:]


def _jpeg_frame_header(data: bytes) -> int:
    """Offset of the frame header of a JPEG file; raises FrameError where there is none."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _JPEG_SIZES:
            return at
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
