# SPDX-License-Identifier: Apache-2.0
"""An arena in mixed precision holds more slots in the same bytes, keeps what a policy keeps, and counts every byte."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arenas import HALVES, append, contents, fill, make_arena, make_quantized_arena, same, slots_by_position

from ros_kvstream.errors import BudgetError, CapacityError, SettingsError
from ros_kvstream.memory.arena import Chunk
from ros_kvstream.memory.budget import MIB, CacheShape, plan_budget
from ros_kvstream.memory.policies import make_policy
from ros_kvstream.memory.quantized.packing import hadamard
from ros_kvstream.settings import QuantizedSettings

QWEN_3B = CacheShape(36, 2, 128, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 24, 80])
def test_everything_allocated_is_planned_and_within_the_budget(dtype: torch.dtype, head_dim: int) -> None:
    arena = make_quantized_arena(dtype=dtype, head_dim=head_dim)
    assert arena.allocated_bytes == arena.plan.allocated_bytes <= arena.plan.budget_bytes


@pytest.mark.parametrize(
    "shape",
    [QWEN_3B, CacheShape(28, 4, 128, torch.bfloat16), CacheShape(24, 2, 64, torch.bfloat16),
     CacheShape(36, 8, 128, torch.float16)],
)  # fmt: skip
def test_at_an_equal_budget_it_holds_1_8_times_the_slots(shape: CacheShape) -> None:
    """With the default shares; scales, slot table and both scratches are inside the budget."""
    options = {"pinned": 16, "reserve": 448, "frame_tokens": 192}
    plain = plan_budget(shape, 1024 * MIB, **options)
    mixed = plan_budget(shape, 1024 * MIB, QuantizedSettings(mode="on"), **options)
    assert mixed.allocated_bytes <= 1024 * MIB
    assert mixed.frame_slots >= 1.8 * plain.frame_slots


def test_until_the_first_demotion_it_equals_a_native_arena_bit_for_bit() -> None:
    mixed = make_quantized_arena(frame_slots=80, dtype=torch.bfloat16)
    plain = make_arena(head_dim=16, dtype=torch.bfloat16, frame_slots=80)
    for frame in range(mixed.plan.full_frame_slots // 4):
        for arena in (mixed, plain):
            append(arena, 4, frame=frame, seed=frame, t=frame)
    assert mixed.tier_counts["int4"] == mixed.tier_counts["int8"] == 0
    for index in range(2):
        for ours, theirs in zip(mixed.layer(index), plain.layer(index), strict=True):
            assert torch.equal(ours, theirs)


@settings(max_examples=25, deadline=None)
@given(frames=st.integers(1, 9), dtype=st.sampled_from([torch.float32, torch.bfloat16]), tokens=st.integers(1, 4))
def test_demotion_loses_no_slot_and_keeps_keys_values_and_table(frames: int, dtype: torch.dtype, tokens: int) -> None:
    mixed = make_quantized_arena(dtype=dtype)
    plain = make_arena(head_dim=16, dtype=dtype, frame_slots=60)
    fill(mixed, frames, tokens)
    fill(plain, frames, tokens)
    counts = mixed.tier_counts
    assert sum(counts.values()) == frames * tokens
    for bits, most in ((4, mixed.plan.int4_slots), (8, mixed.plan.int8_slots)):
        assert counts[f"int{bits}"] <= most
    for index in range(2):
        for ours, theirs in zip(slots_by_position(mixed, index), slots_by_position(plain, index), strict=True):
            assert ours.keys() == theirs.keys()
            for position, (_, key, value, _) in theirs.items():
                assert torch.allclose(ours[position][1], key, atol=0.35), "4 bits over 16 normal channels"
                assert torch.allclose(ours[position][2], value, atol=0.35)
        assert torch.equal(mixed.frame_slots(index).value_norms, plain.frame_slots(index).value_norms)


def test_each_tier_has_its_own_accuracy_and_the_newest_frame_is_exact() -> None:
    mixed, plain = make_quantized_arena(), make_arena(head_dim=16, frame_slots=60)
    fill(mixed, 10)
    fill(plain, 10)
    keys, values = mixed.frame_slots(0).keys, mixed.frame_slots(0).values
    reference = plain.frame_slots(0)
    spans, start = {}, 0
    for name in ("int4", "int8", "full"):
        spans[name] = slice(start, start + mixed.tier_counts[name])
        start += mixed.tier_counts[name]
        assert mixed.tier_counts[name] > 0
    for ours, theirs in ((keys, reference.keys), (values, reference.values)):
        errors = {name: float((ours[:, span] - theirs[:, span]).abs().mean()) for name, span in spans.items()}
        assert errors["full"] == 0.0
        assert 0 < errors["int8"] < errors["int4"] / 4
    assert torch.equal(keys[:, -4:], reference.keys[:, -4:])


def test_a_slot_that_stays_in_its_tier_keeps_its_codes() -> None:
    arena = make_quantized_arena(frame_slots=60)
    fill(arena, 10)
    before = slots_by_position(arena, 1)[0]
    in_int4 = arena.frame_slots(1).positions[0, : arena.tier_counts["int4"]].tolist()
    fill(arena, 4, start=10)
    arena.keep([torch.ones(2, arena.frame_slots_used, dtype=torch.bool)] * 2)
    after = slots_by_position(arena, 1)[0]
    still = arena.frame_slots(1).positions[0, : arena.tier_counts["int4"]].tolist()
    compared = [position for position in in_int4 if position in still]
    assert compared
    for t, h, w in compared:  # frame t is at time t
        for old, new in zip(before[(t, t, h, w)][1:3], after[(t, t, h, w)][1:3], strict=True):
            assert torch.allclose(old, new, atol=1e-5)


@pytest.mark.parametrize("policy_name", ["infinipot_v", "tar", "van", "uniform", "sliding_window"])
@pytest.mark.parametrize("order", ["policy", "recent"])
def test_a_compaction_keeps_what_the_policy_chooses(policy_name: str, order: str) -> None:
    policy = make_policy(policy_name, {})
    arena = make_quantized_arena(order=order)
    fill(arena, arena.plan.frame_slots // 4)
    keep = 3 * arena.plan.frame_slots // 4
    chosen = []
    for index in range(2):
        view = arena.frame_slots(index)
        mask = policy.select(view, keep)
        kept = [view.positions[head][mask[head]].tolist() for head in range(2)]
        chosen.append([{tuple(position) for position in head} for head in kept])
    arena.compact(policy, keep)
    assert arena.frame_slots_used == keep and arena.compactions == 1
    for index in range(2):
        positions = arena.frame_slots(index).positions
        assert [{tuple(position) for position in positions[head].tolist()} for head in range(2)] == chosen[index]


def test_what_the_policy_would_keep_longest_gets_the_most_bits_even_if_old() -> None:
    """Value norms decide (van): old slots with large values go back up to full precision."""
    arena = make_quantized_arena(frame_slots=60)
    policy = make_policy("van", {})
    fill(arena, arena.plan.frame_slots // 4)
    keep = arena.plan.frame_slots // 2
    arena.compact(policy, keep)
    counts = arena.tier_counts
    assert counts["int4"] > 0
    view = arena.frame_slots(0)
    best = policy.select(view, counts["full"])
    assert float(best[:, -counts["full"] :].float().mean()) > 0.8
    newest = view.frames.max()
    assert (view.frames[:, -counts["full"] :] < newest - 3).any()


def test_a_question_is_rolled_back_bit_for_bit() -> None:
    arena = make_quantized_arena()
    fill(arena, 9)
    before = contents(arena)
    used = arena.used_bytes
    mark = arena.mark()
    append(arena, 6, frame=-1, frames=False, seed=7, t=100)
    assert arena.used_bytes > used and arena.peak_bytes >= arena.used_bytes
    arena.roll_back(mark)
    assert arena.used_bytes == used
    assert same(before, contents(arena))


def test_a_question_sees_all_tiers_and_itself() -> None:
    arena = make_quantized_arena()
    fill(arena, 9)
    memory = [tensor.clone() for tensor in arena.layer(0)]
    generator = torch.Generator().manual_seed(5)
    new = torch.randn(2, 2, 3, 16, generator=generator)
    positions = torch.full((3, 3), 50, dtype=torch.int32)
    arena.begin(Chunk(positions, torch.full((3,), -1, dtype=torch.int32), torch.zeros(3).short()), frames=False)
    keys, values = arena.write(0, new[0], new[1])
    assert torch.equal(keys, torch.cat([memory[0], new[0]], dim=1))
    assert torch.equal(values, torch.cat([memory[1], new[1]], dim=1))


def test_rebasing_rotates_every_key_and_quantizes_none_again() -> None:
    arena = make_quantized_arena()
    fill(arena, 10)
    raw = [arena.frame_slots(index).unrotated_keys.clone() for index in range(2)]
    arena.replace_positions(lambda t: t + 1000)
    for index in range(2):
        view = arena.frame_slots(index)
        assert (view.positions[..., 0] >= 1000).all()
        assert torch.allclose(view.unrotated_keys, raw[index], atol=1e-3)


def test_a_smaller_and_a_larger_budget_on_the_live_arena() -> None:
    arena = make_quantized_arena(frame_slots=80)
    fill(arena, arena.plan.frame_slots // 4)
    plan = arena.plan
    options = {"pinned": 3, "reserve": 10, "frame_tokens": 4}
    smaller = plan_budget(plan.shape, plan.budget_bytes * 2 // 3, HALVES, **options)
    with pytest.raises(CapacityError):
        arena.resize(smaller)
    arena.compact(make_policy("uniform", {}), smaller.frame_slots)
    kept = [set(head) for head in slots_by_position(arena, 1)]
    arena.resize(smaller)
    assert arena.allocated_bytes == smaller.allocated_bytes <= smaller.budget_bytes
    assert [set(head) for head in slots_by_position(arena, 1)] == kept
    arena.resize(plan)
    assert arena.allocated_bytes == plan.allocated_bytes
    assert [set(head) for head in slots_by_position(arena, 1)] == kept
    fill(arena, 2, start=1000)
    assert arena.frame_slots_used == smaller.frame_slots + 8


def test_frames_that_do_not_fit_into_the_native_part_are_refused_and_nothing_changes() -> None:
    arena = make_quantized_arena()
    while arena.full_slots_free >= 4:
        append(arena, 4, frame=0, seed=0)
    used = arena.used
    with pytest.raises(CapacityError, match="demote"):
        append(arena, 4, frame=1, seed=1)
    assert arena.used == used
    with pytest.raises(CapacityError, match="do not fit"):
        arena.demote(arena.plan.frame_slots)


def test_clear_forgets_everything_and_it_works_again() -> None:
    arena = make_quantized_arena(pinned=0)
    fill(arena, 9)
    arena.clear()
    assert arena.used_bytes == 0 and sum(arena.tier_counts.values()) == 0
    arena.pin()
    fill(arena, 9)
    assert sum(arena.tier_counts.values()) == 36


def test_a_budget_that_is_too_small_names_one_that_works() -> None:
    options = {"pinned": 3, "reserve": 10, "frame_tokens": 64}
    with pytest.raises(BudgetError, match="at least") as error:
        plan_budget(QWEN_3B, 1000, HALVES, **options)
    works = float(str(error.value).rstrip(".").split()[-1])
    plan = plan_budget(QWEN_3B, int(works * MIB), HALVES, **options)
    assert plan.full_frame_slots >= 128


@settings(max_examples=60, deadline=None)
@given(
    int8=st.floats(0, 0.5), int4=st.floats(0.01, 0.45), mib=st.floats(8, 64), tokens=st.integers(1, 200),
    layers=st.integers(1, 8), dim=st.sampled_from([16, 80, 128]),
)  # fmt: skip
def test_a_plan_is_the_largest_that_fits(
    int8: float, int4: float, mib: float, tokens: int, layers: int, dim: int
) -> None:
    shape = CacheShape(layers, 2, dim, torch.bfloat16)
    quantized = QuantizedSettings(mode="on", int8=int8, int4=int4)
    plan = plan_budget(shape, int(mib * MIB), quantized, pinned=5, reserve=20, frame_tokens=tokens)
    assert plan.allocated_bytes <= mib * MIB
    assert plan.full_frame_slots >= 2 * tokens
    assert plan.int4_slots + plan.int8_slots + plan.full_frame_slots == plan.frame_slots
    slot = shape.slot_bytes + shape.scratch_row_bytes + 2 * shape.key_bytes
    assert mib * MIB - plan.allocated_bytes <= 4 * slot


@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128])
def test_the_transform_is_orthogonal(dim: int) -> None:
    matrix = hadamard(dim)
    assert torch.allclose(matrix @ matrix.T, torch.eye(dim), atol=1e-5)


def test_the_largest_shares_are_accepted_whatever_their_sum_rounds_to() -> None:
    assert 0.05 + 0.9 > 0.95
    assert QuantizedSettings(int8=0.05, int4=0.9).int4 == 0.9


@pytest.mark.parametrize(
    "bad",
    [{"int8": 0.951, "int4": 0.0}, {"int8": 0.6, "int4": 0.6}, {"int8": 0, "int4": 0}, {"order": "saliency"},
     {"mode": "yes"}],
)  # fmt: skip
def test_a_bad_setting_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="quantized"):
        QuantizedSettings(**bad)  # type: ignore[arg-type]
