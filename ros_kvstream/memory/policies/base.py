# SPDX-License-Identifier: Apache-2.0
"""The contract of the selection policies: one layer's slots in, the slots to keep out. And the policies by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.settings import Change, check_fields, rules_of, setting


@dataclass(frozen=True)
class LayerSlots:
    """The slots of one layer that hold frames (no prompt, no question), as a policy sees them.

    Slots are in no particular order and every KV head holds its own tokens: ``positions``, ``frames`` and ``cameras``
    say what a slot holds, its index says nothing.
    """

    layer: int
    """Index of this layer, from 0."""
    layers: int
    """Number of layers of the model."""
    keys: Tensor
    """Rotated keys as stored, [kv_heads, slots, head_dim]."""
    values: Tensor
    """Values as stored, [kv_heads, slots, head_dim]."""
    key_norms: Tensor
    """L2 norms of the keys, computed in float32 when they were appended, [kv_heads, slots]."""
    value_norms: Tensor
    """L2 norms of the values, computed in float32 when they were appended, [kv_heads, slots]."""
    positions: Tensor
    """(t, h, w) that the keys are rotated by, int32 [kv_heads, slots, 3]."""
    frames: Tensor
    """Frame id, which grows with time, int32 [kv_heads, slots]."""
    cameras: Tensor
    """Camera id, int16 [kv_heads, slots]."""
    rotary: Rotary
    """How the keys are rotated."""
    scratch: Tensor | None = None
    """float32 memory of the arena that a policy may overwrite, see ``scratch_view``."""

    @property
    def count(self) -> int:
        """Slots per KV head."""
        return self.keys.shape[1]

    def scratch_view(self, *shape: int) -> Tensor:
        """An uninitialised float32 tensor: a part of the scratch where that is large enough, else a new one."""
        size = math.prod(shape)
        if self.scratch is not None and size <= self.scratch.numel():
            return self.scratch.view(-1)[:size].view(shape)
        return torch.empty(shape, dtype=torch.float32, device=self.keys.device)

    @cached_property
    def unrotated_keys(self) -> Tensor:
        """Keys before rotation, float32 [kv_heads, slots, head_dim], in the scratch: valid until it is used again."""
        return self.rotary.unrotate(self.keys, self.positions, out=self.scratch_view(*self.keys.shape))


class SelectionPolicy:
    """Chooses which slots of a layer are kept.

    A policy is a frozen dataclass whose fields are its settings, the parameters ``memory.<name>.<field>``. It overrides
    ``score``, or ``select`` where it divides the slots to keep. The same slots always give the same choice.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_fields(self, f"memory.{self.name}")

    def check(self, slots: int, needed: int, keep: int) -> None:
        """Raise CapacityError for a compaction that the policy does not allow; by default all are allowed.

        :param slots: slots in use per KV head; :param needed: slots of the next append; :param keep: slots to keep.
        """

    def score(self, slots: LayerSlots) -> Tensor:
        """Return float32 [kv_heads, slots]; slots with higher scores are kept (int64 where float32 is too coarse)."""
        raise NotImplementedError(f"the policy {self.name!r} must override score or select")

    def select(self, slots: LayerSlots, keep: int) -> Tensor:
        """Return bool [kv_heads, slots] with ``keep`` True per head: the highest scores, ties to the newer slot.

        :param keep: from 1 to ``slots.count``.
        """
        return top_mask(self.score(slots), keep, slots)


@dataclass(frozen=True)
class RecentFirst(SelectionPolicy):
    """A policy that keeps the newest frames before it goes by the scores."""

    recent_share: float = setting(
        0.125,
        "Share of the kept slots that is reserved for the newest whole frames. The newest frame is always kept. A "
        "larger share favours questions about now, a smaller one questions about before.",
        0.0, 1.0, change=Change.RUNNING,
    )  # fmt: skip

    def select(self, slots: LayerSlots, keep: int) -> Tensor:
        """Return the recent slots and those with the highest scores; see SelectionPolicy.select."""
        recent = recent_slots(slots, keep, self.recent_share)
        return top_mask(self.score(slots).masked_fill(recent, torch.inf), keep, slots)


# -- the policies by name ---------------------------------------------------------------------------------------------

REGISTRY: dict[str, type[Any]] = {}
"""Policy classes by name, filled by ``register``."""
Policy = TypeVar("Policy", bound=type[SelectionPolicy])


def register(name: str) -> Callable[[Policy], Policy]:
    """Make a policy class known under ``name``, the value of the parameter ``memory.policy``; a class decorator."""

    def add(policy: Policy) -> Policy:
        policy.name = name
        REGISTRY[name] = policy
        return policy

    return add


def policy_names() -> tuple[str, ...]:
    """Names of all policies."""
    return tuple(REGISTRY)


