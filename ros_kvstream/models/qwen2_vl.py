# SPDX-License-Identifier: Apache-2.0
"""Qwen2-VL on transformers: M-RoPE in sections; a frame is one step of time, whenever it was recorded."""

from __future__ import annotations

from ros_kvstream.models.qwen_vl import QwenVL


class Qwen2VL(QwenVL):
    """Qwen2-VL; the whole stream is one endless video.

    The family was trained with one temporal position per grid and has no measure of time, so positions count frames.
    """

    family = "qwen2_vl"
    trained_positions = 16_384  # tokens of the longest videos in training, arXiv 2409.12191, section 2.1
