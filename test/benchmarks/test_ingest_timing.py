from __future__ import annotations

import pytest
import torch

from benchmarks.ingest_floor import decode_bytes, language_operations, vision_operations
from benchmarks.ingest_timing import IngestShape, make_network, time_language, time_vision

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
