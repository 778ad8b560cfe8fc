"""Qwen2.5-VL on transformers: windowed vision tower, M-RoPE in sections, positions from stamps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.layout import TimedGrids
from ros_kvstream.models.qwen2_5_vl_vision import BatchedVisionTower
from ros_kvstream.models.qwen_vl import Grid, QwenVL, open_qwen


class Qwen25VL(QwenVL):
    """Qwen2.5-VL; the whole stream is one endless video."""

    family = "qwen2_5_vl"

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded Qwen2_5_VLForConditionalGeneration, its tokenizer and its image processor."""
        super().__init__(name, model, tokenizer, image_processor, trained=trained)
        self.tokens_per_second = float(model.config.vision_config.tokens_per_second)
        self.layout = TimedGrids(len(self.prefix_ids))
        self._tower = BatchedVisionTower(model.model.visual)

    def run_tower(self, pictures: list[Tensor], grids: list[Grid]) -> list[Tensor]:
        """Pictures of one size as one batch."""
        encoded: dict[int, Tensor] = {}
        for height, width in dict.fromkeys(grids):
            members = [index for index, grid in enumerate(grids) if grid == (height, width)]
            merged = self._tower(torch.stack([pictures[index] for index in members]), height, width)
            encoded.update(zip(members, merged, strict=True))
        return [encoded[index] for index in range(len(pictures))]


def open_model(checkpoint: Checkpoint) -> Qwen25VL:
    """Load a checkpoint of this family."""
    return open_qwen(Qwen25VL, checkpoint)
