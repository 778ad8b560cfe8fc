"""LLaVA-NeXT-Video on transformers: CLIP features pooled 2 x 2, 1-D positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.llava import SquareFrames, open_square


class LlavaNextVideo(SquareFrames):
    """LLaVA-NeXT-Video on Vicuna or Yi; the whole stream is one endless video."""

    family = "llava_next_video"

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded LlavaNextVideoForConditionalGeneration, its tokenizer and its image processor."""
        config = model.config
        side = config.vision_config.image_size // config.vision_config.patch_size // config.spatial_pool_stride
        marker = config.video_token_id
        super().__init__(name, model, tokenizer, image_processor, side=side, marker=marker, trained=trained)

    def features(self, pixels: Tensor) -> Tensor:
        """Pooled before they are projected."""
        model = self.network.model
        return model.multi_modal_projector(model.vision_resampler(self.tower_features(pixels)))


def open_model(checkpoint: Checkpoint) -> LlavaNextVideo:
    """Load a checkpoint of this family."""
    return open_square(LlavaNextVideo, checkpoint, "CLIPImageProcessorPil", "CLIPImageProcessor")