def policy_type(name: str) -> type[Any]:
    """Return the dataclass of a policy; raises SettingsError for an unknown name."""
    if name not in REGISTRY:
        raise SettingsError(f"memory.policy = {name!r}: must be one of {', '.join(REGISTRY)}.")
    return REGISTRY[name]


def make_policy(name: str, options: Mapping[str, object] | None = None) -> SelectionPolicy:
    """Make a policy from its settings by field name.

    :raises SettingsError: for an unknown policy, an unknown setting or a value out of its range.
    """
    policy, options = policy_type(name), options or {}
    known = rules_of(policy)
    for option, value in options.items():
        if option not in known:
            remedy = f"Its settings are: {', '.join(known)}." if known else "It has no settings; remove this one."
            raise SettingsError(f"memory.{name}.{option} = {value!r}: not a setting of the policy {name!r}. {remedy}")
    made: SelectionPolicy = policy(**options)
    return made


# -- order and choice of slots ----------------------------------------------------------------------------------------


def recent_slots(slots: LayerSlots, keep: int, share: float) -> Tensor:
    """Return bool [kv_heads, slots]: the newest whole frames whose slots fit into ``share`` of ``keep``.

    The newest frame is always among them unless the share is 0, even where it exceeds the share or ``keep``.
    """
    if share <= 0.0:
        return torch.zeros_like(slots.frames, dtype=torch.bool)
    fits = min(int(share * keep), slots.count - 1)
    # All frames newer than the first slot that does not fit are whole.
    first_out = slots.frames.kthvalue(slots.count - fits, dim=-1, keepdim=True).values
    newest = slots.frames.amax(-1, keepdim=True)
    return slots.frames >= torch.minimum(first_out + 1, newest)


def recency(slots: LayerSlots) -> Tensor:
    """Return int64 [kv_heads, slots], larger for newer slots and, inside a frame, in raster order.

    Frame id, camera, h and w in 31 + 8 + 12 + 12 bits: no two slots of a head are equal, so an order by it does not
    depend on where the slots are in the arena.
    """
    height, width = slots.positions[..., 1].long(), slots.positions[..., 2].long()
    order = slots.frames.long() << 32
    order |= (slots.cameras.long() & 0xFF) << 24
    order |= (height & 0xFFF) << 12
    order |= width & 0xFFF
    return order


def top_mask(scores: Tensor, keep: int, slots: LayerSlots) -> Tensor:
    """Return bool [kv_heads, slots] with exactly ``keep`` True per head: the highest scores, ties to the newer slot.

    :param scores: float or integer [kv_heads, slots]; NaN is below everything.
    """
    if keep >= scores.shape[-1]:
        return torch.ones_like(scores, dtype=torch.bool)
    threshold, unique = _lowest_kept(scores, keep)
    mask = scores >= threshold
    if unique:
        return mask
    if scores.is_floating_point() and bool(scores.isnan().any()):
        return top_mask(torch.nan_to_num(scores, -torch.inf, torch.inf, -torch.inf), keep, slots)
    above = scores > threshold
    return _add_newest(above, mask & ~above, keep - above.sum(-1), slots)


def _lowest_kept(scores: Tensor, keep: int) -> tuple[Tensor, bool]:
    """The ``keep``-th highest score of each row, [rows, 1], NaN above all; and whether exactly ``keep`` reach it."""
    index = scores.shape[-1] - keep
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.int64):
        # NumPy's partition takes half the time of torch's kthvalue or topk: it compares many numbers at a time.
        parted = np.partition(scores.numpy(), index, axis=-1)
        threshold, below, highest = parted[:, index : index + 1], parted[:, :index].max(-1, keepdims=True), parted.max()
        return torch.from_numpy(threshold), bool((below < threshold).all() and highest == highest)
    lowest = scores.kthvalue(index + 1, dim=-1, keepdim=True).values
    return lowest, bool(((scores >= lowest).sum(-1) == keep).all())


def _add_newest(chosen: Tensor, tied: Tensor, missing: Tensor, slots: LayerSlots) -> Tensor:
    """Add to ``chosen`` the newest ``missing`` [rows] of the ``tied`` slots of each row, then the last in raster order.

    In NumPy on the CPU: usually only a few slots are tied.
    """
    row, slot = np.nonzero(tied.cpu().numpy())
    position = slots.positions.cpu().numpy()[row, slot]
    columns = [slot, position[:, 2], position[:, 1]]
    columns += [column.cpu().numpy()[row, slot] for column in (slots.cameras, slots.frames)]
    order = np.lexsort([*(-column.astype(np.int64) for column in columns), row])
    row, slot = row[order], slot[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    wanted = rank < missing.cpu().numpy()[row]
    chosen[torch.from_numpy(row[wanted]), torch.from_numpy(slot[wanted])] = True
    return chosen
