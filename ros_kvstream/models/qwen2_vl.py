# SPDX-License-Identifier: Apache-2.0
"""Qwen2-VL on transformers: M-RoPE in sections; a frame is one step of time, whenever it was recorded."""

from __future__ import annotations

from torch import Tensor

from ros_kvstream.models.qwen_vl import Grid, QwenVL
from ros_kvstream.models.transformers_compat import run_vision_tower


class Qwen2VL(QwenVL):
    """Qwen2-VL; the whole stream is one endless video.

    The family was trained with one temporal position per grid and has no measure of time, so positions count frames.
    """

    family = "qwen2_vl"

    def run_tower(self, pictures: list[Tensor], grids: list[Grid]) -> list[Tensor]:
        """Run all pictures in one pass."""
        merged, _ = run_vision_tower(self.network.model.visual, pictures, grids)
        return self.split(merged, grids)
