# SPDX-License-Identifier: Apache-2.0
"""LLaVA-NeXT-Video on transformers: CLIP features pooled 2 x 2, 1-D positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ros_kvstream.models.llava import SquareFrames


class LlavaNextVideo(SquareFrames):
    """LLaVA-NeXT-Video on Vicuna or Yi; the whole stream is one endless video."""

    family = "llava_next_video"
    image_processors = ("CLIPImageProcessorPil", "CLIPImageProcessor")

    @staticmethod
    def side(config: Any) -> int:
        """Pooled patches."""
        return int(config.vision_config.image_size // config.vision_config.patch_size // config.spatial_pool_stride)

    def features(self, pixels: Tensor) -> Tensor:
        """Features pooled, then projected."""
        model = self.network.model
        return model.multi_modal_projector(model.vision_resampler(self.tower_features(pixels)))
