"""LLaVA-OneVision on transformers: pooled SigLIP features, 1-D positions, one learned newline behind the last frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ros_kvstream.models.base import Frame, FrameTokens
from ros_kvstream.models.chat_template import split_chat_template, use_processor_template
from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.layout import TokenSequence
from ros_kvstream.models.network import NetworkModel

NEWLINE = -1
"""Id of the learned newline, the first of ``learned``."""


class LlavaOneVision(NetworkModel):
    """LLaVA-OneVision, dense models; the whole stream is one endless video."""

    family = "llava_onevision"

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded LlavaOnevisionForConditionalGeneration, its tokenizer and its image processor."""
        super().__init__(name, model, model.model.language_model, tokenizer, trained=trained)
        self.image_processor = image_processor
        self.layout = TokenSequence()
        self.learned = (model.model.image_newline,)
        vision = model.config.vision_config
        self._side = math.ceil(vision.image_size // vision.patch_size / 2)
        self.patch_side = max(1, vision.image_size // self._side)
        video_token = tokenizer.convert_ids_to_tokens(model.config.video_token_id)
        self.use_prompt(*split_chat_template(tokenizer, video_token), "<|im_end|>")

    def suffix_ids(self, question: str) -> list[int]:
        """The newline that closes the video, then the question."""
        return [NEWLINE, *super().suffix_ids(question)]

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The same for every picture: it is resized to the tower's square, and pooled 2 x 2."""
        return self._side, self._side

    @torch.inference_mode()
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run the vision tower, the projector and the pooling of video frames."""
        pixels = self.image_processor(images=list(frames), return_tensors="pt")["pixel_values"]
        output = self.network.model.get_video_features(pixels[None].to(self.device, self.shape.dtype))
        features = getattr(output, "pooler_output", output)[0, :-1]  # without the newline behind them
        return [FrameTokens(frame, self._side, self._side) for frame in features.chunk(len(frames))]


def open_model(checkpoint: Checkpoint) -> LlavaOneVision:
    """Load a checkpoint of this family."""
    network, tokenizer = checkpoint.network(), checkpoint.tokenizer()
    use_processor_template(tokenizer, checkpoint.folder)
    processor = checkpoint.image_processor("SiglipImageProcessorPil", "SiglipImageProcessor")
    return LlavaOneVision(checkpoint.name, network, tokenizer, processor, trained=checkpoint.trained)
