# SPDX-License-Identifier: Apache-2.0
"""``kvstream demo`` as a person starts it: real node, questions over DDS, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ros_kvstream.commands.cli import main
from ros_kvstream.patrol.bags import write_bag
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld

DEMO = (sys.executable, "-m", "ros_kvstream.commands.cli", "demo")
REPORT = {"questions", "memory", "frames", "latency", "versions"}
QUESTION = {"question", "expected", "answer", "correct", "asked_at", "kind", "left_window", "evidence"}


@pytest.fixture
def ros() -> None:
    pytest.importorskip("rclpy", reason="needs ROS 2, from wheels or from a distribution")
    pytest.importorskip("ros_kvstream.srv", reason="needs the built interfaces")


def left_behind(*signs: Path) -> list[str]:
    """Command lines of running processes that mention one of these paths."""
    lines = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        line = " ".join(process.info["cmdline"] or [])
        if process.info["pid"] != os.getpid() and any(str(sign) in line for sign in signs):
            lines.append(line)
    return lines


def demo(model: Path, output: Path, *arguments: str) -> dict[str, Any]:
    """Run the demo to its end; its report, checked for the form that every run has."""
    command = [*DEMO, "--json", "--model", str(model), "--output", str(output), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((output / "report.json").read_text())
    assert "untrained" in done.stderr and "untrained" in report["versions"]["model"]
    check_form(report)
    assert left_behind(model, output) == []
    return report


def check_form(report: dict[str, Any]) -> None:
    assert set(report) == REPORT
    for question in report["questions"]:
        assert set(question) - {"goal"} == QUESTION
        assert all(set(frame) == {"stamp", "camera", "score"} for frame in question["evidence"])
        assert all(frame["stamp"] <= question["asked_at"] + 1e-6 for frame in question["evidence"])
    memory, frames = report["memory"], report["frames"]
    assert 0 < memory["used_bytes"] <= memory["peak_bytes"] <= memory["budget_bytes"] < memory["process_bytes"]
    assert memory["archive_bytes"] <= memory["archive_budget_bytes"]
    assert frames["published"] == frames["seen"] + sum(frames["dropped"].values())
    assert frames["seen"] == frames["kept"] + frames["gated"]


def test_the_patrol_is_asked_about_while_it_runs(ros: None, model: Path, tmp_path: Path) -> None:
    report = demo(model, tmp_path, "--seconds", "12", "--archive-mib", "0")
    questions = report["questions"]
    assert report["frames"]["published"] == 24
    assert report["frames"]["seen"] > 0
    assert len(questions) >= 6
    assert len({question["asked_at"] for question in questions}) > 3
    world = PatrolWorld(PatrolSettings(seed=3, frames=24, rate_hz=2.0, size=224, start=1_750_000_000.0))
    stamps = [world.stamp(index) for index in range(24)]
    assert all(min(abs(question["asked_at"] - stamp) for stamp in stamps) < 1e-3 for question in questions)
    assert any(question["left_window"] for question in questions)
    assert {type(question["expected"]) for question in questions} == {str}


def test_a_recording_is_played_and_asked_what_the_user_wants(ros: None, model: Path, tmp_path: Path) -> None:
    world = PatrolWorld(PatrolSettings(frames=60, rate_hz=10.0, start=50.0))
    bag = tmp_path / "bag"
    write_bag(world, bag, topic="/front/image", compressed=True)
    texts = ["where was the cone?", "what is red?"]
    asked = [part for text in texts for part in ("--question", text)]
    report = demo(model, tmp_path / "out", "--bag", str(bag), *asked, "--policy", "sliding_window")
    assert report["memory"]["archive_bytes"] > 0
    assert report["frames"]["published"] == 60
    assert [question["question"] for question in report["questions"]] == texts
    for question in report["questions"]:
        assert (question["expected"], question["correct"], question["left_window"]) == (None, None, None)
        assert 50.0 <= question["asked_at"] <= world.stamp(59) + 1e-6


def test_ctrl_c_while_playing_ends_the_node_and_gives_status_130(ros: None, model: Path, tmp_path: Path) -> None:
    command = [*DEMO, "--model", str(model), "--output", str(tmp_path)]
    with (tmp_path / "terminal.log").open("w") as terminal:
        running = subprocess.Popen(command, stdout=terminal, stderr=terminal)
        try:
            for _ in until_ended(running):
                if len(left_behind(model)) == 2 and " ms" in (tmp_path / "terminal.log").read_text():
                    break  # demo and node name the model; the first answer is there
            running.send_signal(signal.SIGINT)
            status = running.wait()
        finally:
            running.kill()
    assert status == 130, (tmp_path / "terminal.log").read_text()
    assert "interrupted" in (tmp_path / "terminal.log").read_text()
    assert left_behind(model, tmp_path) == []


def until_ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Look again and again, as long as the process runs."""
    while process.poll() is None:
        time.sleep(0.1)
        yield


def test_a_node_that_refuses_ends_the_demo_with_its_reason(
    ros: None, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = shutil.copytree(model, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"no weights")
    assert main(["demo", "--model", str(damaged), "--output", str(tmp_path), "--seconds", "5"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("kvstream: configure failed: ") and str(damaged) in last
    assert left_behind(damaged) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bag", "/no/such/bag"], "/no/such/bag"),
        (["--topic", "/image"], "--topic"),
        (["--question", "what?"], "--question"),
        (["--seconds", "1"], "--seconds"),
        (["--seconds", "nan"], "--seconds"),
        (["--budget-mib", "-3"], "--budget-mib"),
        (["--archive-mib", "-1"], "--archive-mib"),
        (["--budget-mib", "0.05"], "Set memory.budget_mib to at least"),
        (["--model", "/no/such/model"], "/no/such/model"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    arguments: list[str], said: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--output", str(tmp_path), "--model", str(model), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()
