"""LLaVA-NeXT-Video on transformers: CLIP features pooled 2 x 2, 1-D positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ros_kvstream.models.chat_template import use_processor_template
from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.llava import PICTURE_PROCESSORS, SquareFrames


class LlavaNextVideo(SquareFrames):
    """LLaVA-NeXT-Video on Vicuna or Yi; the whole stream is one endless video."""

    family = "llava_next_video"

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded LlavaNextVideoForConditionalGeneration, its tokenizer and its image processor."""
        config = model.config
        side = config.vision_config.image_size // config.vision_config.patch_size // config.spatial_pool_stride
        marker = tokenizer.convert_ids_to_tokens(config.video_token_id)
        super().__init__(
            name, model, tokenizer, image_processor, side=side, marker=marker, kind="video", trained=trained
        )

    def features(self, pixels: Tensor) -> Tensor:
        """Pooled before they are projected."""
        model = self.network.model
        return model.multi_modal_projector(model.vision_resampler(self.tower_features(pixels)))


def open_model(checkpoint: Checkpoint) -> LlavaNextVideo:
    """Load a checkpoint of this family."""
    network, tokenizer = checkpoint.network(), checkpoint.tokenizer()
    use_processor_template(tokenizer, checkpoint.folder)
    processor = checkpoint.image_processor(*PICTURE_PROCESSORS)
    return LlavaNextVideo(checkpoint.name, network, tokenizer, processor, trained=checkpoint.trained)
