"""The least time that the machine could take: work over measured matrix rate, bytes over measured bandwidth."""

from __future__ import annotations

import torch

from benchmarks import device_clock
from benchmarks.device_clock import milliseconds
from benchmarks.ingest_timing import FRAME_TOKENS, SIDE_PATCHES, IngestShape

MATRIX_SIDE = 2048
COPY_BYTES = 1 << 28


def matrix_rate(shape: IngestShape) -> float:
    """Floating-point operations per second of a square matrix product in the benchmark's type."""
    work = torch.randn(MATRIX_SIDE, MATRIX_SIDE, device=shape.device).to(shape.dtype)
    out = torch.empty_like(work)
    best = min(milliseconds(lambda: torch.matmul(work, work, out=out), shape.device) for _ in range(5))
    return 2e3 * MATRIX_SIDE**3 / best


def copy_bandwidth(shape: IngestShape) -> float:
    """Bytes per second of a large copy, read and written bytes both counted."""
    return device_clock.copy_bandwidth(torch.zeros(COPY_BYTES // 4, device=shape.device), shape.device)


def vision_operations(shape: IngestShape) -> float:
    """Multiplications and additions of one frame through the vision blocks, patch embedding and merger."""
    patches, hidden, inner = SIDE_PATCHES**2, 1280, 3420
    linear = 4 * hidden * hidden + 3 * hidden * inner
    window = 64  # patches in a window of 112 pixels
    attended = [patches if block == shape.blocks - 1 else window for block in range(shape.blocks)]
    attention = sum(2 * keys * hidden for keys in attended)
    merger = FRAME_TOKENS * (5120 * 5120 + 5120 * 2048)
    return 2.0 * (patches * (1176 * hidden + shape.blocks * linear + attention) + merger)


def language_operations(shape: IngestShape, tokens: int, slots: int) -> float:
    """Multiplications and additions of a chunk through the language-model layers."""
    hidden, inner, key_width = 2048, 11008, 256
    linear = 2 * hidden * hidden + 2 * hidden * key_width + 3 * hidden * inner
    return 2.0 * shape.layers * tokens * (linear + 2 * (slots + tokens) * hidden)


def decode_bytes(shape: IngestShape, slots: int) -> float:
    """Bytes that one decode step must read: all weights of the layers, and keys and values."""
    hidden, inner, key_width = 2048, 11008, 256
    weights = 2 * hidden * hidden + 2 * hidden * key_width + 3 * hidden * inner
    return float(shape.layers * (weights + 2 * slots * key_width) * shape.dtype.itemsize)
