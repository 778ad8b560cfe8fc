# SPDX-License-Identifier: Apache-2.0
"""Cameras share an arena: none loses its guaranteed part, no slot is unused, one camera is as without shares."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slots import Frame, identities, make_slots, reorder

from ros_kvstream.errors import CapacityError
from ros_kvstream.memory.policies import make_policy
from ros_kvstream.memory.policies.camera_shares import CameraShares, camera_weights, divide

POLICIES = ["infinipot_v", "tar", "van", "aks", "uniform", "sliding_window", "recent"]


@pytest.mark.parametrize(("shares", "weights"), [
    ({}, {0: 0.5, 1: 0.5}),
    ({"front": 0.0, "rear": 0.0}, {0: 0.5, 1: 0.5}),
    ({"front": 0.8, "rear": 0.0}, {0: 0.8, 1: pytest.approx(0.2)}),
    ({"front": 0.5, "rear": 0.2}, {0: 0.5, 1: 0.2}),
    ({"front": 1.0, "rear": 0.0}, {0: 1.0, 1: 0.0}),
    ({"front": 0.0}, {0: 1.0}),
    ({"front": 0.3, "lens": 0.3, "rear": 0.0}, {0: 0.3, 1: pytest.approx(0.7)}),
], ids=str)
def test_weights_follow_the_shares_and_cameras_without_one_have_equal_parts_of_the_rest(
        shares: dict[str, float], weights: dict[int, float]) -> None:
    assert camera_weights(shares, {"front": 0, "rear": 1}) == weights


@pytest.mark.parametrize(("keep", "counts", "weights", "quotas"), [
    (10, [100, 100], [0.5, 0.5], [5, 5]),
    (10, [100, 3], [0.5, 0.5], [7, 3]),
    (10, [2, 3], [0.5, 0.5], [2, 3]),
    (10, [100, 100], [0.8, 0.2], [8, 2]),
    (10, [100, 100, 2], [0.25, 0.25, 0.5], [4, 4, 2]),
    (10, [100, 100], [1.0, 0.0], [10, 0]),
    (10, [6, 100], [1.0, 0.0], [6, 4]),
    (10, [100, 100, 100], [0.0, 0.0, 0.0], [4, 3, 3]),
    (0, [5, 5], [0.5, 0.5], [0, 0]),
])
def test_what_a_camera_does_not_need_goes_to_the_others(
        keep: int, counts: list[int], weights: list[float], quotas: list[int]) -> None:
    if sum(counts) < keep:
        keep = sum(counts)
    assert divide(keep, counts, weights) == quotas


@settings(deadline=None)
@given(st.data())
def test_every_division_uses_all_slots_and_takes_nothing_that_is_guaranteed(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 500), min_size=1, max_size=8))
    weights = data.draw(st.lists(st.floats(0, 1), min_size=len(counts), max_size=len(counts)))
    total = sum(weights)
    weights = [weight / total if total > 1 else weight for weight in weights]
    keep = data.draw(st.integers(0, sum(counts)))
    quotas = divide(keep, counts, weights)
    assert sum(quotas) == keep and all(0 <= quota <= count for quota, count in zip(quotas, counts, strict=True))
    for quota, count, weight in zip(quotas, counts, weights, strict=True):
        assert quota >= min(count, int(weight * keep + 1e-9)) - (weight * keep > 0)


@pytest.mark.parametrize("name", POLICIES)
def test_one_camera_is_kept_as_the_policy_alone_keeps_it(name: str) -> None:
    layer = make_slots([Frame(camera=3)] * 12, missing=4)
    policy = make_policy(name)
    assert torch.equal(CameraShares(policy, {}).select(layer, 30), policy.select(layer, 30))


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "ragged"])
def test_a_slow_camera_keeps_all_it_has_beside_a_fast_one(name: str, shuffled: bool) -> None:
    layer = make_slots([Frame(camera=0 if number % 8 else 1) for number in range(24)], shuffled=shuffled)
    kept = CameraShares(make_policy(name), {0: 0.5, 1: 0.5}).select(layer, 60)
    for slots in identities(layer, kept):
        assert len(slots) == 60 and sum(camera == 1 for _, camera, _, _ in slots) == 3 * 6


@pytest.mark.parametrize("name", POLICIES)
def test_each_camera_is_kept_as_if_it_were_alone_in_an_arena_of_its_part(name: str) -> None:
    frames = [Frame(camera=number % 2) for number in range(16)]
    layer = make_slots(frames)
    policy = make_policy(name)
    found = identities(layer, CameraShares(policy, {0: 0.75, 1: 0.25}).select(layer, 40))
    for camera, quota in ((0, 30), (1, 10)):
        slots = (layer.cameras[0] == camera).nonzero()[:, 0].expand(2, -1)
        alone = reorder(layer, slots)
        expected = identities(alone, policy.select(alone, quota))
        assert [{slot for slot in head if slot[1] == camera} for head in found] == expected


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_heads_that_hold_different_cameras_are_kept_in_equal_number(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(POLICIES))
    cameras = data.draw(st.lists(st.integers(0, 3), min_size=3, max_size=10))
    layer = make_slots([Frame(camera=camera) for camera in cameras], missing=data.draw(st.integers(0, 12)),
                      shuffled=True, seed=data.draw(st.integers(0, 5)))
    keep = data.draw(st.integers(1, layer.count))
    mask = CameraShares(make_policy(name), {0: 0.4, 1: 0.4, 2: 0.2}).select(layer, keep)
    assert mask.sum(-1).tolist() == [keep, keep]


def test_what_the_policy_refuses_is_refused() -> None:
    with pytest.raises(CapacityError):
        CameraShares(make_policy("full"), {0: 1.0}).check(100, 10, 90)
