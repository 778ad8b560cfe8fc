"""LLaVA-OneVision on transformers: pooled SigLIP features, 1-D positions, one learned newline behind the last frame."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.llava import SquareFrames, open_square

NEWLINE = -1
"""Id of the learned newline, the first of ``learned``."""


class LlavaOneVision(SquareFrames):
    """LLaVA-OneVision, dense models; the whole stream is one endless video."""

    family = "llava_onevision"

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded LlavaOnevisionForConditionalGeneration, its tokenizer and its image processor."""
        vision = model.config.vision_config
        side = math.ceil(vision.image_size // vision.patch_size / 2)
        marker = model.config.video_token_id
        super().__init__(name, model, tokenizer, image_processor, side=side, marker=marker, trained=trained)
        self.learned = (model.model.image_newline,)

    def suffix_ids(self, question: str) -> list[int]:
        """The newline that closes the video, then the question."""
        return [NEWLINE, *super().suffix_ids(question)]

    def features(self, pixels: Tensor) -> Tensor:
        """Projected, then pooled 2 x 2 as frames of a video are."""
        model = self.network.model
        return model.apply_pooling(model.multi_modal_projector(self.tower_features(pixels)))


def open_model(checkpoint: Checkpoint) -> LlavaOneVision:
    """Load a checkpoint of this family."""
    return open_square(LlavaOneVision, checkpoint, "SiglipImageProcessorPil", "SiglipImageProcessor")
