# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark calibration`: figures of confidence follow from the answers, and the picture is drawn."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import cv2
import pytest
from rich.console import Console

from benchmarks import calibration as benchmark
from benchmarks.calibration import calibration


def lines(*answers: tuple[float, bool, str]) -> list[dict[str, Any]]:
    return [{"confidence": sure, "correct": right, "verdict": verdict} for sure, right, verdict in answers]


def test_a_calibrated_model_has_no_error() -> None:
    found = calibration(lines(*[(0.75, number < 3, "seen") for number in range(4)]))
    assert found.error == pytest.approx(0.0) and found.right == 0.75


def test_the_error_is_the_mean_distance_of_confidence_and_truth() -> None:
    found = calibration(lines((1.0, False, "seen"), (0.55, True, "seen")))
    assert found.error == pytest.approx((1.0 + 0.45) / 2)
    assert found.bins == ((0.55, 1.0, 1), (1.0, 0.0, 1))


def test_wrong_answers_are_flagged_by_words_or_by_less_confidence_than_nearly_all_right_ones() -> None:
    right = [(0.5, True, "seen"), *[(0.9, True, "seen")] * 19]
    wrong = [(0.3, False, "seen"), (0.95, False, "not_seen"), (0.95, False, "seen"), (0.4, False, "not_seen")]
    found = calibration(lines(*right, *wrong))
    assert found.threshold == 0.5
    assert (found.not_seen, found.flagged) == (0.5, 0.75)


def test_without_wrong_answers_none_is_flagged() -> None:
    assert calibration(lines((1.0, True, "seen"))).flagged == 0.0


def test_a_small_run_prints_and_draws_every_memory(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    picture = tmp_path / "new" / "reliability.png"
    options = ["--frames", "24", "--streams", "1", "--questions", "4", "--picture", str(picture)]
    console = Console(record=True, width=140)
    report = benchmark.run(parser.parse_args(options), console)
    benchmark.show(report, console)
    json.dumps(report, allow_nan=False)
    assert report["archive"]["n"] == 4 and report["all"]["n"] == 16
    shown = console.export_text()
    assert all(name in shown for name in (*benchmark.MEMORIES, "all"))
    assert cv2.imread(str(picture)) is not None
