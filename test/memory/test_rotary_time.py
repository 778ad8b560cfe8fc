from __future__ import annotations

import pytest
import torch

from ros_kvstream.memory.rotary import Rotary

AXES = {"one axis": [0] * 16, "sections": [0] * 4 + [1] * 6 + [2] * 6, "interleaved": [0, 1, 2] * 5 + [0]}


@pytest.mark.parametrize("name", AXES)
def test_turning_back_in_time_undoes_exactly_the_rotation_by_t(name: str) -> None:
    rotary = Rotary(1.0 / (1e4 ** (torch.arange(16).float() / 16)), torch.tensor(AXES[name]))
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(20, 32, generator=generator)
    times = torch.randint(0, 3000, (20,), generator=generator, dtype=torch.int32)
    place = torch.randint(0, 40, (20, 2), generator=generator, dtype=torch.int32)
    keys = rotary.rotate(raw, torch.cat([times[:, None], place], dim=-1))
    rotary.unrotate_time(rotary.time_halves(keys), rotary.time_angles(times))
    wanted = rotary.rotate(raw, torch.cat([torch.zeros_like(times)[:, None], place], dim=-1))
    if name == "one axis":
        wanted = raw
    assert torch.allclose(keys, wanted, atol=1e-5)


def test_keys_that_do_not_turn_with_time_are_left_alone() -> None:
    rotary = Rotary(torch.ones(4), torch.tensor([1, 1, 2, 2]))
    keys = torch.randn(3, 8)
    before = keys.clone()
    rotary.unrotate_time(rotary.time_halves(keys), rotary.time_angles(torch.tensor([5, 6, 7])))
    assert torch.equal(keys, before)
