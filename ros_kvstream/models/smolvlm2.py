"""SmolVLM2 on transformers: small enough for a robot's own computer; every frame with its time in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ros_kvstream.models.base import Frame, FrameTokens
from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.layout import TokenSequence
from ros_kvstream.models.network import NetworkModel

BEFORE = "<|im_start|>User: You are provided the following series of frames from a video.\n"
"""The family's own introduction names the number of frames and the length, which a stream does not have."""
BETWEEN, AFTER = "\n\n", "<end_of_utterance>\nAssistant:"
FRAME_OPENING = "\nFrame from {minutes:02d}:{seconds:02d}:<fake_token_around_image><global-img>"
FRAME_CLOSING = "<fake_token_around_image>"
MINUTES = 100
"""The time starts again at 00:00 after this many minutes: the family writes two digits."""


class SmolVLM2(NetworkModel):
    """SmolVLM2, and SmolVLM, which has the same layout.

    Frames stand in the prompt as the family puts those of a video: one tile each (``<global-img>``), never the rows and
    columns of tiles that a single image is cut into.
    """

    family = "smolvlm"

    def __init__(self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        """Wrap a loaded SmolVLMForConditionalGeneration, its tokenizer and its image processor."""
        super().__init__(name, model, model.model.text_model, tokenizer, trained=trained)
        self.image_processor = image_processor
        self.layout = TokenSequence()
        vision = model.config.vision_config
        self._image_size = vision.image_size
        self._patches = vision.image_size // vision.patch_size
        self._side = self._patches // model.config.scale_factor
        self.patch_side = max(1, self._image_size // self._side)
        self.use_prompt(BEFORE, BETWEEN, AFTER, "<end_of_utterance>")
        self._closing = self.tokenize(FRAME_CLOSING)
        openings = [_opening(second) for second in range(60 * MINUTES)]
        longest = max(len(ids) for ids in tokenizer(openings, add_special_tokens=False)["input_ids"])
        self.frame_text_tokens = longest + len(self._closing)

    def frame_text(self, seconds: float) -> tuple[list[int], list[int]]:
        """"Frame from 00:12:" and the marks around the picture."""
        return self.tokenize(_opening(int(seconds))), list(self._closing)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The same for every picture: the whole of it is squeezed into the tower's square."""
        return self._side, self._side

    @torch.inference_mode()
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run the vision tower and the connector, which folds scale_factor x scale_factor patches into one token."""
        edge = {"longest_edge": self._image_size}
        inputs = self.image_processor(
            images=[[frame] for frame in frames], size=edge, max_image_size=edge, do_image_splitting=False,
            return_tensors="pt",
        )  # fmt: skip
        pixels = inputs["pixel_values"][:, 0].to(self.device, self.shape.dtype)
        everywhere = torch.ones(len(frames), self._patches, self._patches, dtype=torch.bool, device=self.device)
        model = self.network.model
        states = model.vision_model(pixel_values=pixels, patch_attention_mask=everywhere).last_hidden_state
        return [FrameTokens(frame, self._side, self._side) for frame in model.connector(states)]


def _opening(second: int) -> str:
    return FRAME_OPENING.format(minutes=second // 60 % MINUTES, seconds=second % 60)


def open_model(checkpoint: Checkpoint) -> SmolVLM2:
    """Load a checkpoint of this family."""
    network, tokenizer = checkpoint.network(), checkpoint.tokenizer()
    processor = checkpoint.image_processor("SmolVLMImageProcessorPil", "SmolVLMImageProcessor")
    return SmolVLM2(checkpoint.name, network, tokenizer, processor, trained=checkpoint.trained)
