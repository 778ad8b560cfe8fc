"""Qwen2-VL on transformers: M-RoPE in sections, where a frame is one step of time, whenever it was seen."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.layout import TimedGrids
from ros_kvstream.models.qwen_vl import Grid, QwenVL, library_tower, open_qwen


class Qwen2VL(QwenVL):
    """Qwen2-VL; the whole stream is one endless video.

    The family was trained with one temporal position a grid and has no measure of time, so the clock counts frames.
    """

    family = "qwen2_vl"

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded Qwen2VLForConditionalGeneration, its tokenizer and its image processor."""
        super().__init__(name, model, tokenizer, image_processor, trained=trained)
        self.layout = TimedGrids(len(self.prefix_ids))

    def run_tower(self, pictures: list[Tensor], grids: list[Grid]) -> list[Tensor]:
        """All pictures in one pass."""
        merged, _ = library_tower(self.network.model.visual, pictures, grids)
        return list(merged.split([rows * columns // self._merge**2 for rows, columns in grids]))


def open_model(checkpoint: Checkpoint) -> Qwen2VL:
    """Load a checkpoint of this family."""
    return open_qwen(Qwen2VL, checkpoint)
