"""Cameras that share one arena: each has a part of the slots that no other can take, and lends what it does not need.

A policy ranks slots by what they hold or how new they are. Over all cameras at once, thirty frames a second would push
out the one a second of the camera beside it. So the kept slots are divided among the cameras first, and the policy
chooses within each camera's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.ranking import indices_of


def camera_weights(shares: Mapping[str, float], cameras: Mapping[str, int]) -> dict[int, float]:
    """Guaranteed part of each camera by its number; they sum to 1, or less when there is nothing left to guarantee.

    :param shares: share by camera name, 0 for an equal part of what the others leave; cameras that are not named have
        no part of their own, unless nothing is named at all.
    :param cameras: number by camera name.
    """
    named = {name: shares.get(name, 0.0) for name in cameras if name in shares or not shares}
    rest = max(0.0, 1.0 - sum(named.values()))
    equal = rest / max(1, sum(share == 0.0 for share in named.values()))
    return {cameras[name]: share or equal for name, share in named.items()}


def divide(keep: int, counts: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Divide ``keep`` slots among cameras that hold ``counts``: each gets its weight's part, or all that it holds.

    What a camera does not need goes to the others in proportion to their weights (max-min fairness); cameras without
    weight get what is left then, in proportion to what they hold.

    :param keep: 0 <= keep <= the sum of ``counts``; the result has the same sum.
    """
    quotas, left = [0] * len(counts), keep
    waiting = [index for index, weight in enumerate(weights) if weight > 0]
    while waiting:
        total = sum(weights[index] for index in waiting)
        satisfied = [index for index in waiting if counts[index] * total <= weights[index] * left]
        if not satisfied:
            for index, part in zip(waiting, _parts(left, [weights[index] for index in waiting]), strict=True):
                quotas[index] = part
            return quotas
        for index in satisfied:
            quotas[index] = counts[index]
        left -= sum(quotas[index] for index in satisfied)
        waiting = [index for index in waiting if index not in satisfied]
    others = [index for index, weight in enumerate(weights) if weight <= 0]
    for index, part in zip(others, _parts(left, [counts[index] for index in others]), strict=True):
        quotas[index] = part
    return quotas


def _parts(whole: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the weights that sum to ``whole``: largest remainders are rounded up first."""
    total = sum(weights)
    if total <= 0:
        return [0] * len(weights)
    exact = [whole * weight / total for weight in weights]
    parts = [int(part) for part in exact]
    by_remainder = sorted(range(len(weights)), key=lambda index: (parts[index] - exact[index], index))
    for index in by_remainder[: whole - sum(parts)]:
        parts[index] += 1
    return parts


class CameraShares(SelectionPolicy):
    """Another policy, applied within each camera's part. With one camera it is that policy, at no cost.

    With several, the keys and values of one camera and one layer are copied at a time, where that camera is to give
    slots up.
    """

    def __init__(self, policy: SelectionPolicy, weights: Mapping[int, float]) -> None:
        """:param weights: as from :func:`camera_weights`; cameras that are not in it have no part of their own."""
        self.policy = policy
        self.weights = weights
        self.name = policy.name

    def check(self, slots: int, needed: int, keep: int) -> None:
        """Refuse what the policy within refuses."""
        self.policy.check(slots, needed, keep)

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep], ascending; see SelectionPolicy.select."""
        return indices_of(self.select_mask(view, keep))

    def select_mask(self, view: LayerSlots, keep: int) -> Tensor:
        """The same as bool [kv_heads, slots]."""
        cameras = torch.unique(view.cameras).tolist()
        if len(cameras) == 1:
            return self.policy.select_mask(view, keep)
        owned = [view.cameras == camera for camera in cameras]
        counts = torch.stack([mine.sum(-1) for mine in owned])
        common = counts.amin(1).tolist()
        if sum(common) < keep:  # a memory that was kept without shares: its heads hold different cameras
            return self.policy.select_mask(view, keep)
        quotas = divide(keep, common, [self.weights.get(camera, 0.0) for camera in cameras])
        mask = torch.zeros_like(owned[0])
        for mine, held, quota in zip(owned, counts, quotas, strict=True):
            if bool((held == quota).all()):
                mask |= mine
            elif quota:
                self._choose(view, mine, held, quota, mask)
        return mask

    def _choose(self, view: LayerSlots, mine: Tensor, held: Tensor, quota: int, mask: Tensor) -> None:
        """Let the policy keep ``quota`` of one camera's slots in each head; set them in ``mask``."""
        heads = len(mine)
        alike = bool((held == held[0]).all())
        groups = [slice(0, heads)] if alike else [slice(head, head + 1) for head in range(heads)]
        for rows in groups:
            slots = indices_of(mine[rows])
            chosen = self.policy.select_mask(_part(view, rows, slots), quota)
            mask[rows].scatter_(1, slots, chosen)


def _part(view: LayerSlots, rows: slice, slots: Tensor) -> LayerSlots:
    """The given slots [heads, n] of the heads ``rows`` as a layer of their own."""
    head = torch.arange(len(slots), device=slots.device)[:, None]
    names = ("keys", "values", "value_norms", "positions", "frames", "cameras")
    parts = {name: getattr(view, name)[rows][head, slots] for name in names}
    key_norms = None if view.key_norms is None else view.key_norms[rows][head, slots]
    # The view's own function works in room for all heads.
    unrotate = view.unrotate if view.rotary is None or len(slots) == len(view.keys) else view.rotary.unrotate
    return replace(view, **parts, key_norms=key_norms, unrotate=unrotate, table=None)
