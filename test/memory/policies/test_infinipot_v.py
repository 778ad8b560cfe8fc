# SPDX-License-Identifier: Apache-2.0
"""Redundancy, TaR, VaN, their union and AKS, compared with plain loops over slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slots import TABLE, Frame, indices, make_slots, reorder, rotary

from ros_kvstream.memory.policies import LayerSlots, make_policy, redundancy
from ros_kvstream.memory.policies.base import recent_slots
from ros_kvstream.memory.policies.redundancy import STEPS, novelty, similarity_to_newer

layouts = st.one_of(
    st.lists(st.builds(Frame, st.integers(1, 3), st.integers(1, 3), st.integers(0, 1)), min_size=2, max_size=8),
    st.integers(2, 10).map(lambda count: [Frame()] * count),
)


def cosine(slots: LayerSlots, head: int, left: int, right: int) -> float:
    keys = slots.rotary.unrotate(slots.keys, slots.positions).double()[head]
    return float(torch.nn.functional.cosine_similarity(keys[left], keys[right], dim=0))


def patch(slots: LayerSlots, head: int, slot: int) -> tuple[int, ...]:
    return (int(slots.cameras[head, slot]), *slots.positions[head, slot, 1:].tolist())


def same_patch(slots: LayerSlots, head: int, slot: int) -> list[int]:
    """Slots of the same patch, this one included."""
    return [other for other in range(slots.count) if patch(slots, head, other) == patch(slots, head, slot)]


def novelty_by_loops(slots: LayerSlots, recent: torch.Tensor, head: int) -> list[float | None]:
    """Minus the mean cosine to the recent slots of the same patch; None for recent slots and patches without one."""
    found: list[float | None] = []
    for slot in range(slots.count):
        cosines = [cosine(slots, head, slot, other) for other in same_patch(slots, head, slot) if recent[head, other]]
        found.append(None if bool(recent[head, slot]) or not cosines else -sum(cosines) / len(cosines))
    return found


@settings(max_examples=15, deadline=None)
@given(layouts, st.integers(0, 999), st.booleans(), st.integers(0, 5), st.floats(0.1, 0.6))
def test_redundancy_is_the_mean_cosine_of_unrotated_keys_to_the_recent_keys_of_the_true_patch(
    frames: list[Frame], seed: int, shuffled: bool, missing: int, share: float
) -> None:
    total = sum(frame.rows * frame.columns for frame in frames)
    slots = make_slots(frames, seed=seed, shuffled=shuffled, missing=min(missing, total - 1))
    recent = recent_slots(slots, slots.count, share)
    scores = novelty(slots, recent, "recent")
    for head in range(2):
        wanted = novelty_by_loops(slots, recent, head)
        known = [score for score in wanted if score is not None]
        neutral = sum(known) / len(known) if known else 0.0
        for slot, score in enumerate(wanted):
            if bool(recent[head, slot]):
                assert scores[head, slot] == torch.inf
            else:
                assert abs(float(scores[head, slot]) / STEPS - (neutral if score is None else score)) < 2e-4


@settings(max_examples=10, deadline=None)
@given(layouts, st.integers(0, 999), st.booleans(), st.integers(0, 5))
def test_redundancy_to_newer_is_the_mean_cosine_to_all_newer_keys_of_the_true_patch(
    frames: list[Frame], seed: int, shuffled: bool, missing: int
) -> None:
    total = sum(frame.rows * frame.columns for frame in frames)
    slots = make_slots(frames, seed=seed, shuffled=shuffled, missing=min(missing, total - 1))
    scores = similarity_to_newer(slots)
    for head in range(2):
        for slot in range(slots.count):
            cosines = [
                cosine(slots, head, slot, other)
                for other in same_patch(slots, head, slot)
                if slots.frames[head, other] > slots.frames[head, slot]
            ]
            wanted = sum(cosines) / len(cosines) if cosines else 0.0
            assert abs(float(scores[head, slot]) - wanted) < 1e-4


def test_redundancy_to_newer_is_the_same_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = make_slots([Frame(2, 3), Frame(1, 2, camera=1)] * 9, seed=4, missing=11)
    at_once = similarity_to_newer(slots)
    for rows in (1, 5, 17):
        monkeypatch.setattr(redundancy, "BLOCK_ROWS", rows)
        assert torch.allclose(similarity_to_newer(slots), at_once, atol=1e-6)


@settings(max_examples=10, deadline=None)
@given(layouts, st.integers(0, 999), st.integers(0, 5))
def test_change_is_measured_against_the_same_patch_in_the_frame_before_of_the_same_camera(
    frames: list[Frame], seed: int, missing: int
) -> None:
    total = sum(frame.rows * frame.columns for frame in frames)
    slots = make_slots(frames, seed=seed, shuffled=True, missing=min(missing, total - 1))
    scores = make_policy("aks").score(slots)
    for head in range(2):
        for slot in range(slots.count):
            older = [
                (int(slots.frames[head, other]), other)
                for other in same_patch(slots, head, slot)
                if slots.frames[head, other] < slots.frames[head, slot]
            ]
            wanted = -cosine(slots, head, slot, max(older)[1]) if older else 1.0
            assert abs(float(scores[head, slot]) / STEPS - wanted) < 2e-4


def test_the_same_key_seen_at_other_times_is_fully_redundant_although_its_rotated_form_is_not() -> None:
    raw = torch.randn(1, 1, 1, 64, generator=torch.Generator().manual_seed(0)).expand(1, 40, 1, 64).reshape(1, 40, 64)
    for axes in ([0] * 32, [0] * 8 + [1] * 12 + [2] * 12, [0, 1, 2] * 10 + [0, 0]):
        slots = make_slots([Frame(1, 1)] * 40, heads=1, head_dim=64, raw_keys=raw, turn=rotary(64, axes))
        recent = recent_slots(slots, 40, 0.05)
        rotated = torch.nn.functional.cosine_similarity(slots.keys[0, 0], slots.keys[0, -1], dim=0)
        assert rotated < 0.99
        assert novelty(slots, recent, "recent")[0, 0] == -STEPS
        shuffled = reorder(slots, torch.randperm(40, generator=torch.Generator().manual_seed(1))[None])
        again = novelty(shuffled, recent_slots(shuffled, 40, 0.05), "recent")
        assert bool((again[again < torch.inf] == -STEPS).all())


@pytest.mark.parametrize("compare_with", ["newer", "recent"])
def test_union_takes_the_recent_frames_then_redundancy_then_the_largest_values(compare_with: str) -> None:
    slots = make_slots([Frame()] * 12, seed=5)
    policy = make_policy("infinipot_v", {"alpha": 0.6, "recent_share": 0.3, "compare_with": compare_with})
    keep = 40
    kept = policy.select(slots, keep)
    recent = recent_slots(slots, keep, 0.3)
    assert recent.sum(-1).tolist() == [12, 12]
    scores = novelty(slots, recent, compare_with)
    for head in range(2):
        by_redundancy = scores[head].topk(24).indices.tolist()
        rest = [slot for slot in range(slots.count) if slot not in by_redundancy]
        by_norm = sorted(rest, key=lambda slot: float(slots.value_norms[head, slot]), reverse=True)[: keep - 24]
        assert sorted(by_redundancy + by_norm) == indices(kept)[head].tolist()


def test_alpha_one_is_tar_and_alpha_zero_is_van() -> None:
    slots = make_slots([Frame()] * 12, seed=6, missing=7)
    for alpha, name in ((1.0, "tar"), (0.0, "van")):
        both = make_policy("infinipot_v", {"alpha": alpha, "recent_share": 0.2}).select(slots, 30)
        assert torch.equal(both, make_policy(name, {"recent_share": 0.2}).select(slots, 30))


def test_a_redundancy_share_below_the_recent_slots_still_keeps_the_recent_frames() -> None:
    slots = make_slots([Frame()] * 8, seed=7)
    for keep in (1, 5, 6, 7, 13, 47, 48):
        kept = make_policy("infinipot_v", {"alpha": 0.01, "recent_share": 0.9}).select(slots, keep)
        assert kept.sum(-1).tolist() == [keep, keep]
        newest = ((slots.frames == 7) & kept).sum(-1)
        assert newest.tolist() == [min(keep, 6)] * 2


def test_an_older_camera_that_fell_silent_is_neither_kept_whole_nor_thrown_away_whole() -> None:
    frames = [Frame(camera=1)] * 10 + [Frame(camera=0)] * 10
    slots = make_slots(frames, seed=8)
    kept = make_policy("tar", {"recent_share": 0.2}).select(slots, 60)
    old = ((slots.cameras == 1) & kept).sum(-1)
    assert bool(((old > 0) & (old < 60)).all())


def test_ten_thousand_identical_frames_leave_exact_counts_and_the_newest_frames() -> None:
    policy = make_policy("infinipot_v", {})
    keep, block = 48, 25
    key, value = torch.ones(2, 1, 6, 12)
    keys, values = key.repeat(1, block, 1), value.repeat(1, block, 1)
    slots = make_slots([Frame()] * block, heads=1, raw_keys=keys, values=values)
    turn = rotary(12)
    for seen in range(block, 10_000, block):
        kept = reorder(slots, indices(policy.select(slots, keep)))
        new = make_slots([Frame()] * block, heads=1, raw_keys=keys, values=values)
        new.positions[..., 0] += 2 * seen
        new.frames.add_(seen)
        new.keys.copy_(turn.rotate(keys, new.positions))
        parts = {name: torch.cat([getattr(kept, name), getattr(new, name)], dim=1) for name in TABLE}
        slots = LayerSlots(layer=0, layers=1, rotary=turn, **parts)
    final = policy.select(slots, keep)
    held = slots.frames[final].tolist()
    assert [held.count(9_999 - age) for age in range(8)] == [6] * 8


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("compare_with", ["recent", "newer"])
def test_an_older_numpy_gives_the_same_scores(
    monkeypatch: pytest.MonkeyPatch, shuffled: bool, compare_with: str
) -> None:
    slots = make_slots([Frame(3, 4)] * 9, seed=3, shuffled=shuffled)
    recent = recent_slots(slots, slots.count, 0.3)
    with_it = novelty(slots, recent, compare_with)
    monkeypatch.delattr(np, "vecdot", raising=False)
    without = novelty(slots, recent, compare_with)
    assert with_it.isfinite().any() and torch.equal(with_it.isfinite(), without.isfinite())
    assert (with_it - without)[with_it.isfinite()].abs().max() <= 1
