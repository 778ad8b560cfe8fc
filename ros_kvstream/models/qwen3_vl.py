"""Qwen3-VL on transformers: interleaved M-RoPE, each frame with its time as text, DeepStack features.

A frame is ``<1.5 seconds><|vision_start|>`` + grid + ``<|vision_end|>``; text and grids follow each other in the
sequence. Features of some tower layers are added to the hidden states of the first language layers at visual tokens:
they travel beside the embeddings, [tokens, (1 + levels) * hidden].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ros_kvstream.errors import ModelError
from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.layout import SequencedGrids
from ros_kvstream.models.network import rotary_of
from ros_kvstream.models.qwen_vl import Grid, QwenVL, interleaved_axes, library_tower, open_qwen, sections_of

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
MOST_SECONDS = 9_999_999.9
"""Latest time that is written (115 days); then the count starts again."""


class Qwen3VL(QwenVL):
    """Qwen3-VL, dense models."""

    family = "qwen3_vl"

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded Qwen3VLForConditionalGeneration, its tokenizer and its image processor."""
        super().__init__(name, model, tokenizer, image_processor, trained=trained)
        embedding = self.language_model.rotary_emb
        axes = interleaved_axes(sections_of(embedding))
        self.rotary = rotary_of(embedding, self.device, axes, relative=True)
        self.layout = SequencedGrids()
        self.frame_text_tokens = max(sum(map(len, self.frame_text(t))) for t in (MOST_SECONDS, 1_234_567.8))

    def use_prompt(self, before: str, between: str, after: str, *end_tokens: str) -> None:
        """The template's vision tokens stand around every frame instead of around the whole video."""
        if not before.endswith(VISION_START) or not between.startswith(VISION_END):
            raise ModelError(f"the chat template has no {VISION_START} and {VISION_END} around a video")
        before, between = before.removesuffix(VISION_START), between.removeprefix(VISION_END)
        super().use_prompt(before, between, after, *end_tokens)

    def frame_text(self, seconds: float) -> tuple[list[int], list[int]]:
        """The time and the start of vision; the end of vision."""
        return self.tokenize(f"<{seconds % MOST_SECONDS:.1f} seconds>{VISION_START}"), self.tokenize(VISION_END)

    def run_tower(self, pictures: list[Tensor], grids: list[Grid]) -> list[Tensor]:
        """All pictures in one pass, DeepStack features beside the merged tokens."""
        merged, levels = library_tower(self.network.model.visual, pictures, grids)
        wide = torch.cat([merged, *levels], dim=-1)
        return list(wide.split([rows * columns // self._merge**2 for rows, columns in grids]))

    def language_inputs(self, embeddings: Tensor) -> dict[str, Any]:
        """Embeddings, and what is added behind the first layers where there are frames."""
        hidden = self.language_model.config.hidden_size
        inputs = super().language_inputs(embeddings[:, :hidden])
        if embeddings.shape[1] > hidden:  # zeros are added to the text between frames
            inputs["visual_pos_masks"] = torch.ones(1, len(embeddings), dtype=torch.bool, device=embeddings.device)
            inputs["deepstack_visual_embeds"] = list(embeddings[:, hidden:].split(hidden, dim=1))
        return inputs


def open_model(checkpoint: Checkpoint) -> Qwen3VL:
    """Load a checkpoint of this family."""
    return open_qwen(Qwen3VL, checkpoint)
