# SPDX-License-Identifier: Apache-2.0
"""A small image-text encoder trained on patrol streams (training/encoder.py).

A picture's vector is the maximum over the picture of four convolutions' responses; a question's is the sum of its word
vectors. The vocabulary is that of the patrol world: the demo uses it in place of a CLIP model.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ros_kvstream.errors import ModelError

WEIGHTS = Path(__file__).parent / "weights" / "tiny_encoder.safetensors"
SIDE = 56
SIZE = 64
"""Size of a vector."""


def words(text: str) -> list[str]:
    """Lower-case words of a question."""
    return re.findall(r"[a-z]+", text.lower())


class EncoderNetwork(nn.Module):
    """Encodes pictures [n, 3, 56, 56] in 0 - 1, and word indices, as unit vectors [n, SIZE]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(3, 24, 5, 2, 2), nn.ReLU(),
            nn.Conv2d(24, 48, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(48, 64, 3, 1, 1), nn.ReLU(),
            nn.Conv2d(64, 96, 5, 2, 2), nn.ReLU(),
        )  # fmt: skip
        self.project = nn.Linear(96, SIZE)
        self.word = nn.EmbeddingBag(vocabulary, SIZE, mode="sum")

    def pictures(self, pixels: Tensor) -> Tensor:
        """Unit vectors of pictures."""
        return functional.normalize(self.project(self.picture(pixels - 0.5).amax((2, 3))), dim=-1)

    def questions(self, numbers: Tensor, offsets: Tensor) -> Tensor:
        """Unit vectors of questions, given as one list of word indices with each question's offset."""
        return functional.normalize(self.word(numbers, offsets), dim=-1)


class TinyEncoder:
    """The trained network as an external encoder."""

    name = "tiny"
    size = SIZE
    picture_side = SIDE

    def __init__(self, network: EncoderNetwork, vocabulary: list[str]) -> None:
        self._network = network.eval()
        self._numbers = {word: number for number, word in enumerate(vocabulary)}

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> TinyEncoder:
        """Load the weights; raises ModelError when they are missing."""
        from safetensors import safe_open

        if not path.exists():
            raise ModelError(f"{path} is missing: run python -m training.encoder")
        with safe_open(path, framework="pt") as file:
            vocabulary = json.loads(file.metadata()["vocabulary"])
            state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (not a dict)
        network = EncoderNetwork(len(vocabulary))
        network.load_state_dict(state)
        return cls(network, vocabulary)

    @torch.inference_mode()
    def embed_image(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        """RGB uint8 [height, width, 3] of any size to a unit vector [size]."""
        return self._network.pictures(pixels_of([picture]))[0].numpy()

    @torch.inference_mode()
    def embed_text(self, text: str) -> NDArray[np.float32]:
        """A question to a unit vector [size]; zeros when it has no known word."""
        numbers = [self._numbers[word] for word in words(text) if word in self._numbers]
        if not numbers:
            return np.zeros(SIZE, np.float32)
        return self._network.questions(torch.tensor(numbers), torch.tensor([0]))[0].numpy()


def pixels_of(pictures: list[NDArray[np.uint8]]) -> Tensor:
    """Pictures resized for the network, float32 [n, 3, 56, 56] in 0 - 1."""
    small = [cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for picture in pictures]
    return torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2).float() / 255.0
