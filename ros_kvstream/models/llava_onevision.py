# SPDX-License-Identifier: Apache-2.0
"""LLaVA-OneVision on transformers: pooled SigLIP features, 1-D positions, one learned newline after the last frame."""

from __future__ import annotations

import math

from torch import Tensor

from ros_kvstream.models.llava import NEWLINE, SquareFrames


class LlavaOneVision(SquareFrames):
    """LLaVA-OneVision, dense models; the whole stream is one endless video."""

    family = "llava_onevision"
    trained_positions = 8_748  # 12 images of 729 tokens, the longest in training, arXiv 2408.03326, section 3
    image_processors = ("SiglipImageProcessorPil", "SiglipImageProcessor")

    def side(self, patches: int) -> int:
        """Patches pooled 2 x 2, rounded up."""
        return math.ceil(patches / 2)

    def suffix_ids(self, question: str) -> list[int]:
        """The newline that ends the video, then the question."""
        return [NEWLINE, *super().suffix_ids(question)]

    def features(self, states: Tensor) -> Tensor:
        """Features projected, then pooled 2 x 2 as the family does with frames of a video."""
        model = self.network.model
        return model.apply_pooling(model.multi_modal_projector(states))
