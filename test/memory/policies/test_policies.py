"""What holds for every policy, whatever the slots are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slots import Frame, identities, make_slots, reorder

from ros_kvstream.memory.policies import LayerSlots, SelectionPolicy, make_policy

POLICIES: dict[str, SelectionPolicy] = {
    "infinipot_v": make_policy("infinipot_v", {}),
    "infinipot_v pooled": make_policy("infinipot_v", {"pooling": "adaptive", "alpha": 0.7, "recent_share": 0.3}),
    "infinipot_v reference": make_policy("infinipot_v", {"compatibility": "paper", "recent_share": 0.25}),
    "infinipot_v recent": make_policy("infinipot_v", {"compare_with": "recent"}),
    "tar": make_policy("tar", {}),
    "tar recent": make_policy("tar", {"compare_with": "recent"}),
    "van": make_policy("van", {}),
    "van pooled": make_policy("van", {"pooling": "adaptive"}),
    "aks": make_policy("aks", {}),
    "uniform": make_policy("uniform", {}),
    "uniform reference": make_policy("uniform", {"compatibility": "paper"}),
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
    view = make_slots(
        frames,
        seed=draw(st.integers(0, 9999)),
        missing=missing,
        shuffled=draw(st.booleans()),
        heads=draw(st.integers(1, 3)),
        dtype=dtype,
    )
    return view, draw(st.integers(1, view.slots))


@EVERY
@settings(max_examples=15, deadline=None)
@given(case=layers())
def test_exactly_as_many_distinct_slots_as_asked_for_in_ascending_order(
    name: str, case: tuple[LayerSlots, int]
) -> None:
    view, keep = case
    kept = POLICIES[name].select(view, keep)
    assert kept.dtype == torch.int64
    assert kept.shape == (view.keys.shape[0], keep)
    assert int(kept.min()) >= 0
    assert int(kept.max()) < view.slots
    assert bool((kept[:, 1:] > kept[:, :-1]).all())


@EVERY
@settings(max_examples=12, deadline=None)
@given(case=layers())
def test_the_mask_and_the_indices_are_the_same_choice(name: str, case: tuple[LayerSlots, int]) -> None:
    view, keep = case
    mask = POLICIES[name].select_mask(view, keep)
    assert torch.equal(mask.nonzero()[:, 1].view(mask.shape[0], keep), POLICIES[name].select(view, keep))


@EVERY
@settings(max_examples=12, deadline=None)
@given(case=layers(), seed=st.integers(0, 999))
def test_the_order_of_the_slots_does_not_matter(name: str, case: tuple[LayerSlots, int], seed: int) -> None:
    view, keep = case
    if name == "infinipot_v reference":
        view = make_slots([Frame()] * 8, seed=seed)
        keep = min(keep, view.slots)
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(view.slots, generator=generator) for _ in range(view.keys.shape[0])])
    moved = reorder(view, order)
    policy = POLICIES[name]
    assert identities(view, policy.select(view, keep)) == identities(moved, policy.select(moved, keep))


@EVERY
@settings(max_examples=12, deadline=None)
@given(case=layers())
def test_the_same_slots_give_the_same_choice_and_are_left_as_they_were(
    name: str, case: tuple[LayerSlots, int]
) -> None:
    view, keep = case
    fields = ("keys", "values", "value_norms", "positions", "frames", "cameras")
    before = [getattr(view, field).clone() for field in fields]
    first = POLICIES[name].select(view, keep)
    assert torch.equal(first, POLICIES[name].select(view, keep))
    assert all(torch.equal(old, getattr(view, field)) for old, field in zip(before, fields, strict=True))


@pytest.mark.parametrize("name", KEEP_NEWEST)
@settings(max_examples=12, deadline=None)
@given(case=layers())
def test_the_newest_frame_stays_or_fills_everything_that_is_kept(name: str, case: tuple[LayerSlots, int]) -> None:
    view, keep = case
    kept = POLICIES[name].select(view, keep)
    for head in range(view.keys.shape[0]):
        newest = view.frames[head] == view.frames[head].max()
        assert int(newest[kept[head]].sum()) == min(keep, int(newest.sum()))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e6, 1e15])
def test_keys_and_values_of_any_size_are_chosen_from(name: str, dtype: torch.dtype, scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    keys, values = torch.randn(2, 2, 48, 12, generator=generator) * scale
    keys[:, ::5], values[:, ::7] = 0.0, 0.0
    view = make_slots([Frame()] * 8, raw_keys=keys, values=values, dtype=dtype)
    kept = POLICIES[name].select(view, 20)
    assert kept.shape == (2, 20)
    assert bool((kept[:, 1:] > kept[:, :-1]).all())


@EVERY
def test_values_that_are_not_numbers_do_not_stop_it(name: str) -> None:
    view = make_slots([Frame()] * 6, seed=1)
    view.keys[0, 3], view.value_norms[1, 5] = torch.nan, torch.nan
    view.keys[1, 20], view.value_norms[0, 7] = torch.inf, torch.inf
    assert POLICIES[name].select(view, 17).shape == (2, 17)


@pytest.mark.parametrize("name", ["infinipot_v", "infinipot_v pooled", "tar", "van", "van pooled", "sliding_window"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_identical_frames_the_newest_stay(name: str, shuffled: bool, dtype: torch.dtype) -> None:
    keys, values = torch.ones(2, 1, 6, 12).repeat(1, 2, 10, 1)
    view = make_slots([Frame()] * 10, raw_keys=keys, values=values, shuffled=shuffled, dtype=dtype)
    kept = POLICIES[name].select(view, 24)
    for head in range(2):
        assert view.frames[head, kept[head]].min() == 6


def test_uniform_spreads_over_time_and_recent_keeps_whole_frames() -> None:
    view = make_slots([Frame(2, 2)] * 6)
    assert POLICIES["uniform"].select(view, 6)[0].tolist() == [0, 4, 8, 12, 16, 20]
    assert POLICIES["recent"].select(view, 10)[0].tolist() == [12, 13, *range(16, 24)]
    assert POLICIES["sliding_window"].select(view, 10)[0].tolist() == list(range(14, 24))
