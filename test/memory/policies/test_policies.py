# SPDX-License-Identifier: Apache-2.0
"""What holds for every policy, whatever the slots are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slots import TABLE, Frame, identities, indices, make_slots, reorder

from ros_kvstream.memory.policies import LayerSlots, SelectionPolicy, make_policy

POLICIES: dict[str, SelectionPolicy] = {
    "infinipot_v": make_policy("infinipot_v", {}),
    "infinipot_v pooled": make_policy("infinipot_v", {"pooling": "adaptive", "alpha": 0.7, "recent_share": 0.3}),
    "infinipot_v paper": make_policy("infinipot_v", {"compatibility": "paper", "recent_share": 0.25}),
    "infinipot_v recent": make_policy("infinipot_v", {"compare_with": "recent"}),
    "tar": make_policy("tar", {}),
    "tar recent": make_policy("tar", {"compare_with": "recent"}),
    "van": make_policy("van", {}),
    "van pooled": make_policy("van", {"pooling": "adaptive"}),
    "aks": make_policy("aks", {}),
    "uniform": make_policy("uniform", {}),
    "uniform paper": make_policy("uniform", {"compatibility": "paper"}),
    "sliding_window": make_policy("sliding_window", {}),
    "recent": make_policy("recent", {}),
}
EVERY = pytest.mark.parametrize("name", POLICIES)
KEEP_NEWEST = [
    "infinipot_v", "infinipot_v recent", "infinipot_v pooled", "tar", "tar recent", "van", "van pooled", "aks",
    "sliding_window", "recent",
]  # fmt: skip

frame_lists = st.lists(
    st.builds(Frame, rows=st.integers(1, 3), columns=st.integers(1, 3), camera=st.integers(0, 2)),
    min_size=1,
    max_size=9,
)
same_frames = st.integers(1, 12).map(lambda count: [Frame()] * count)


@st.composite
def layers(draw: st.DrawFn) -> tuple[LayerSlots, int]:
    """A layer of whole or ragged frames of one or more sizes and cameras, and how many slots to keep of it."""
    frames = draw(st.one_of(frame_lists, same_frames))
    total = sum(frame.rows * frame.columns for frame in frames)
    missing = draw(st.integers(0, total - 1)) if draw(st.booleans()) else 0
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    slots = make_slots(
        frames,
        seed=draw(st.integers(0, 9999)),
        missing=missing,
        shuffled=draw(st.booleans()),
        heads=draw(st.integers(1, 3)),
        dtype=dtype,
    )
    return slots, draw(st.integers(1, slots.count))


@EVERY
@settings(max_examples=15, deadline=None)
@given(case=layers())
def test_every_head_keeps_exactly_the_given_number_of_slots(name: str, case: tuple[LayerSlots, int]) -> None:
    slots, keep = case
    kept = POLICIES[name].select(slots, keep)
    assert kept.dtype == torch.bool
    assert kept.shape == slots.frames.shape
    assert kept.sum(-1).tolist() == [keep] * len(kept)


@EVERY
@settings(max_examples=12, deadline=None)
@given(case=layers(), seed=st.integers(0, 999))
def test_the_order_of_the_slots_does_not_matter(name: str, case: tuple[LayerSlots, int], seed: int) -> None:
    slots, keep = case
    if name == "infinipot_v paper":
        slots = make_slots([Frame()] * 8, seed=seed)
        keep = min(keep, slots.count)
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(slots.count, generator=generator) for _ in range(slots.keys.shape[0])])
    moved = reorder(slots, order)
    policy = POLICIES[name]
    assert identities(slots, policy.select(slots, keep)) == identities(moved, policy.select(moved, keep))


@EVERY
@settings(max_examples=12, deadline=None)
@given(case=layers())
def test_the_same_slots_give_the_same_choice_and_are_left_as_they_were(
    name: str, case: tuple[LayerSlots, int]
) -> None:
    slots, keep = case
    before = [getattr(slots, field).clone() for field in TABLE]
    first = POLICIES[name].select(slots, keep)
    assert torch.equal(first, POLICIES[name].select(slots, keep))
    assert all(torch.equal(old, getattr(slots, field)) for old, field in zip(before, TABLE, strict=True))


@pytest.mark.parametrize("name", KEEP_NEWEST)
@settings(max_examples=12, deadline=None)
@given(case=layers())
def test_the_newest_frame_stays_or_fills_everything_that_is_kept(name: str, case: tuple[LayerSlots, int]) -> None:
    slots, keep = case
    kept = POLICIES[name].select(slots, keep)
    for head in range(slots.keys.shape[0]):
        newest = slots.frames[head] == slots.frames[head].max()
        assert int((newest & kept[head]).sum()) == min(keep, int(newest.sum()))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e6, 1e15])
def test_keys_and_values_of_any_size_are_chosen_from(name: str, dtype: torch.dtype, scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    keys, values = torch.randn(2, 2, 48, 12, generator=generator) * scale
    keys[:, ::5], values[:, ::7] = 0.0, 0.0
    slots = make_slots([Frame()] * 8, raw_keys=keys, values=values, dtype=dtype)
    kept = POLICIES[name].select(slots, 20)
    assert kept.sum(-1).tolist() == [20, 20]


@EVERY
def test_values_that_are_not_numbers_do_not_stop_it(name: str) -> None:
    slots = make_slots([Frame()] * 6, seed=1)
    slots.keys[0, 3], slots.value_norms[1, 5] = torch.nan, torch.nan
    slots.keys[1, 20], slots.value_norms[0, 7] = torch.inf, torch.inf
    assert POLICIES[name].select(slots, 17).sum(-1).tolist() == [17, 17]


@pytest.mark.parametrize("name", ["infinipot_v", "infinipot_v pooled", "tar", "van", "van pooled", "sliding_window"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_identical_frames_the_newest_stay(name: str, shuffled: bool, dtype: torch.dtype) -> None:
    keys, values = torch.ones(2, 1, 6, 12).repeat(1, 2, 10, 1)
    slots = make_slots([Frame()] * 10, raw_keys=keys, values=values, shuffled=shuffled, dtype=dtype)
    kept = POLICIES[name].select(slots, 24)
    for head in range(2):
        assert slots.frames[head, kept[head]].min() == 6


def test_uniform_spreads_over_time_and_recent_keeps_whole_frames() -> None:
    slots = make_slots([Frame(2, 2)] * 6)
    assert indices(POLICIES["uniform"].select(slots, 6))[0].tolist() == [0, 4, 8, 12, 16, 20]
    assert indices(POLICIES["recent"].select(slots, 10))[0].tolist() == [12, 13, *range(16, 24)]
    assert indices(POLICIES["sliding_window"].select(slots, 10))[0].tolist() == list(range(14, 24))
