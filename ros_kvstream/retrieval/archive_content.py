# SPDX-License-Identifier: Apache-2.0
"""What an archive stores of each patch, and how a question reads it back: embeddings, or keys and values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ros_kvstream.memory.archive.records import ArchivedFrame
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.models.base import VideoLanguageModel


class ArchiveContent(ABC):
    """One kind of content; ``archive.content`` names it."""

    vectors: int
    """Vectors per patch."""
    width: int
    """Numbers in one vector."""
    afresh: bool
    """Whether the newest frames are prefilled afresh too."""
    layers: tuple[int, ...]
    """Layers whose keys and values are captured while frames are prefilled."""

    @abstractmethod
    def store(self, embeddings: Tensor, keys: Mapping[int, Tensor], values: Mapping[int, Tensor]) -> Tensor:
        """Content of one frame, [tokens, vectors, width].

        :param embeddings: [tokens, width]; :param keys: layer -> un-rotated keys, [kv_heads, tokens, head_dim];
        :param values: layer -> values, the same shape.
        """

    @abstractmethod
    def read(self, arena: Arena, frames: Sequence[ArchivedFrame], chunk: Chunk) -> None:
        """Append retrieved frames to the arena; the caller rolls it back.

        :param frames: in order of time; :param chunk: their tokens.
        """


class Embeddings(ArchiveContent):
    """The output of the vision tower. A question prefills the frames afresh: they attend to the prompt and each other.

    So they do not depend on what the memory held when they were seen, nor on its budget, policy or precision.
    """

    afresh = True

    def __init__(self, model: VideoLanguageModel, index_layers: tuple[int, ...]) -> None:
        """:param index_layers: layers that the internal expert searches."""
        self._model = model
        self.vectors, self.width, self.layers = 1, model.embedding_width, index_layers

    def store(self, embeddings: Tensor, keys: Mapping[int, Tensor], values: Mapping[int, Tensor]) -> Tensor:
        """Embeddings as they are."""
        return embeddings[:, None]

    def read(self, arena: Arena, frames: Sequence[ArchivedFrame], chunk: Chunk) -> None:
        """Run the frames through the language model, with the frames of the arena hidden."""
        dtype = self._model.shape.dtype
        embeddings = torch.cat([frame.content[:, 0] for frame in frames]).to(arena.device, dtype)
        hidden = arena.visible([])
        arena.begin(chunk, frames=False)
        self._model.forward(arena, embeddings, chunk.positions, logits=False, visible=hidden)
        arena.commit()


class KeysValues(ArchiveContent):
    """Keys and values of all layers. They are read back without a prefill; keys are rotated to their new positions."""

    afresh = False

    def __init__(self, model: VideoLanguageModel) -> None:
        shape = model.shape
        self._shape = shape
        self.vectors, self.width = 2 * shape.layers * shape.kv_heads, shape.head_dim
        self.layers = tuple(range(shape.layers))

    def store(self, embeddings: Tensor, keys: Mapping[int, Tensor], values: Mapping[int, Tensor]) -> Tensor:
        """Keys of all layers and heads, then values."""
        return torch.cat([part[layer] for part in (keys, values) for layer in self.layers]).transpose(0, 1)

    def read(self, arena: Arena, frames: Sequence[ArchivedFrame], chunk: Chunk) -> None:
        """Write the keys, rotated to their positions, and the values."""
        shape = self._shape
        content = torch.cat([frame.content for frame in frames]).to(arena.device)
        parts = content.view(len(content), 2, shape.layers, shape.kv_heads, shape.head_dim).permute(1, 2, 3, 0, 4)
        positions = chunk.positions.to(arena.device)
        arena.begin(chunk, frames=False)
        for layer, (keys, values) in enumerate(zip(*parts, strict=True)):
            arena.write(layer, arena.rotary.rotate(keys, positions).to(shape.dtype), values.to(shape.dtype))
        arena.commit()


def make_content(name: str, model: VideoLanguageModel, index_layers: tuple[int, ...]) -> ArchiveContent:
    """The content that ``archive.content`` names."""
    return KeysValues(model) if name == "kv" else Embeddings(model, index_layers)
