# SPDX-License-Identifier: Apache-2.0
"""The interface over all model families: frames to tokens, tokens to positions, a forward into the arena.

docs/add_a_model.md shows how to add a family. Families on networks of transformers derive from NetworkModel
(models/network.py), which implements everything that does not depend on the family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.errors import ModelError, NonFiniteError
from ros_kvstream.memory.arena import Arena
from ros_kvstream.memory.budget import CacheShape
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.models.layout import Layout, patch_coordinates, text_coordinates

Frame = NDArray[np.uint8]
"""A picture, RGB uint8 [height, width, 3]."""


@dataclass(frozen=True)
class FrameTokens:
    """One frame as input of the language model."""

    embeddings: Tensor
    """[tokens, width] in the order of the sequence. Width is the hidden size, or a multiple of it with features of
    several tower layers (DeepStack); text may be narrower."""
    rows: int
    columns: int
    """Size of its patch grid."""
    coordinates: Tensor | None = None
    """(row, column) of each token, int32 [tokens, 2], negative for tokens that are not patches (models/layout.py);
    None for all patches in raster order without other tokens."""
    before: int = 0
    """Number of text tokens before the grid."""
    after: int = 0
    """Number of text tokens after the grid."""


@dataclass(frozen=True)
class PositionRange:
    """A range of positions for frames."""

    limit: int
    """First position beyond it."""
    source: str
    """What the limit follows from."""


class VideoLanguageModel(ABC):
    """A video language model of any family. Not thread-safe; weights are never changed."""

    name: str
    """Hub id or folder from which it was loaded."""
    family: str
    """Model type, as in the checkpoint's config.json."""
    trained: bool = True
    """False when there are no weights and random ones are used."""
    shape: CacheShape
    rotary: Rotary
    layout: Layout
    """Positions of tokens."""
    device: torch.device
    tokens_per_second: float = 0.0
    """Positions per second of stream time; 0 where positions are sequential."""
    position_limit: int
    """First position that the network does not have."""
    trained_positions: int = 0
    """Positions of the longest sequences that the family was trained on; 0 where that is not known."""
    position_range: PositionRange
    """The range in which it reads frames well; ``memory.position_limit: auto`` uses it."""
    patch_side: int = 28
    """Side in pixels of the resized picture's square that one visual token stands for."""
    frames_per_grid: int = 1
    """Maximum number of frames in one grid of patches; 2 where the tower takes two frames at once."""
    embedding_width: int
    """Numbers per token in FrameTokens.embeddings."""
    frame_text_tokens: int = 0
    """Maximum number of text tokens around one frame."""
    prefix_ids: tuple[int, ...]
    """Tokens before the frames: system prompt, opening of the user's turn, start of vision."""
    eos_ids: frozenset[int]
    """Tokens that end an answer."""

    # -- pictures -------------------------------------------------------------------------------------------------

    @abstractmethod
    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visual tokens for a picture of this size."""

    @abstractmethod
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run the vision tower on pictures of any sizes; the result is without the texts of ``frame_text``."""

    def encode_grids(self, grids: Sequence[Sequence[Frame]]) -> list[FrameTokens]:
        """Tokens of grids of one frame, or of up to ``frames_per_grid`` frames of one size."""
        if all(len(frames) == 1 for frames in grids):
            return self.encode_frames([frames[0] for frames in grids])
        return self.encode_pairs([(frames[0], frames[-1]) for frames in grids])

    def encode_pairs(self, pairs: Sequence[tuple[Frame, Frame]]) -> list[FrameTokens]:
        """Tokens of two frames in one grid, the earlier first; a frame paired with itself equals that frame alone.

        :raises ModelError: where the family has one frame per grid.
        """
        raise ModelError(f"the family {self.family} has one frame per grid: set memory.frames_per_grid to 1.")

    def frame_tokens(self, rows: int, columns: int) -> int:
        """Maximum number of tokens of a frame with this grid: patches and text."""
        return rows * columns + self.frame_text_tokens

    # -- text -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def suffix_ids(self, question: str) -> list[int]:
        """Tokens after the frames: end of vision, the question, opening of the answer."""

    def frame_text(self, seconds: float) -> tuple[list[int], list[int]]:
        """Tokens before and after the grid of a frame at this time of the stream; none by default."""
        return [], []

    @abstractmethod
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings, [tokens, hidden]."""

    def weights_checksum(self) -> int:
        """Checksum of the weights, tower included: equal in every process and in dtypes that hold them exactly."""
        return 0

    def require_finite(self, values: Tensor, part: str) -> None:
        """Raise NonFiniteError where a part of the model computed NaN or infinite values."""
        if not bool(torch.isfinite(values).all()):
            dtype = str(self.shape.dtype).removeprefix("torch.")
            raise NonFiniteError(
                f"the {part} of {self.name} computed values that are not finite in dtype = {dtype}: set dtype to "
                "bfloat16 or float32, or use other weights."
            )

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Convert answer tokens to text."""

    def complete(self, tokens: FrameTokens, seconds: float, kept: Tensor | None = None) -> FrameTokens:
        """Add a frame's text to the tower's tokens and drop the patches that are not kept.

        :param kept: bool [rows * columns]; None for all.
        """
        before, after = self.frame_text(seconds)
        if kept is None and not before and not after:
            return tokens
        embeddings, coordinates = tokens.embeddings, patch_coordinates(tokens.rows, tokens.columns)
        if kept is not None:
            embeddings, coordinates = embeddings[kept.to(embeddings.device)], coordinates[kept]
        if before or after:
            text = self.embed([*before, *after])
            text = torch.nn.functional.pad(text, (0, embeddings.shape[1] - text.shape[1]))
            embeddings = torch.cat([text[: len(before)], embeddings, text[len(before) :]])
            first, last = text_coordinates(len(before), len(after))
            coordinates = torch.cat([first, coordinates, last])
        return FrameTokens(embeddings, tokens.rows, tokens.columns, coordinates, len(before), len(after))

    # -- positions ------------------------------------------------------------------------------------------------

    def positions_within(self, limit: int | str, reserve: int) -> PositionRange:
        """The range for frames.

        :param limit: a value of ``memory.position_limit``; "auto" and 0 stand for the model's own range.
        :param reserve: positions of the longest question and answer behind the frames.
        """
        if isinstance(limit, str) or not limit:
            return replace(self.position_range, limit=min(self.position_range.limit, self.position_limit - reserve))
        return PositionRange(min(limit, self.position_limit) - reserve, "memory.position_limit")

    def frame_span(self, tokens: FrameTokens) -> int:
        """Number of positions along the first axis that a frame takes."""
        return tokens.before + self.layout.span(tokens.rows, tokens.columns) + tokens.after

    def frame_positions(self, start: int, rows: int, columns: int, coordinates: Tensor | None = None) -> Tensor:
        """(p, h, w) of one frame's tokens whose grid starts at ``start``, int32 [tokens, 3].

        :param coordinates: (row, column) of the tokens, [tokens, 2]; None for all patches in raster order.
        """
        if coordinates is None:
            coordinates = patch_coordinates(rows, columns)
        return self.layout.frame(start, coordinates, rows, columns)

    # -- the language model ---------------------------------------------------------------------------------------

    @abstractmethod
    def forward(
        self,
        arena: Arena,
        embeddings: Tensor,
        positions: Tensor,
        *,
        logits: bool,
        visible: list[Tensor] | None = None,
    ) -> Tensor | None:
        """Run tokens announced with ``arena.begin`` through the language model; each layer writes into the arena.

        :param embeddings: [tokens, width]; :param positions: (p, h, w), int32 [tokens, 3].
        :param visible: per layer bool [kv_heads, slots] over the first slots, False where a slot is hidden from these
            tokens; None shows everything.
        :param logits: whether to return the last token's logits, float32 [vocabulary]; else None is returned.
        :raises NonFiniteError: where NaN or infinite values were computed; the caller discards what was written.
        """

    @abstractmethod
    def capture_queries(self, layers: Sequence[int]) -> AbstractContextManager[dict[int, Tensor]]:
        """Within the context, collect the unrotated queries of each forward, layer -> [heads, tokens, head_dim]."""

    @abstractmethod
    def capture_keys_values(
        self, layers: Sequence[int]
    ) -> AbstractContextManager[tuple[dict[int, Tensor], dict[int, Tensor]]]:
        """Within the context, collect the unrotated keys and the values of each forward in these layers.

        Layer -> [kv_heads, tokens, head_dim], in the native dtype.
        """
