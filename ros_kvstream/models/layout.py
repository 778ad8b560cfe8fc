# SPDX-License-Identifier: Apache-2.0
"""Where a family puts tokens: the positions of a frame, and the position and coordinates stored per token.

A slot carries three numbers (p, h, w). ``p`` is the position along the first axis, which a rebase shifts; (h, w) are
the grid coordinates by which policies, archive and pictures of kept tokens align frames. How a key is rotated follows
from the three (memory/rotary.py): by p alone in a 1-D family, by (p, h, w) in M-RoPE, and by (p, p + h, p + w) in a
family whose grids start at their index in the sequence.

Coordinates: a patch is at (row, column), from 0. Tokens of a frame that are not patches have negative coordinates:
(TEXT_BEFORE, -n .. -1) is text before the grid, (TEXT_AFTER, 0 .. n - 1) text after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

TEXT_BEFORE, TEXT_AFTER = -1, -2
"""h of a frame's tokens that are not patches."""


def patch_coordinates(rows: int, columns: int) -> Tensor:
    """(row, column) of all patches in raster order, int32 [rows * columns, 2]."""
    row = torch.arange(rows, dtype=torch.int32).repeat_interleave(columns)
    column = torch.arange(columns, dtype=torch.int32).repeat(rows)
    return torch.stack([row, column], dim=-1)


def text_coordinates(before: int, after: int) -> tuple[Tensor, Tensor]:
    """Coordinates of the texts before and after a grid, int32 [before, 2] and [after, 2]."""
    left, right = torch.arange(-before, 0, dtype=torch.int32), torch.arange(after, dtype=torch.int32)
    first = torch.stack([torch.full_like(left, TEXT_BEFORE), left], dim=-1)
    return first, torch.stack([torch.full_like(right, TEXT_AFTER), right], dim=-1)


class Layout(ABC):
    """A family's positions."""

    origin: int = 0
    """h and w in the slots of the patch at row 0, column 0."""
    sequential: bool = True
    """Whether a frame takes more positions the more tokens it has."""

    @abstractmethod
    def span(self, rows: int, columns: int) -> int:
        """Number of positions along the first axis that a grid takes."""

    @abstractmethod
    def offsets(self, coordinates: Tensor, rows: int, columns: int) -> Tensor:
        """Positions of a frame's tokens relative to its grid's first, int32 [tokens]; coordinates int [tokens, 2]."""

    def frame(self, start: int, coordinates: Tensor, rows: int, columns: int) -> Tensor:
        """(p, h, w) of a frame's tokens whose grid starts at ``start``, int32 [tokens, 3]."""
        along = start + self.offsets(coordinates.int(), rows, columns)
        return torch.cat([along[:, None], coordinates.int() + self.origin], dim=-1).int()

    def text(self, start: int, tokens: int) -> Tensor:
        """(p, h, w) of text outside frames from ``start`` on, int32 [tokens, 3]."""
        along = torch.arange(start, start + tokens, dtype=torch.int32)
        return torch.stack([along, *[torch.full_like(along, -1)] * 2], dim=-1)

    def after(self, newest: int, largest_side: int) -> int:
        """First position after the frames, from the newest frame's last one and the longest side of all grids."""
        return newest + 1


@dataclass(frozen=True)
class TimedGrids(Layout):
    """Qwen2-VL and Qwen2.5-VL: the whole stream is one video; p is a frame's time, h and w count from the prompt's end.

    M-RoPE, Qwen2-VL section 2.1. Frames have no text of their own.
    """

    origin: int
    sequential = False

    def span(self, rows: int, columns: int) -> int:
        """One position."""
        return 1

    def offsets(self, coordinates: Tensor, rows: int, columns: int) -> Tensor:
        """All tokens of a frame have one position."""
        return torch.zeros(len(coordinates), dtype=torch.int32)

    def text(self, start: int, tokens: int) -> Tensor:
        """Positions equal on all axes."""
        return torch.arange(start, start + tokens, dtype=torch.int32)[:, None].expand(tokens, 3)

    def after(self, newest: int, largest_side: int) -> int:
        """One more than any position of the frames.

        transformers 5.24 starts at ``origin + max(rows, columns)`` instead, which can lie before the newest frame
        (its issue 45381); a question must come after the frames it refers to.
        """
        return max(newest, self.origin + largest_side - 1) + 1


@dataclass(frozen=True)
class TokenSequence(Layout):
    """1-D families: p is the index in the sequence; h and w only align frames."""

    def span(self, rows: int, columns: int) -> int:
        """One position per token."""
        return rows * columns

    def offsets(self, coordinates: Tensor, rows: int, columns: int) -> Tensor:
        """Patches in raster order, texts before and after."""
        return _texts(coordinates, coordinates[:, 0] * columns + coordinates[:, 1], rows * columns)


@dataclass(frozen=True)
class SequencedGrids(Layout):
    """Qwen3-VL: a grid starts after the text before it and takes as many positions as its longer side.

    The p of every patch is the grid's first position; its h and w are rotated by p + row and p + column.
    """

    def span(self, rows: int, columns: int) -> int:
        """The longer side."""
        return max(rows, columns)

    def offsets(self, coordinates: Tensor, rows: int, columns: int) -> Tensor:
        """0 for patches; text takes one position per token."""
        return _texts(coordinates, torch.zeros(len(coordinates), dtype=torch.int32), max(rows, columns))


def _texts(coordinates: Tensor, along: Tensor, span: int) -> Tensor:
    """Fill in the offsets of the texts around the grid."""
    h, w = coordinates.unbind(-1)
    along = torch.where(h == TEXT_BEFORE, w, along)
    return torch.where(h == TEXT_AFTER, span + w, along)
