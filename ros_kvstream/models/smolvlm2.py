# SPDX-License-Identifier: Apache-2.0
"""SmolVLM2 on transformers: small enough for a robot's own computer; each frame with its time as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ros_kvstream.models.base import Frame, FrameTokens
from ros_kvstream.models.layout import TokenSequence
from ros_kvstream.models.network import NetworkModel

BEFORE = "<|im_start|>User: You are provided the following series of frames from a video.\n"
"""The family's own introduction names the number of frames and the length, which a stream does not have."""
BETWEEN, AFTER = "\n\n", "<end_of_utterance>\nAssistant:"
FRAME_CLOSING = "<fake_token_around_image>"
MINUTES = 100
"""Minutes after which the written time starts again at 00:00: the family writes two digits."""


def frame_opening(second: int) -> str:
    """Text before a frame."""
    return f"\nFrame from {second // 60 % MINUTES:02d}:{second % 60:02d}:<fake_token_around_image><global-img>"


class SmolVLM2(NetworkModel):
    """SmolVLM2, and SmolVLM, which has the same layout.

    Frames stand in the prompt as the family lays out those of a video: one tile each (``<global-img>``), without the
    rows and columns of tiles into which a single image is split.
    """

    family = "smolvlm"
    trained_positions = 8_192  # context of the smaller sizes, arXiv 2504.05299, section 2; the largest has twice it
    decoder = "text_model"
    image_processors = ("SmolVLMImageProcessorPil", "SmolVLMImageProcessor")

    def __init__(self, name: str, network: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        super().__init__(name, network, tokenizer, image_processor, trained=trained)
        self.layout = TokenSequence()
        vision = network.config.vision_config
        self._image_size = vision.image_size
        self._patches = vision.image_size // vision.patch_size
        self._side = self._patches // network.config.scale_factor
        self.patch_side = max(1, self._image_size // self._side)
        self.use_prompt(BEFORE, BETWEEN, AFTER, "<end_of_utterance>")
        self._closing = self.tokenize(FRAME_CLOSING)
        openings = [frame_opening(second) for second in range(60 * MINUTES)]
        longest = max(len(ids) for ids in tokenizer(openings, add_special_tokens=False)["input_ids"])
        self.frame_text_tokens = longest + len(self._closing)

    def frame_text(self, seconds: float) -> tuple[list[int], list[int]]:
        """Text such as "Frame from 00:12:" with the marks around the picture."""
        return self.tokenize(frame_opening(int(seconds))), list(self._closing)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visual tokens, equal for every picture: it is resized to the tower's square."""
        return self._side, self._side

    @torch.inference_mode()
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run the vision tower and the connector, which merges scale_factor x scale_factor patches into one token."""
        edge = {"longest_edge": self._image_size}
        inputs = self.image_processor(
            images=[[frame] for frame in frames], size=edge, max_image_size=edge, do_image_splitting=False,
            input_data_format="channels_last", return_tensors="pt",
        )  # fmt: skip
        pixels = inputs["pixel_values"][:, 0].to(self.device, self.shape.dtype)
        everywhere = torch.ones(len(frames), self._patches, self._patches, dtype=torch.bool, device=self.device)
        model = self.network.model
        states = model.vision_model(pixel_values=pixels, patch_attention_mask=everywhere).last_hidden_state
        return [FrameTokens(frame, self._side, self._side) for frame in model.connector(states)]
