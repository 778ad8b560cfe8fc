# SPDX-License-Identifier: Apache-2.0
"""Several cameras in one arena: each has a share of the slots that the others cannot take.

A policy ranks slots by content or age. Over all cameras at once, a camera of thirty frames a second would displace one
of one frame a second. So the slots to keep are divided among the cameras first, and the policy chooses within each
camera's part; what a camera does not need is lent to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy


def camera_weights(shares: Mapping[str, float], cameras: Mapping[str, int]) -> dict[int, float]:
    """Return the guaranteed part of each camera by its id; the sum is at most 1.

    :param shares: share by camera name, 0 for an equal part of what the others leave; cameras that are not named have
        no guaranteed part, unless none is named.
    :param cameras: id by camera name.
    """
    named = {name: shares.get(name, 0.0) for name in cameras if name in shares or not shares}
    rest = max(0.0, 1.0 - sum(named.values()))
    equal = rest / max(1, sum(share == 0.0 for share in named.values()))
    return {cameras[name]: share or equal for name, share in named.items()}


def divide(keep: int, counts: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Divide ``keep`` slots among cameras that hold ``counts``: each keeps its weight's part, or all that it holds.

    What a camera does not need goes to the others in proportion to their weights (max-min fairness). Cameras of weight
    0 get the rest, in proportion to what they hold.

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
    """Divide ``whole`` into integers in proportion to the weights; the largest remainders are rounded up."""
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
    """Applies another policy within each camera's part; with one camera it is that policy, at no cost.

    With several, the keys and values of one camera and one layer are copied at a time, where that camera has to give up
    slots.
    """

    def __init__(self, policy: SelectionPolicy, weights: Mapping[int, float]) -> None:
        """:param weights: from :func:`camera_weights`; cameras that are not in it have no guaranteed part."""
        self.policy = policy
        self.weights = weights

    def check(self, slots: int, needed: int, keep: int) -> None:
        """Raise CapacityError where the inner policy does."""
        self.policy.check(slots, needed, keep)

    def select(self, slots: LayerSlots, keep: int) -> Tensor:
        """Return the kept slots, bool [kv_heads, slots]; see SelectionPolicy.select."""
        cameras = torch.unique(slots.cameras).tolist()
        if len(cameras) == 1:
            return self.policy.select(slots, keep)
        owned = [slots.cameras == camera for camera in cameras]
        counts = torch.stack([mine.sum(-1) for mine in owned])
        common = counts.amin(1).tolist()
        if sum(common) < keep:  # its slots were selected without shares: the heads hold different cameras
            return self.policy.select(slots, keep)
        quotas = divide(keep, common, [self.weights.get(camera, 0.0) for camera in cameras])
        kept = torch.zeros_like(owned[0])
        for mine, held, quota in zip(owned, counts, quotas, strict=True):
            if bool((held == quota).all()):
                kept |= mine
            elif quota:
                self._choose(slots, mine, held, quota, kept)
        return kept

    def _choose(self, slots: LayerSlots, mine: Tensor, held: Tensor, quota: int, kept: Tensor) -> None:
        """Let the policy choose ``quota`` of one camera's slots in each head; set them in ``kept``."""
        heads = len(mine)
        alike = bool((held == held[0]).all())
        groups = [slice(0, heads)] if alike else [slice(head, head + 1) for head in range(heads)]
        for rows in groups:
            numbers = mine[rows].nonzero()[:, 1].view(rows.stop - rows.start, -1)
            chosen = self.policy.select(_part(slots, rows, numbers), quota)
            kept[rows].scatter_(1, numbers, chosen)


def _part(slots: LayerSlots, rows: slice, numbers: Tensor) -> LayerSlots:
    """Return the slots ``numbers`` [heads, n] of the heads ``rows`` as a layer of their own."""
    head = torch.arange(len(numbers), device=numbers.device)[:, None]
    names = ("keys", "values", "key_norms", "value_norms", "positions", "frames", "cameras")
    return replace(slots, **{name: getattr(slots, name)[rows][head, numbers] for name in names})
