# SPDX-License-Identifier: Apache-2.0
"""The ingest benchmark: both paths give equal results, the floor counts real weights, answer times are told."""

from __future__ import annotations

import pytest
import torch

from benchmarks.ingest import (
    IngestShape,
    decode_bytes,
    language_operations,
    make_network,
    spread_when_full,
    time_language,
    time_to_first_token,
    time_vision,
    vision_operations,
)

SHAPE = IngestShape(layers=1, blocks=2, slots=(288,), repeats=1, dtype=torch.float32)


@pytest.fixture(scope="module")
def network():  # type: ignore[no-untyped-def]
    return make_network(SHAPE)


def test_both_paths_of_the_benchmark_give_equal_results(network) -> None:  # type: ignore[no-untyped-def]
    assert time_vision(network, SHAPE).difference < 1e-3
    times = time_language(network, SHAPE, 288)
    assert set(times) == {"prefill", "decode"}
    for pair in times.values():
        assert pair.difference < 1e-3
        assert pair.plain_ms > 0 < pair.ours_ms


def test_the_floor_counts_the_parameters_that_are_really_there(network) -> None:  # type: ignore[no-untyped-def]
    layer = sum(p.numel() for p in network.model.language_model.layers.parameters() if p.ndim == 2)
    assert decode_bytes(SHAPE, 0) == 4 * layer
    assert language_operations(SHAPE, 1, 0) == pytest.approx(2 * layer, rel=1e-3)
    tower = network.model.visual
    linear = sum(p.numel() for p in tower.blocks.parameters() if p.ndim == 2)
    assert vision_operations(SHAPE) > 2 * 576 * linear


def test_answer_times_are_told_with_the_frames_from_which_the_budget_is_full() -> None:
    measured, full_from = time_to_first_token([3, 120], questions=1)
    assert set(measured) == {3, 120} and min(measured.values()) > 0
    assert 3 < full_from <= 120


@pytest.mark.parametrize(("full_from", "spread"), [(0, 3.0), (20, 0.25), (60, 0.0), (1000, 0.0)])
def test_the_spread_is_of_the_times_at_a_full_budget(full_from: int, spread: float) -> None:
    assert spread_when_full({16: 2.0, 32: 8.0, 64: 6.4}, full_from) == pytest.approx(spread)
