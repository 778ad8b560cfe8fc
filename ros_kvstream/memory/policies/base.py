"""The one signature of all selection policies: one layer's slots in, the kept slots out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ros_kvstream.memory.rotary import Rotary


@dataclass(frozen=True)
class LayerSlots:
    """One layer of the arena as a policy sees it: the slots that frames fill (no prompt, no question).

    Slots are in no particular order and every KV head holds its own tokens: what a slot is stands in
    ``positions``, ``frames`` and ``cameras``, never in its index.
    """

    layer: int
    """Index of this layer, from 0."""
    layers: int
    """Number of layers of the model."""
    keys: Tensor
    """Rotated keys as stored, [kv_heads, slots, head_dim]."""
    values: Tensor
    """Values as stored, [kv_heads, slots, head_dim]."""
    value_norms: Tensor
    """L2 norms of the values taken in float32 when they were appended, [kv_heads, slots]."""
    positions: Tensor
    """(t, h, w) that the keys are rotated by, int32 [kv_heads, slots, 3]."""
    frames: Tensor
    """Frame id, growing with time, int32 [kv_heads, slots]."""
    cameras: Tensor
    """Camera id, int16 [kv_heads, slots]."""
    unrotate: Callable[[Tensor, Tensor], Tensor]
    """(keys [kv_heads, n, head_dim], positions [kv_heads, n, 3]) -> float32 keys before rotation."""
    rotary: Rotary | None = None
    """How the keys were rotated; lets a policy turn back only the part that depends on time, block by block."""
    key_norms: Tensor | None = None
    """L2 norms of the keys taken in float32 when they were appended, [kv_heads, slots]; rotation leaves them alone."""
    table: object | None = None
    """Layers whose views carry the same object hold the same slot table (until the first compaction all do)."""
    scratch: Tensor | None = None
    """float32 room for a policy to write into; ``unrotated_keys`` does too."""

    def room(self, *shape: int) -> Tensor:
        """float32 room of this shape with anything in it: the scratch where it is large enough, else a new tensor."""
        size = math.prod(shape)
        if self.scratch is not None and size <= self.scratch.numel():
            return self.scratch.view(-1)[:size].view(shape)
        return torch.empty(shape, dtype=torch.float32, device=self.keys.device)

    @cached_property
    def unrotated_keys(self) -> Tensor:
        """Keys before rotation, float32 [kv_heads, slots, head_dim]; computed once, on first use."""
        return self.unrotate(self.keys, self.positions)

    @property
    def slots(self) -> int:
        """Slots per KV head."""
        return self.keys.shape[1]


class SelectionPolicy(ABC):
    """Chooses which slots of a layer stay. Pure: the same slots give the same choice, ties included."""

    name: str

    def check(self, slots: int, needed: int, keep: int) -> None:  # noqa: B027 - a hook, not every policy refuses
        """Refuse a situation that the policy cannot serve (``full`` refuses to evict); default: accept.

        :param slots: slots in use per KV head; :param needed: slots that must be appended next;
        :param keep: slots that would be kept.
        """

    @abstractmethod
    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep]: per KV head the indices of the kept slots, ascending and distinct.

        :param view: one layer's slots; :param keep: 1 <= keep <= view.slots.
        """
        raise NotImplementedError

    def select_mask(self, view: LayerSlots, keep: int) -> Tensor:
        """The same choice as bool [kv_heads, slots], which is what a compaction works with."""
        mask = torch.zeros(view.keys.shape[0], view.slots, dtype=torch.bool, device=view.keys.device)
        return mask.scatter_(1, self.select(view, keep), True)


def keep_highest(scores: Tensor, keep: int, frames: Tensor) -> Tensor:
    """The ``keep`` highest scores per row, ties to the newer frame, then to the higher slot index.

    :param scores: float32 [rows, slots]; :param frames: frame ids [rows, slots]; returns ascending int64
        [rows, keep]. Deterministic: three stable sorts, no dependence on top-k's own order.
    """
    slots = scores.shape[-1]
    if keep >= slots:
        return torch.arange(slots, device=scores.device).expand(scores.shape[0], slots).clone()
    by_index = torch.arange(slots - 1, -1, -1, device=scores.device).expand_as(frames)
    order = by_index.gather(-1, frames.gather(-1, by_index).argsort(dim=-1, descending=True, stable=True))
    order = order.gather(-1, scores.gather(-1, order).argsort(dim=-1, descending=True, stable=True))
    return order[:, :keep].sort(-1).values
