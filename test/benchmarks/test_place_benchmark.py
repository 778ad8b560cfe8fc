# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark place`: goals are compared with the path, and near it with the trained model."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks import place
from benchmarks.place import Evidence, Place, by_kind, figures, result, shows
from ros_kvstream.errors import SettingsError
from ros_kvstream.patrol.questions import Question
from ros_kvstream.poses import FramePose, Pose
from ros_kvstream.records import Answer, FrameEvidence, LatencyBreakdown, MemoryStats

QUESTION = Question("where was the cone?", "top left", "place", "before", (10.0, 10.5), (3.0, 4.0, 0.0), 0.2)


def answer(text: str, *evidence: FrameEvidence) -> Answer:
    return Answer(QUESTION.text, text, evidence, LatencyBreakdown(), MemoryStats(), 20.0)


def frame(stamp: float, stamp_end: float, x: float | None) -> FrameEvidence:
    pose = None if x is None else FramePose("odom#patrol", Pose((x, 4.0, 0.0)), Pose((0.0, 0.0, 0.0)))
    return FrameEvidence(0, stamp, stamp_end, "camera", 1.0, pose=pose)


def test_the_error_is_the_distance_of_the_goals_base() -> None:
    first = result(QUESTION, answer("top left", frame(5.0, 9.0, None), frame(10.0, 10.5, 3.5)))
    assert first == Place(error=0.5, moved=0.2, shown=False, correct=True)
    assert result(QUESTION, answer("no", frame(10.2, 10.5, None))) == Place(None, 0.2, True, False)
    assert result(QUESTION, answer("")) == Place(None, 0.2, False, False)


def test_a_frame_shows_a_thing_when_their_times_overlap() -> None:
    assert shows(frame(8.0, 10.0, None), QUESTION) and shows(frame(10.5, 12.0, None), QUESTION)
    assert not shows(frame(8.0, 9.5, None), QUESTION) and not shows(frame(11.0, 12.0, None), QUESTION)


def test_figures_are_of_the_questions_with_a_goal() -> None:
    places = [Place(error, 0.2 * number, number < 2, number < 3) for number, error in enumerate([0.1, 0.3, None, 0.2])]
    assert figures(places) == pytest.approx({
        "median_error_m": 0.2, "p90_error_m": 0.28, "answered": 3, "n": 4,
        "moved_median_m": 0.3, "shown_first": 0.5, "accuracy": 0.75,
    })  # fmt: skip
    none = figures([replace(places[0], error=None)])
    assert (none["median_error_m"], none["p90_error_m"], none["answered"]) == (None, None, 0)


def test_goals_are_closer_than_the_robot_moved_while_the_thing_was_in_view() -> None:
    options = argparse.Namespace(model="tiny", external="", lengths=[96], streams=2, questions=8)
    report = place.run(options, Console(quiet=True))
    assert {"median_error_m", "p90_error_m", "answered", "n", "moved_median_m"} <= set(report) and json.dumps(report)
    assert report["answered"] == report["n"] == 16
    assert 0 < report["median_error_m"] < report["moved_median_m"]
    assert report["shown_first"] >= 0.9
    assert {"where", "first", "view_now"} <= set(report["evidence"]) and "room_now" not in report["evidence"]
    assert all(part["shown_first"] >= 0.8 and part["n"] > 2 for part in report["evidence"].values())
    assert report["evidence"]["view_now"]["scored_first"] < 0.5  # the newest frames are not retrieved
    console = Console(width=160, record=True, file=open("/dev/null", "w"))
    place.show(report, console)
    assert "16 of 16" in console.export_text()


def test_shares_of_evidence_are_counted_by_kind() -> None:
    found = [Evidence("where", True, False), Evidence("where", False, False), Evidence("last", True, True)]
    assert by_kind(found) == {
        "where": {"shown_first": 0.5, "scored_first": 0.0, "n": 2},
        "last": {"shown_first": 1.0, "scored_first": 1.0, "n": 1},
    }


def test_streams_without_anything_to_ask_about_are_refused() -> None:
    options = argparse.Namespace(model="tiny", external="", lengths=[96], streams=1, questions=0)
    with pytest.raises(SettingsError, match="--questions 0"):
        place.run(options, Console(quiet=True))
