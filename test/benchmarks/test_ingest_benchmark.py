from __future__ import annotations

import pytest

from benchmarks.ingest import spread_when_full, time_to_first_token


def test_answer_times_are_told_with_the_frames_from_which_the_budget_is_full() -> None:
    measured, full_from = time_to_first_token([3, 120], questions=1)
    assert set(measured) == {3, 120} and min(measured.values()) > 0
    assert 3 < full_from <= 120


@pytest.mark.parametrize(("full_from", "spread"), [(0, 3.0), (20, 0.25), (60, 0.0), (1000, 0.0)])
def test_the_spread_is_of_the_times_at_a_full_budget(full_from: int, spread: float) -> None:
    assert spread_when_full({16: 2.0, 32: 8.0, 64: 6.4}, full_from) == pytest.approx(spread)
