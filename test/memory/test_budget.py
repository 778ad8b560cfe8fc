# SPDX-License-Identifier: Apache-2.0
"""The plan of a budget equals what is allocated, and is the largest that fits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slots import rotary

from ros_kvstream.errors import BudgetError
from ros_kvstream.memory.arena import Arena
from ros_kvstream.memory.budget import MIB, CacheShape, plan_budget, smallest_budget

QWEN_3B = CacheShape(layers=36, kv_heads=2, head_dim=128, dtype=torch.bfloat16)


def test_bytes_per_token_are_those_of_the_published_models() -> None:
    assert QWEN_3B.token_bytes == 36_864
    assert CacheShape(28, 4, 128, torch.bfloat16).token_bytes == 57_344
    assert CacheShape(24, 2, 64, torch.bfloat16).token_bytes == 12_288


shapes = st.builds(
    CacheShape,
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([8, 16, 32]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(0, 9), st.integers(1, 60), st.integers(1, 20), st.integers(20_000, 3_000_000))
def test_live_tensors_take_exactly_what_the_plan_says_and_never_more_than_the_budget(
    shape: CacheShape, pinned: int, reserve: int, frame_tokens: int, budget: int
) -> None:
    try:
        plan = plan_budget(shape, budget, pinned=pinned, reserve=reserve, frame_tokens=frame_tokens)
    except BudgetError:
        assert budget < smallest_budget(shape, pinned, reserve, 2 * frame_tokens)
        return
    arena = Arena(plan, rotary(shape.head_dim))
    assert arena.allocated_bytes == plan.allocated_bytes == sum(plan.parts.values()) <= budget
    one_more = smallest_budget(shape, pinned, reserve, plan.frame_slots + 1)
    assert one_more > budget, "the plan leaves room for another slot"


def test_too_small_a_budget_names_the_smallest_that_works() -> None:
    arguments = {"pinned": 10, "reserve": 100, "frame_tokens": 140}
    with pytest.raises(BudgetError, match=r"at least ([0-9.]+)") as refused:
        plan_budget(QWEN_3B, 2 * MIB, **arguments)
    named = float(str(refused.value).rsplit("at least ", 1)[1].rstrip("."))
    assert plan_budget(QWEN_3B, int(named * MIB), **arguments).frame_slots >= 280
    with pytest.raises(BudgetError):
        plan_budget(QWEN_3B, int((named - 0.01) * MIB), **arguments)


def test_allocation_that_fails_is_a_clear_error() -> None:
    plan = plan_budget(QWEN_3B, 1 << 50, pinned=1, reserve=1, frame_tokens=1)
    with pytest.raises(BudgetError, match="could not be allocated.*Lower memory.budget_mib"):
        Arena(plan, rotary(128))
