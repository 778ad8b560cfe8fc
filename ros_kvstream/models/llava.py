"""What the LLaVA families share: each frame one square of patches, 1-D positions, the prompt of their chat template."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ros_kvstream.models.base import Frame, FrameTokens
from ros_kvstream.models.chat_template import split_chat_template, use_processor_template
from ros_kvstream.models.checkpoint import Checkpoint
from ros_kvstream.models.layout import TokenSequence
from ros_kvstream.models.network import NetworkModel

Family = TypeVar("Family", bound="SquareFrames")


class SquareFrames(NetworkModel):
    """A LLaVA model to which every frame is one square, whatever the picture's shape.

    The whole picture is squeezed into the tower's square, as the families do with an image's overview tile. Published
    video processors cut the sides off instead; a robot would not see what is there, and patches would not lie where
    saliency and kept tokens are drawn.
    """

    def __init__(
        self, name: str, model: Any, tokenizer: Any, image_processor: Any, *, side: int, marker: int,
        kind: str = "video", trained: bool = True,
    ) -> None:  # fmt: skip
        """Wrap a loaded network, its tokenizer and its image processor.

        :param side: visual tokens along a frame's side; :param marker: id of the token that stands for the frames in a
            prompt; :param kind: what the chat template calls them: video | image.
        """
        super().__init__(name, model, model.model.language_model, tokenizer, trained=trained)
        image_size = model.config.vision_config.image_size
        image_processor.size = {"height": image_size, "width": image_size}
        image_processor.do_center_crop = False
        self.image_processor = image_processor
        self.layout = TokenSequence()
        self._side = side
        self.patch_side = max(1, image_size // side)
        self._marker_id, self._marker = marker, tokenizer.convert_ids_to_tokens(marker)
        before, self._question, self._answer = split_chat_template(tokenizer, self._marker, kind)
        self.use_prompt(before, self._question, self._answer, "<|im_end|>", "</s>")

    def suffix_ids(self, question: str) -> list[int]:
        """What stands behind the frames, as the tokenizer cuts it right behind their marker.

        Cut apart, SentencePiece would begin each piece with a blank that is not in the prompt.
        """
        ids = self.tokenize(self._marker + self._question + self.plain_text(question) + self._answer)
        return ids[ids.index(self._marker_id) + 1 :]

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The same for every picture."""
        return self._side, self._side

    @torch.inference_mode()
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run tower and projector on all frames at once."""
        pixels = self.image_processor(images=list(frames), return_tensors="pt")["pixel_values"]
        features = self.features(pixels.to(self.device, self.shape.dtype))
        return [FrameTokens(frame, self._side, self._side) for frame in features]

    @abstractmethod
    def features(self, pixels: Tensor) -> Tensor:
        """Projected features [frames, side * side, hidden] of pixels [frames, 3, height, width]."""

    def tower_features(self, pixels: Tensor) -> Tensor:
        """Hidden states of the tower's layer that the config names, without the class token: [frames, patches, w]."""
        config = self.network.config
        states = self.network.model.vision_tower(pixels, output_hidden_states=True).hidden_states
        layers = config.vision_feature_layer
        chosen = [states[layer] for layer in ([layers] if isinstance(layers, int) else layers)]
        if config.vision_feature_select_strategy == "default":
            chosen = [state[:, 1:] for state in chosen]
        return torch.cat(chosen, dim=-1)


def open_square(family: Callable[..., Family], checkpoint: Checkpoint, *processors: str) -> Family:
    """Load a checkpoint of one of these families; ``processors``: names of a plain image processor's classes.

    It takes mean, deviation and interpolation from the checkpoint's own preprocessor_config.json.
    """
    network, tokenizer = checkpoint.network(), checkpoint.tokenizer()
    use_processor_template(tokenizer, checkpoint.folder)
    processor = checkpoint.image_processor(*processors)
    return family(checkpoint.name, network, tokenizer, processor, trained=checkpoint.trained)
