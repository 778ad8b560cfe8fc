# SPDX-License-Identifier: Apache-2.0
"""The newest frames of a stream with all their tokens, as a question prefills them afresh."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ros_kvstream.memory.archive.plan import ArchiveShape
from ros_kvstream.memory.archive.records import ArchivedFrame, FrameToArchive
from ros_kvstream.memory.archive.row_codec import FLOAT16_LIMIT


@dataclass(frozen=True)
class _Held:
    row: int
    frame_id: int
    stamp: float
    camera: str
    grid: tuple[int, int]
    tokens: int


class NewestFrames:
    """A ring of whole frames, allocated once: the newest ones, and the newest of every camera as far as there is room.

    Stored in float16.
    """

    def __init__(self, shape: ArchiveShape) -> None:
        self._content = torch.zeros(shape.newest, shape.patches, shape.vectors, shape.width, dtype=torch.float16)
        self._coordinates = torch.zeros(shape.newest, shape.patches, 2, dtype=torch.int16)
        self._held: list[_Held] = []
        """Oldest first."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors().values())

    def clear(self) -> None:
        """Remove all frames."""
        self._held = []

    def add(self, frame: FrameToArchive, coordinates: Tensor) -> None:
        """Add a frame in place of the oldest that is not its camera's newest, or else of the oldest.

        :param coordinates: grid coordinates (h, w) of its tokens, int16 [tokens, 2].
        """
        size = len(self._content)
        if not size:
            return
        row = len(self._held)
        if row == size:
            newest = {held.camera: held.frame_id for held in self._held} | {frame.camera: frame.frame_id}
            spare = (held for held in self._held if newest[held.camera] != held.frame_id)
            leaves = next(spare, self._held[0])
            self._held.remove(leaves)
            row = leaves.row
        tokens = len(coordinates)
        self._content[row, :tokens] = frame.content.clamp(-FLOAT16_LIMIT, FLOAT16_LIMIT).to(torch.float16).cpu()
        self._coordinates[row, :tokens] = coordinates
        self._held.append(_Held(row, frame.frame_id, frame.stamp, frame.camera, frame.grid, tokens))

    def frames(self, frame_ids: Collection[int]) -> list[ArchivedFrame]:
        """Those of the frames that are held, oldest first."""
        return [
            ArchivedFrame(
                held.frame_id, held.stamp, held.stamp, held.camera, held.grid,
                self._coordinates[held.row, : held.tokens].clone(), self._content[held.row, : held.tokens].float(),
            )
            for held in self._held if held.frame_id in frame_ids
        ]  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Plain values of a checkpoint; the tensors are those of :meth:`tensors`."""
        return {"shape": list(self._content.shape), "held": [asdict(held) for held in self._held]}

    def tensors(self) -> dict[str, Tensor]:
        """The storage, by name."""
        return {"newest_frames": self._content, "newest_coordinates": self._coordinates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the plain values of a state whose tensors have been copied into :meth:`tensors`."""
        self._held = [_Held(**{**held, "grid": tuple(held["grid"])}) for held in state["held"]]
