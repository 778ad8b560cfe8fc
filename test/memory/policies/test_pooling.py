# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slots import Frame, make_slots

from ros_kvstream.memory.policies import pooling
from ros_kvstream.memory.policies.pooling import adaptive_window, pool

layouts = st.lists(st.builds(Frame, st.integers(1, 4), st.integers(1, 4), st.integers(0, 1)), min_size=1, max_size=7)


@settings(max_examples=40, deadline=None)
@given(layouts, st.sampled_from([1, 3, 5, 7]), st.integers(0, 999), st.integers(0, 6))
def test_pooling_is_the_mean_over_existing_neighbours_of_the_same_head_and_camera(
    frames: list[Frame], window: int, seed: int, missing: int
) -> None:
    total = sum(frame.rows * frame.columns for frame in frames)
    slots = make_slots(frames, seed=seed, shuffled=True, missing=min(missing, total - 1))
    pooled = pool(slots.value_norms, slots, window)
    for head in range(2):
        rank = {
            camera: sorted(set(slots.frames[head][slots.cameras[head] == camera].tolist()))
            for camera in set(slots.cameras[head].tolist())
        }

        def place(slot: int, head: int = head, rank: dict[int, list[int]] = rank) -> tuple[int, int, int, int]:
            camera = int(slots.cameras[head, slot])
            row, column = slots.positions[head, slot, 1:].tolist()
            return camera, rank[camera].index(int(slots.frames[head, slot])), row, column

        coordinates = [place(slot) for slot in range(slots.count)]
        for slot, (camera, *at) in enumerate(coordinates):
            near = [
                float(slots.value_norms[head, other])
                for other, (their_camera, *there) in enumerate(coordinates)
                if their_camera == camera
                and all(abs(a - b) <= window // 2 for a, b in zip(at, there, strict=True))
            ]
            assert float(pooled[head, slot]) == pytest.approx(sum(near) / len(near), rel=1e-4)


def test_an_even_map_stays_even_up_to_its_corners() -> None:
    slots = make_slots([Frame(4, 5)] * 6, values=torch.ones(2, 120, 12))
    pooled = pool(slots.value_norms, slots, 7)
    assert torch.allclose(pooled, slots.value_norms, rtol=1e-6)


def test_frames_pooled_in_turns_give_the_same_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = make_slots([Frame(2, 3), Frame(2, 3, camera=1)] * 15, seed=2, missing=40)
    at_once = pool(slots.value_norms, slots, 5)
    monkeypatch.setattr(pooling, "SMALLEST_GRID", 1)
    monkeypatch.setattr(pooling, "CELLS_PER_SLOT", 0)
    in_turns = pool(slots.value_norms, slots, 5)
    assert torch.allclose(at_once, in_turns, rtol=1e-6)


def test_the_window_grows_with_the_coefficient_of_variation() -> None:
    even, uneven = torch.ones(1, 100), torch.cat([torch.ones(1, 50), torch.full((1, 50), 5.0)], dim=1)
    assert adaptive_window(even, (0.1, 0.2, 0.4)) == 1
    assert adaptive_window(uneven, (0.1, 0.2, 0.4)) == 7
    assert adaptive_window(uneven, (0.1, 0.2, 5.0)) == 5
    assert adaptive_window(1e6 * uneven, (0.1, 3.0, 5.0)) == 3
