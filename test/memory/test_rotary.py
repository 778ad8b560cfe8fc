# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.memory.rotary import BLOCK_SLOTS, Rotary


def rotary(half: int, scaling: float = 1.0) -> Rotary:
    frequencies = 1.0 / (1e4 ** (torch.arange(half).float() / half))
    return Rotary(frequencies, torch.arange(half) % 3, scaling)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([4, 8, 16]), st.integers(1, 20), st.sampled_from([1.0, 1.3]))
def test_unrotate_undoes_rotate(seed: int, half: int, slots: int, scaling: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(2, slots, 2 * half, generator=generator)
    positions = torch.randint(0, 4000, (2, slots, 3), generator=generator, dtype=torch.int32)
    turn = rotary(half, scaling)
    back = turn.unrotate(turn.rotate(keys, positions), positions)
    assert torch.allclose(back, keys, atol=2e-5)


def test_blocks_do_not_change_the_result() -> None:
    keys = torch.randn(1, BLOCK_SLOTS + 7, 8)
    positions = torch.randint(0, 500, (1, BLOCK_SLOTS + 7, 3), dtype=torch.int32)
    turn = rotary(4)
    whole = turn.rotate(keys, positions)
    single = torch.cat([turn.rotate(keys[:, i : i + 1], positions[:, i : i + 1]) for i in range(keys.shape[1])], 1)
    assert torch.equal(whole, single)


def test_rotation_in_place_equals_rotation_into_a_new_tensor() -> None:
    keys, positions = torch.randn(3, 50, 16), torch.randint(0, 99, (3, 50, 3), dtype=torch.int32)
    turn = rotary(8)
    expected = turn.rotate(keys, positions)
    assert torch.equal(turn.rotate(keys, positions, out=keys), expected)


def test_dot_products_depend_on_the_distance_of_positions_only() -> None:
    turn = rotary(8)
    query, key = torch.randn(1, 1, 16), torch.randn(1, 1, 16)
    at = torch.tensor([[[5, 2, 3]]], dtype=torch.int32)
    other = torch.tensor([[[9, 4, 1]]], dtype=torch.int32)
    near = (turn.rotate(query, at) * turn.rotate(key, other)).sum()
    far = (turn.rotate(query, at + 700) * turn.rotate(key, other + 700)).sum()
    assert torch.allclose(near, far, atol=1e-3)


def test_relative_h_and_w_rotate_by_their_sum_with_t_and_those_of_text_by_t_alone() -> None:
    plain, relative = rotary(8), Rotary(rotary(8).inverse_frequencies, rotary(8).axes, relative=True)
    keys = torch.randn(1, 3, 16)
    slots = torch.tensor([[[70, 2, 5], [71, 0, 0], [72, -1, -9]]], dtype=torch.int32)
    turned_by = torch.tensor([[[70, 72, 75], [71, 71, 71], [72, 72, 72]]], dtype=torch.int32)
    assert torch.equal(relative.axis_positions(slots), turned_by)
    assert torch.equal(relative.rotate(keys, slots), plain.rotate(keys, turned_by))
    assert torch.allclose(relative.unrotate(relative.rotate(keys, slots), slots), keys, atol=1e-5)


def test_keys_of_one_patch_at_different_times_are_alike_once_unrotated_in_time() -> None:
    for axes, relative in ((torch.zeros(8, dtype=torch.int64), False), (torch.arange(8) % 3, True)):
        turn = Rotary(rotary(8).inverse_frequencies, axes, relative=relative)
        raw = torch.randn(1, 1, 16).expand(1, 2, 16)
        slots = torch.tensor([[[30, 2, 5], [3000, 2, 5]]], dtype=torch.int32)
        keys = turn.rotate(raw, slots)
        turn.unrotate_time(keys, turn.time_angles(slots[0, :, 0]))
        assert torch.cosine_similarity(keys[0, 0], keys[0, 1], dim=0) > 1 - 1e-5


TIME_AXES = {"one axis": [0] * 16, "sections": [0] * 4 + [1] * 6 + [2] * 6, "interleaved": [0, 1, 2] * 5 + [0]}


@pytest.mark.parametrize("name", TIME_AXES)
def test_unrotate_time_undoes_exactly_the_rotation_by_t(name: str) -> None:
    turn = Rotary(1.0 / (1e4 ** (torch.arange(16).float() / 16)), torch.tensor(TIME_AXES[name]))
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(20, 32, generator=generator)
    times = torch.randint(0, 3000, (20,), generator=generator, dtype=torch.int32)
    grid = torch.randint(0, 40, (20, 2), generator=generator, dtype=torch.int32)
    keys = turn.rotate(raw, torch.cat([times[:, None], grid], dim=-1))
    turn.unrotate_time(keys, turn.time_angles(times))
    wanted = turn.rotate(raw, torch.cat([torch.zeros_like(times)[:, None], grid], dim=-1))
    if name == "one axis":
        wanted = raw
    assert torch.allclose(keys, wanted, atol=1e-5)


def test_keys_that_do_not_turn_with_time_are_left_alone() -> None:
    turn = Rotary(torch.ones(4), torch.tensor([1, 1, 2, 2]))
    keys = torch.randn(3, 8)
    before = keys.clone()
    turn.unrotate_time(keys, turn.time_angles(torch.tensor([5, 6, 7])))
    assert torch.equal(keys, before)
