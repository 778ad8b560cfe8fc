"""The one interface over all model families: frames to tokens, tokens to positions, a forward into the arena."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.memory.arena import Arena
from ros_kvstream.memory.budget import CacheShape
from ros_kvstream.memory.rotary import Rotary

Frame = NDArray[np.uint8]
"""A picture, RGB uint8 [height, width, 3]."""


@dataclass(frozen=True)
class FrameTokens:
    """One frame after the vision tower."""

    embeddings: Tensor
    """[rows * columns, hidden], raster order; of a thinned frame only those of the kept patches."""
    rows: int
    columns: int
    kept: Tensor | None = None
    """bool [rows * columns], True for the patches that are prefilled; None for all of them."""


class VideoLanguageModel(ABC):
    """A video language model of any family, as the memory needs it. Single-threaded; weights are never changed."""

    name: str
    """Hub id or folder that it was loaded from."""
    family: str
    """Model type, as in the checkpoint's config.json."""
    trained: bool = True
    """False when there were no weights to load and random ones are used."""
    shape: CacheShape
    rotary: Rotary
    device: torch.device
    tokens_per_second: float
    """Temporal positions per second of stream time."""
    position_limit: int
    """First position outside the trained range."""
    patch_side: int = 28
    """Side in pixels of the resized picture's square that one visual token stands for."""
    prefix_ids: tuple[int, ...]
    """Tokens before the frames: system prompt, opening of the user's turn, start of vision."""
    eos_ids: frozenset[int]
    """Tokens that end an answer."""

    # -- pictures -------------------------------------------------------------------------------------------------

    @abstractmethod
    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visual tokens for a picture of this size, without computing it."""

    @abstractmethod
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run the vision tower on pictures of any sizes."""

    # -- text -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def suffix_ids(self, question: str) -> list[int]:
        """Tokens after the frames: end of vision, the question, opening of the answer."""

    @abstractmethod
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings, [tokens, hidden]."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Answer tokens to text."""

    # -- positions ------------------------------------------------------------------------------------------------

    def frame_positions(self, t: int, rows: int, columns: int) -> Tensor:
        """(t, h, w) of one frame's tokens in raster order, int32 [rows * columns, 3] (M-RoPE, Qwen2-VL section 2.1)."""
        start = len(self.prefix_ids)
        h = torch.arange(start, start + rows, dtype=torch.int32).repeat_interleave(columns)
        w = torch.arange(start, start + columns, dtype=torch.int32).repeat(rows)
        return torch.stack([torch.full_like(h, t), h, w], dim=-1)

    def text_positions(self, start: int, tokens: int) -> Tensor:
        """(t, h, w) of text from ``start`` on, equal on all axes, int32 [tokens, 3]."""
        return torch.arange(start, start + tokens, dtype=torch.int32)[:, None].expand(tokens, 3)

    def text_start(self, newest_t: int, largest_side: int) -> int:
        """First position after the frames: one more than any of theirs.

        transformers 5.24 starts at ``start + max(rows, columns)`` instead, which can lie before the newest frame
        (its issue 45381); a question must come after what it asks about.
        """
        return max(newest_t, len(self.prefix_ids) + largest_side - 1) + 1

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
        """Run announced tokens (``arena.begin``) through the language model; each layer writes into the arena.

        :param embeddings: [tokens, hidden]; :param positions: int32 [tokens, 3].
        :param visible: per layer bool [kv_heads, slots] over the first slots, False where a slot is hidden from these
            tokens; None shows everything.
        :param logits: whether the last token's logits are wanted; returned float32 [vocabulary], else None.
        """

    @abstractmethod
    def capture_queries(self, layers: Sequence[int]) -> AbstractContextManager[dict[int, Tensor]]:
        """Within the context, collect the un-rotated queries of each forward, layer -> [heads, tokens, head_dim]."""
