# SPDX-License-Identifier: Apache-2.0
"""Figures out of results: intervals that cover, ages, recall and paired differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ros_kvstream.evaluation.grid import Cell
from ros_kvstream.evaluation.summary import age, found_evidence, paired_difference, share, summarise


def line(correct: bool | None, episode: str = "e", **more: Any) -> dict[str, Any]:
    return {"correct": correct, "episode": episode, "kind": "before", "question": "q", "answer": "x", "error": "",
            "asked_at": 100.0, "true_evidence": [], "evidence": [], "latency": None, **more}  # fmt: skip


def test_a_share_lies_in_its_interval_and_unjudged_lines_do_not_count() -> None:
    found = share([line(True)] * 30 + [line(False)] * 10 + [line(None)] * 5)
    assert found is not None and found.value == 0.75 and found.count == 40
    assert 0.55 < found.low < 0.75 < found.high < 0.95
    assert share([line(None)]) is None
    sure = share([line(True)] * 10)
    assert sure is not None and (sure.low, sure.value, sure.high) == (1.0, 1.0, 1.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        found = share([line(bool(right)) for right in random.random(60) < 0.6])
        covered += found is not None and found.low <= 0.6 <= found.high
    assert 180 <= covered <= 199


def test_many_streams_are_resampled_whole_so_that_agreement_within_one_widens_the_interval() -> None:
    alike = [line(stream % 2 == 0, f"stream {stream}") for stream in range(10) for _ in range(20)]
    mixed = [line(index % 2 == 0, f"stream {stream}") for stream in range(10) for index in range(20)]
    wide, narrow = share(alike), share(mixed)
    assert wide is not None and narrow is not None and wide.value == narrow.value == 0.5
    assert wide.high - wide.low > 0.4 and narrow.high - narrow.low < 0.01


def test_the_age_is_that_of_the_newest_evidence() -> None:
    assert age(line(True, true_evidence=[20.0, 90.0])) == 10.0
    assert age(line(True)) is None


@pytest.mark.parametrize(
    ("stamp", "stamp_end", "found"), [(50.0, 50.0, True), (40.0, 49.6, True), (40.0, 49.0, False), (51.0, 60.0, False)]
)
def test_evidence_is_found_when_a_frame_looked_at_covers_it(stamp: float, stamp_end: float, found: bool) -> None:
    looked_at = [{"stamp": stamp, "stamp_end": stamp_end}]
    assert found_evidence(line(True, true_evidence=[50.0], evidence=looked_at)) is found
    assert found_evidence(line(True, evidence=looked_at)) is None


def test_a_paired_difference_is_narrower_than_the_accuracies_it_compares() -> None:
    random = np.random.default_rng(3)
    hard = random.random(80) < 0.5
    first = [line(bool(right), question=str(i)) for i, right in enumerate(hard)]
    second = [line(bool(right) and i % 10 != 0, question=str(i)) for i, right in enumerate(hard)]
    difference, alone = paired_difference(first, second), share(first)
    assert difference is not None and alone is not None
    assert 0 < difference.value < 0.12 and difference.low >= 0.0
    assert difference.high - difference.low < alone.high - alone.low
    assert paired_difference(first, []) is None


def test_a_cell_is_summed_up_over_its_runs_with_weights_by_frames() -> None:
    cell = Cell("m", "recent", 1.0)
    runs = [
        {"run": "1", "cell": cell.data(), "status": "done", "reason": "", "budget_bytes": 100,
         "memory": {"peak_bytes": 80, "archive_bytes": 0},
         "trace": [{"frames": 10, "ingest_ms": 1.0}, {"frames": 40, "ingest_ms": 5.0}]},
        {"run": "2", "cell": cell.data(), "status": "refused", "reason": "too small", "trace": []},
    ]  # fmt: skip
    lines = [line(True, run="1", kind="now", latency={"first_token_ms": 10.0, "total_ms": 20.0}),
             line(False, run="1", true_evidence=[98.0]), line(True, run="3")]  # fmt: skip
    (summary,) = summarise(runs, lines)
    data = summary.data()
    assert (data["accuracy"]["value"], data["now"]["value"], data["before"]["value"]) == (0.5, 1.0, 0.0)
    assert (data["ingest_ms"], data["peak_bytes"], data["refused"]) == (4.0, 80, ["too small"])
    assert data["by_age"].keys() == {"0"} and data["first_token_ms"] == 10.0
