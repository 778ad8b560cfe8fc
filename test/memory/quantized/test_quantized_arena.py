"""The precision ladder holds more slots in the same bytes, loses no slot that it should keep, and counts every byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arenas import append, make_arena
from torch import Tensor

from ros_kvstream.errors import BudgetError, CapacityError, SettingsError
from ros_kvstream.memory.arena import Arena
from ros_kvstream.memory.budget import MIB, CacheShape, plan_budget
from ros_kvstream.memory.policies import make_policy
from ros_kvstream.memory.quantized.arena import QuantizedArena
from ros_kvstream.memory.quantized.codec import hadamard
from ros_kvstream.memory.quantized.plan import QuantizedPlan, plan_quantized
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.settings import QuantizedSettings

HALVES = QuantizedSettings(mode="on", int8=0.25, int4=0.5)
QWEN_3B = CacheShape(36, 2, 128, torch.bfloat16)


def rotary(head_dim: int) -> Rotary:
    half = head_dim // 2
    return Rotary(1.0 / (1e4 ** (torch.arange(half).float() / half)), torch.arange(half) % 3)


def make_ladder(
    frame_slots: int = 40, *, dtype: torch.dtype = torch.float32, head_dim: int = 16, pinned: int = 3,
    quantized: QuantizedSettings = HALVES, order: str = "policy", frame_tokens: int = 4,
) -> QuantizedArena:  # fmt: skip
    """A ladder of about this many frame slots, its prompt already pinned."""
    shape = CacheShape(2, 2, head_dim, dtype)
    options = {"pinned": pinned, "reserve": 10, "frame_tokens": frame_tokens}
    ladder = replace(quantized, order=order)
    budget = 1000
    while plan_or_none(shape, budget, ladder, options, frame_slots) is None:
        budget += 500
    arena = QuantizedArena(plan_quantized(shape, budget, ladder, **options), rotary(head_dim), order=order)
    if pinned:
        append(arena, pinned, frame=-1, frames=False, seed=99)
    arena.pin()
    return arena


def fill_salient(arena: Arena, saliency: list[list[float]], start: int = 0) -> None:
    """Append frames of so many tokens; a slot's w is its token's number in its frame."""
    for frame, values in enumerate(saliency, start):
        arena.demote(len(values))
        append(arena, len(values), frame=frame, seed=frame, t=frame, saliency=torch.tensor(values).half())


def grades(saliency: list[list[float]], start: int = 0) -> dict[tuple[int, int], tuple[float, int]]:
    """(frame, token) -> (saliency, frame): what a slot is worth, ties to the newer."""
    return {
        (frame, token): (float(torch.tensor(value).half()), frame)
        for frame, values in enumerate(saliency, start) for token, value in enumerate(values)
    }  # fmt: skip


def tiers(arena: QuantizedArena, index: int, head: int) -> dict[str, list[tuple[int, int]]]:
    """(frame, token) of the slots in each tier."""
    view, found, start = arena.frame_slots(index), {}, 0
    for name in ("int4", "int8", "full"):
        span = slice(start, start + arena.tier_counts[name])
        found[name] = [
            (int(frame), int(place[2]))
            for frame, place in zip(view.frames[head, span], view.positions[head, span], strict=True)
        ]
        start = span.stop
    return found


def plan_or_none(
    shape: CacheShape, budget: int, ladder: QuantizedSettings, options: dict[str, int], slots: int
) -> QuantizedPlan | None:
    """The plan of this budget, None where it has fewer frame slots."""
    try:
        plan = plan_quantized(shape, budget, ladder, **options)
    except BudgetError:
        return None
    return plan if plan.frame_slots >= slots else None


def fill(arena: Arena, frames: int, tokens: int = 4, start: int = 0) -> None:
    """Append whole frames; slots move down the ladder where they must."""
    for frame in range(start, start + frames):
        arena.demote(tokens)
        append(arena, tokens, frame=frame, seed=frame, t=frame)


def slots_by_place(arena: Arena, index: int) -> list[dict[tuple[int, ...], tuple[Tensor, Tensor]]]:
    """Per KV head: (frame, t, h, w) -> raw key and value of every frame slot."""
    view = arena.frame_slots(index)
    raw, values = view.unrotated_keys.clone(), view.values.float()
    return [
        {
            (int(view.frames[head, slot]), *view.positions[head, slot].tolist()): (raw[head, slot], values[head, slot])
            for slot in range(view.slots)
        }
        for head in range(raw.shape[0])
    ]


def test_everything_allocated_is_planned_and_within_the_budget() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for head_dim, order in ((16, "policy"), (24, "recent"), (80, "policy"), (16, "saliency"), (80, "saliency")):
            arena = make_ladder(dtype=dtype, head_dim=head_dim, order=order)
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
    ladder = plan_quantized(shape, 1024 * MIB, QuantizedSettings(mode="on"), **options)
    assert ladder.allocated_bytes <= 1024 * MIB
    assert ladder.frame_slots >= 1.8 * plain.frame_slots


def test_until_the_first_move_it_is_a_plain_arena_bit_for_bit() -> None:
    ladder = make_ladder(frame_slots=80, dtype=torch.bfloat16)
    plain = make_arena(head_dim=16, dtype=torch.bfloat16, frame_slots=80)
    for frame in range(ladder.plan.full_frame_slots // 4):
        for arena in (ladder, plain):
            append(arena, 4, frame=frame, seed=frame, t=frame)
    assert ladder.tier_counts["int4"] == ladder.tier_counts["int8"] == 0
    for index in range(2):
        for ours, theirs in zip(ladder.layer(index), plain.layer(index), strict=True):
            assert torch.equal(ours, theirs)


@settings(max_examples=25, deadline=None)
@given(frames=st.integers(1, 9), dtype=st.sampled_from([torch.float32, torch.bfloat16]), tokens=st.integers(1, 4))
def test_settling_loses_no_slot_and_keeps_keys_values_and_table(frames: int, dtype: torch.dtype, tokens: int) -> None:
    ladder = make_ladder(dtype=dtype)
    plain = make_arena(head_dim=16, dtype=dtype, frame_slots=60)
    fill(ladder, frames, tokens)
    fill(plain, frames, tokens)
    counts = ladder.tier_counts
    assert sum(counts.values()) == frames * tokens
    for bits, most in ((4, ladder.plan.int4_slots), (8, ladder.plan.int8_slots)):
        assert counts[f"int{bits}"] <= most
    for index in range(2):
        for ours, theirs in zip(slots_by_place(ladder, index), slots_by_place(plain, index), strict=True):
            assert ours.keys() == theirs.keys()
            for place, (key, value) in theirs.items():
                assert torch.allclose(ours[place][0], key, atol=0.35), "4 bits over 16 normal channels"
                assert torch.allclose(ours[place][1], value, atol=0.35)
        assert torch.equal(ladder.frame_slots(index).value_norms, plain.frame_slots(index).value_norms)


def test_each_tier_has_its_own_accuracy_and_the_newest_frame_is_exact() -> None:
    ladder, plain = make_ladder(), make_arena(head_dim=16, frame_slots=60)
    fill(ladder, 10)
    fill(plain, 10)
    keys, values = ladder.frame_slots(0).keys, ladder.frame_slots(0).values
    reference = plain.frame_slots(0)
    spans, start = {}, 0
    for name in ("int4", "int8", "full"):
        spans[name] = slice(start, start + ladder.tier_counts[name])
        start += ladder.tier_counts[name]
        assert ladder.tier_counts[name] > 0
    for ours, theirs in ((keys, reference.keys), (values, reference.values)):
        errors = {name: float((ours[:, span] - theirs[:, span]).abs().mean()) for name, span in spans.items()}
        assert errors["full"] == 0.0
        assert 0 < errors["int8"] < errors["int4"] / 4
    assert torch.equal(keys[:, -4:], reference.keys[:, -4:])


def test_a_slot_that_stays_in_its_tier_keeps_its_codes() -> None:
    arena = make_ladder(frame_slots=60)
    fill(arena, 10)
    before = {place: pair for place, pair in slots_by_place(arena, 1)[0].items()}
    in_int4 = arena.frame_slots(1).positions[0, : arena.tier_counts["int4"]].tolist()
    fill(arena, 4, start=10)
    arena.keep([torch.ones(2, arena.frame_slots_used, dtype=torch.bool)] * 2)
    after = slots_by_place(arena, 1)[0]
    still = {tuple(place) for place in arena.frame_slots(1).positions[0, : arena.tier_counts["int4"]].tolist()}
    compared = [tuple(place) for place in in_int4 if tuple(place) in still]
    assert compared
    for place in compared:
        frame = place[0]
        for old, new in zip(before[(frame, *place)], after[(frame, *place)], strict=True):
            assert torch.allclose(old, new, atol=1e-5)


@pytest.mark.parametrize("policy_name", ["infinipot_v", "tar", "van", "uniform", "sliding_window"])
@pytest.mark.parametrize("order", ["policy", "recent", "saliency"])
def test_a_compaction_keeps_what_the_policy_chooses(policy_name: str, order: str) -> None:
    policy = make_policy(policy_name, {})
    arena = make_ladder(order=order)
    fill(arena, arena.plan.frame_slots // 4)
    keep = 3 * arena.plan.frame_slots // 4
    chosen = []
    for index in range(2):
        view = arena.frame_slots(index)
        mask = policy.select_mask(view, keep)
        chosen.append([{tuple(place) for place in view.positions[head][mask[head]].tolist()} for head in range(2)])
    arena.compact(policy, keep)
    assert arena.frame_slots_used == keep and arena.compactions == 1
    for index in range(2):
        positions = arena.frame_slots(index).positions
        assert [{tuple(place) for place in positions[head].tolist()} for head in range(2)] == chosen[index]


def test_what_the_policy_would_keep_longest_gets_the_most_bits_even_if_old() -> None:
    """Value norms decide (van): old slots with large values go back up to full precision."""
    arena = make_ladder(frame_slots=60)
    policy = make_policy("van", {})
    fill(arena, arena.plan.frame_slots // 4)
    keep = arena.plan.frame_slots // 2
    arena.compact(policy, keep)
    counts = arena.tier_counts
    assert counts["int4"] > 0
    view = arena.frame_slots(0)
    best = policy.select_mask(view, counts["full"])
    assert float(best[:, -counts["full"] :].float().mean()) > 0.8
    newest = view.frames.max()
    assert (view.frames[:, -counts["full"] :] < newest - 3).any()


SALIENCIES = st.lists(st.lists(st.floats(0, 300), min_size=4, max_size=4), min_size=10, max_size=20)


@settings(max_examples=25, deadline=None)
@given(saliency=SALIENCIES, policy=st.sampled_from(["van", "uniform", "sliding_window"]), share=st.floats(0.3, 0.9))
def test_at_a_compaction_the_most_salient_of_what_stays_gets_the_most_bits(
    saliency: list[list[float]], policy: str, share: float
) -> None:
    arena = make_ladder(frame_slots=80, order="saliency")
    fill_salient(arena, saliency)
    arena.compact(make_policy(policy, {}), max(4, int(share * arena.frame_slots_used)))
    worth = grades(saliency)
    for index in range(2):
        for head in range(2):
            found = tiers(arena, index, head)
            for coarse, fine in (("int4", "int8"), ("int8", "full"), ("int4", "full")):
                if found[coarse] and found[fine]:
                    assert max(worth[slot] for slot in found[coarse]) <= min(worth[slot] for slot in found[fine])
            coordinates = [slot for tier in found.values() for slot in tier]
            held = arena._layers[index].saliency[head, arena.pinned : arena.frames_end].tolist()  # type: ignore
            assert held == [worth[slot][0] for slot in coordinates], "the column moves with its slots"


def test_between_compactions_the_least_salient_slot_of_a_tier_moves_down_first() -> None:
    """One salient patch in each frame: after the first move none of them is packed, however old."""
    saliency = [[1.0, 1.0, 50.0, 1.0]] * 20
    arena = make_ladder(frame_slots=80, order="saliency")
    by_age = make_ladder(frame_slots=80, order="recent")
    while arena.full_slots_free >= 4:
        fill_salient(arena, [saliency[0]], start=arena.frame_slots_used // 4)
        fill_salient(by_age, [saliency[0]], start=by_age.frame_slots_used // 4)
    for each in (arena, by_age):
        each.demote(4)
    for ladder, lost in ((arena, False), (by_age, True)):
        found = tiers(ladder, 1, 0)
        assert found["int8"] + found["int4"]
        assert any(token == 2 for _, token in found["int8"] + found["int4"]) is lost


def test_text_and_frames_without_saliency_count_as_plain() -> None:
    arena = make_ladder(order="saliency")
    fill(arena, 3)
    append(arena, 3, frame=-1, frames=False, seed=7, t=50)
    assert arena._layers[0].saliency is not None
    assert not arena._layers[0].saliency[:, : arena.used].any()


def test_the_saliency_column_is_counted_only_where_it_is_there() -> None:
    options = {"pinned": 3, "reserve": 10, "frame_tokens": 4}
    by_policy, by_saliency = (
        plan_quantized(QWEN_3B, 64 * MIB, QuantizedSettings(mode="on", order=order), **options)
        for order in ("policy", "saliency")
    )
    rows = QWEN_3B.layers * QWEN_3B.kv_heads
    assert by_policy.parts["slot table"] == by_policy.slots * QWEN_3B.table_row_bytes
    assert by_saliency.parts["slot table"] == by_saliency.slots * (QWEN_3B.table_row_bytes + 2 * rows)
    assert 0.98 * by_policy.frame_slots < by_saliency.frame_slots <= by_policy.frame_slots
    assert by_saliency.bytes_in_use(1, 1, 1) - by_policy.bytes_in_use(1, 1, 1) == 3 * 2 * rows


@pytest.mark.parametrize("order", ["policy", "saliency"])
def test_a_question_is_rolled_back_bit_for_bit(order: str) -> None:
    arena = make_ladder(order=order)
    fill(arena, 9)
    before = [tensor.clone() for index in range(2) for tensor in arena.layer(index)]
    table = [arena.frame_slots(index).positions.clone() for index in range(2)]
    used = arena.used_bytes
    mark = arena.mark()
    append(arena, 6, frame=-1, frames=False, seed=7, t=100)
    assert arena.used_bytes > used and arena.peak_bytes >= arena.used_bytes
    arena.roll_back(mark)
    assert arena.used_bytes == used
    assert all(torch.equal(a, b) for a, b in zip(before, (t for i in range(2) for t in arena.layer(i)), strict=True))
    assert all(torch.equal(table[index], arena.frame_slots(index).positions) for index in range(2))


def test_a_question_sees_the_whole_ladder_and_itself() -> None:
    arena = make_ladder()
    fill(arena, 9)
    memory = [plane.clone() for plane in arena.layer(0)]
    generator = torch.Generator().manual_seed(5)
    new = torch.randn(2, 2, 3, 16, generator=generator)
    from ros_kvstream.memory.arena import Chunk

    positions = torch.full((3, 3), 50, dtype=torch.int32)
    arena.begin(Chunk(positions, torch.full((3,), -1, dtype=torch.int32), torch.zeros(3).short()), frames=False)
    keys, values = arena.write(0, new[0], new[1])
    assert torch.equal(keys, torch.cat([memory[0], new[0]], dim=1))
    assert torch.equal(values, torch.cat([memory[1], new[1]], dim=1))


def test_rebasing_turns_every_key_and_recodes_none() -> None:
    arena = make_ladder()
    fill(arena, 10)
    raw = [arena.frame_slots(index).unrotated_keys.clone() for index in range(2)]
    arena.replace_positions(lambda t: t + 1000)
    for index in range(2):
        view = arena.frame_slots(index)
        assert (view.positions[..., 0] >= 1000).all()
        assert torch.allclose(view.unrotated_keys, raw[index], atol=1e-3)


@pytest.mark.parametrize("order", ["policy", "saliency"])
def test_a_smaller_and_a_larger_budget_on_the_live_arena(order: str) -> None:
    arena = make_ladder(frame_slots=80, order=order)
    halves = replace(HALVES, order=order)
    fill(arena, arena.plan.frame_slots // 4)
    plan = arena.plan
    options = {"pinned": 3, "reserve": 10, "frame_tokens": 4}
    smaller = plan_quantized(plan.shape, plan.budget_bytes * 2 // 3, halves, **options)
    with pytest.raises(CapacityError):
        arena.resize(smaller)
    arena.compact(make_policy("uniform", {}), smaller.frame_slots)
    kept = [set(head) for head in slots_by_place(arena, 1)]
    arena.resize(smaller)
    assert arena.allocated_bytes == smaller.allocated_bytes <= smaller.budget_bytes
    assert [set(head) for head in slots_by_place(arena, 1)] == kept
    arena.resize(plan)
    assert arena.allocated_bytes == plan.allocated_bytes
    assert [set(head) for head in slots_by_place(arena, 1)] == kept
    fill(arena, 2, start=1000)
    assert arena.frame_slots_used == smaller.frame_slots + 8


def test_frames_that_do_not_fit_into_the_full_part_are_refused_and_nothing_changes() -> None:
    arena = make_ladder()
    while arena.full_slots_free >= 4:
        append(arena, 4, frame=0, seed=0)
    used = arena.used
    with pytest.raises(CapacityError, match="demote"):
        append(arena, 4, frame=1, seed=1)
    assert arena.used == used
    with pytest.raises(CapacityError, match="do not fit"):
        arena.demote(arena.plan.frame_slots)


def test_clear_forgets_everything_and_it_works_again() -> None:
    arena = make_ladder(pinned=0)
    fill(arena, 9)
    arena.clear()
    assert arena.used_bytes == 0 and sum(arena.tier_counts.values()) == 0
    arena.pin()
    fill(arena, 9)
    assert sum(arena.tier_counts.values()) == 36


def test_a_budget_that_is_too_small_names_one_that_works() -> None:
    options = {"pinned": 3, "reserve": 10, "frame_tokens": 64}
    with pytest.raises(BudgetError, match="at least") as error:
        plan_quantized(QWEN_3B, 1000, HALVES, **options)
    works = float(str(error.value).rstrip(".").split()[-1])
    plan = plan_quantized(QWEN_3B, int(works * MIB), HALVES, **options)
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
    ladder = QuantizedSettings(mode="on", int8=int8, int4=int4)
    plan = plan_quantized(shape, int(mib * MIB), ladder, pinned=5, reserve=20, frame_tokens=tokens)
    assert plan.allocated_bytes <= mib * MIB
    assert plan.full_frame_slots >= 2 * tokens
    assert plan.int4_slots + plan.int8_slots + plan.full_frame_slots == plan.frame_slots
    slot = shape.slot_bytes + shape.scratch_row_bytes + 2 * shape.plane_row_bytes
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
    [{"int8": 0.951, "int4": 0.0}, {"int8": 0.6, "int4": 0.6}, {"int8": 0, "int4": 0}, {"order": "size"},
     {"mode": "yes"}],
)  # fmt: skip
def test_a_bad_setting_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="quantized"):
        QuantizedSettings(**bad)  # type: ignore[arg-type]
