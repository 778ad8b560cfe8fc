# SPDX-License-Identifier: Apache-2.0
"""What the LLaVA families share: each frame one square of patches, 1-D positions, the prompt of their chat template."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ros_kvstream.models.base import Frame, FrameTokens
from ros_kvstream.models.layout import TokenSequence
from ros_kvstream.models.network import NetworkModel, split_chat_template

NEWLINE = -1
"""Id of the families' learned newline, the first of ``learned``."""


class SquareFrames(NetworkModel):
    """A LLaVA family to which every frame is one square, whatever the picture's shape.

    The whole picture is resized to the tower's square, as the families do with an image's overview tile. Published
    video processors crop the sides instead; a robot would not see what is there, and patches would not lie where
    saliency and kept tokens are drawn.
    """

    media: ClassVar[str] = "video"
    """What the chat template and the config call frames: video | image."""

    def __init__(self, name: str, network: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        super().__init__(name, network, tokenizer, image_processor, trained=trained)
        config = network.config
        image_size = config.vision_config.image_size
        image_processor.size = {"height": image_size, "width": image_size}
        image_processor.do_center_crop = False
        self.learned = (network.model.image_newline,)
        self.layout = TokenSequence()
        self._side = self.side(image_size // config.vision_config.patch_size)
        self.patch_side = max(1, image_size // self._side)
        self._marker_id = getattr(config, f"{self.media}_token_id")
        self._marker = tokenizer.convert_ids_to_tokens(self._marker_id)
        before, self._question, self._answer = split_chat_template(tokenizer, self._marker, self.media)
        self.use_prompt(before, self._question, self._answer, "<|im_end|>", "</s>")

    def side(self, patches: int) -> int:
        """Visual tokens along a frame's side, from the tower's patches along it."""
        return patches

    @abstractmethod
    def features(self, states: Tensor) -> Tensor:
        """Projected features [frames, side * side, hidden] of tower states [frames, patches, width]."""

    def suffix_ids(self, question: str) -> list[int]:
        """Tokens after the frames, as the tokenizer splits them directly after the frames' marker.

        Tokenized piece by piece, SentencePiece would add a blank before each piece that the prompt does not have.
        """
        ids = self.tokenize(self._marker + self._question + self.plain_text(question) + self._answer)
        return ids[ids.index(self._marker_id) + 1 :]

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visual tokens, equal for every picture."""
        return self._side, self._side

    @torch.inference_mode()
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run tower and projector on all frames at once."""
        config = self.network.config
        inputs = self.image_processor(images=list(frames), input_data_format="channels_last", return_tensors="pt")
        pixels = inputs["pixel_values"].to(self.device, self.shape.dtype)
        states = self.network.model.vision_tower(pixels, output_hidden_states=True).hidden_states
        layers = config.vision_feature_layer
        chosen = torch.cat([states[layer] for layer in ([layers] if isinstance(layers, int) else layers)], dim=-1)
        if config.vision_feature_select_strategy == "default":
            chosen = chosen[:, 1:]  # without the class token
        return [FrameTokens(frame, self._side, self._side) for frame in self.features(chosen)]
