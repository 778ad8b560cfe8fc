# SPDX-License-Identifier: Apache-2.0
"""LLaVA-NeXT (LLaVA 1.6) on transformers: an image model; each frame is its overview tile alone."""

from __future__ import annotations

from torch import Tensor

from ros_kvstream.models.llava import NEWLINE, SquareFrames


class LlavaNext(SquareFrames):
    """LLaVA 1.6 on Mistral or Vicuna.

    The family splits an image into an overview (576 tokens) and up to four detail tiles, 2,340 tokens for 640 x 480
    pixels; few such frames fit a memory. A frame here is its overview: 24 x 24 patches of the whole picture and the
    learned newline that ends every image, as the family lays out an image of one tile.
    """

    family = "llava_next"
    trained_positions = 4_096  # context in training, llava-vl.github.io/blog/2024-01-30-llava-next
    image_processors = ("CLIPImageProcessorPil", "CLIPImageProcessor")
    media = "image"
    frame_text_tokens = 1

    def frame_text(self, seconds: float) -> tuple[list[int], list[int]]:
        """The newline after each frame."""
        return [], [NEWLINE]

    def features(self, states: Tensor) -> Tensor:
        """Features of all patches, projected."""
        return self.network.model.multi_modal_projector(states)
