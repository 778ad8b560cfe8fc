# SPDX-License-Identifier: Apache-2.0
"""Qwen3-VL on transformers: interleaved M-RoPE, each frame with its time as text, DeepStack features.

A frame is ``<1.5 seconds><|vision_start|>`` + grid + ``<|vision_end|>``; text and grids follow each other in the
sequence. Features of some tower layers are added to the hidden states of the first language layers at visual tokens:
they are stored beside the embeddings, [tokens, (1 + levels) * hidden].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ros_kvstream.errors import ModelError
from ros_kvstream.models.layout import SequencedGrids
from ros_kvstream.models.network import rotary_of
from ros_kvstream.models.qwen_vl import QwenVL, interleaved_axes
from ros_kvstream.models.transformers_compat import mrope_sections

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
MOST_SECONDS = 9_999_999.9
"""Time in seconds (115 days) after which the written time starts again at 0."""


class Qwen3VL(QwenVL):
    """Qwen3-VL, dense models."""

    family = "qwen3_vl"
    trained_positions = 262_144  # last stage of pre-training, arXiv 2511.21631, section 3

    def __init__(self, name: str, network: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        super().__init__(name, network, tokenizer, image_processor, trained=trained)
        embedding = self.language_model.rotary_emb
        axes = interleaved_axes(mrope_sections(embedding))
        self.rotary = rotary_of(embedding, self.device, axes, relative=True)
        self.layout = SequencedGrids()
        self.embedding_width *= 1 + len(network.config.vision_config.deepstack_visual_indexes)
        self.frame_text_tokens = max(sum(map(len, self.frame_text(t))) for t in (MOST_SECONDS, 1_234_567.8))

    def use_prompt(self, before: str, between: str, after: str, *end_tokens: str) -> None:
        """Set the prompt; the template's vision tokens stand around every frame instead of around the whole video."""
        if not before.endswith(VISION_START) or not between.startswith(VISION_END):
            raise ModelError(f"the chat template has no {VISION_START} and {VISION_END} around a video")
        before, between = before.removesuffix(VISION_START), between.removeprefix(VISION_END)
        super().use_prompt(before, between, after, *end_tokens)

    def frame_text(self, seconds: float) -> tuple[list[int], list[int]]:
        """The time and the start of vision; the end of vision."""
        return self.tokenize(f"<{seconds % MOST_SECONDS:.1f} seconds>{VISION_START}"), self.tokenize(VISION_END)

    def language_inputs(self, embeddings: Tensor) -> dict[str, Any]:
        """Embeddings, and the DeepStack features where there are frames."""
        hidden = self.language_model.config.hidden_size
        inputs = super().language_inputs(embeddings[:, :hidden])
        if embeddings.shape[1] > hidden:  # zeros are added to the text between frames
            inputs["visual_pos_masks"] = torch.ones(1, len(embeddings), dtype=torch.bool, device=embeddings.device)
            inputs["deepstack_visual_embeds"] = list(embeddings[:, hidden:].split(hidden, dim=1))
        return inputs
