# SPDX-License-Identifier: Apache-2.0
"""LLaVA-NeXT-Video on transformers: CLIP features pooled 2 x 2, 1-D positions."""

from __future__ import annotations

from torch import Tensor

from ros_kvstream.models.llava import SquareFrames


class LlavaNextVideo(SquareFrames):
    """LLaVA-NeXT-Video on Vicuna or Yi; the whole stream is one endless video."""

    family = "llava_next_video"
    trained_positions = 4_096  # context of its language model, llava-vl.github.io/blog/2024-04-30-llava-next-video
    image_processors = ("CLIPImageProcessorPil", "CLIPImageProcessor")

    def side(self, patches: int) -> int:
        """Pooled patches."""
        return int(patches // self.network.config.spatial_pool_stride)

    def features(self, states: Tensor) -> Tensor:
        """Features pooled, then projected."""
        model = self.network.model
        return model.multi_modal_projector(model.vision_resampler(states))
