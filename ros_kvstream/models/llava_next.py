"""LLaVA-NeXT (LLaVA 1.6) on transformers: an image model that is shown frames, each its overview tile alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.llava import SquareFrames, open_square

NEWLINE = -1
"""Id of the learned newline, the first of ``learned``."""


class LlavaNext(SquareFrames):
    """LLaVA 1.6 on Mistral or Vicuna.

    The family shows an image as an overview (576 tokens) and up to four tiles in detail, which for 640 x 480 pixels
    are 2,340 tokens; a stream of those would leave room for few frames. A frame here is its overview: 24 x 24 patches
    of the whole picture and the learned newline that closes every image, as the family packs an image of one tile.
    """

    family = "llava_next"

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded LlavaNextForConditionalGeneration, its tokenizer and its image processor."""
        config = model.config
        side = config.vision_config.image_size // config.vision_config.patch_size
        marker = config.image_token_id
        super().__init__(
            name, model, tokenizer, image_processor, side=side, marker=marker, kind="image", trained=trained
        )
        self.learned = (model.model.image_newline,)
        self.frame_text_tokens = 1

    def frame_text(self, seconds: float) -> tuple[list[int], list[int]]:
        """The newline behind each frame."""
        return [], [NEWLINE]

    def features(self, pixels: Tensor) -> Tensor:
        """All patches, projected."""
        return self.network.model.multi_modal_projector(self.tower_features(pixels))


def open_model(checkpoint: Checkpoint) -> LlavaNext:
    """Load a checkpoint of this family."""
    return open_square(LlavaNext, checkpoint, "CLIPImageProcessorPil", "CLIPImageProcessor")
