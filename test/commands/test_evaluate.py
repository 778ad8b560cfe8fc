# SPDX-License-Identifier: Apache-2.0
"""kvstream evaluate: from the command's options to results, table and report."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from rich.console import Console
from rosbags.rosbag2 import StoragePlugin, Writer

from ros_kvstream.commands import cli, evaluate
from ros_kvstream.errors import SettingsError
from ros_kvstream.patrol.bags import write_bag
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    return parser.parse_args(words)


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def small(model: Path, output: Path, *words: str) -> list[str]:
    return ["--model", str(model), "--policy", "recent,uniform", "--budget-mib", "1,2", "--output", str(output),
            "--set", "gate.mode=off", "--set", "memory.max_answer_tokens=3", *words]  # fmt: skip


PATROL = ("--patrol", "2", "--length", "6", "--patrol-questions", "3")


def test_patrols_over_a_grid_give_results_table_and_report(model: Path, tmp_path: Path) -> None:
    screen = console()
    report = evaluate.run(options(*PATROL, *small(model, tmp_path)), screen)
    assert [(row["cell"]["policy"], row["cell"]["budget_mib"]) for row in report["cells"]] == [
        ("recent", 1.0), ("recent", 2.0), ("uniform", 1.0), ("uniform", 2.0),
    ]  # fmt: skip
    assert all(row["accuracy"]["count"] == 6 and row["runs"] == 2 for row in report["cells"])
    json.dumps(report, allow_nan=False)
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len(lines) == 4 * 6 and len((tmp_path / "runs.jsonl").read_text().splitlines()) == 8
    assert Path(report["report"]).is_file()
    evaluate.show(report, screen)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "uniform" in text and "8 runs" in text


def test_an_interrupted_evaluation_goes_on_where_it_was(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from ros_kvstream.evaluation import executors

    arguments = options(*PATROL, *small(model, tmp_path, "--no-report"))
    run_job, ran = executors.run_job, []

    def interrupted(job: Any, *rest: Any) -> Any:
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(job.key)
        return run_job(job, *rest)

    monkeypatch.setattr(executors, "run_job", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(arguments, console())
    before = list(ran)
    monkeypatch.setattr(executors, "run_job", lambda job, *rest: ran.append(job.key) or run_job(job, *rest))
    report = evaluate.run(arguments, console())
    assert len(ran) == len(set(ran)) == 8 and ran[:3] == before
    assert all(row["accuracy"]["count"] == 6 for row in report["cells"])
    evaluate.run(arguments, console())
    assert len(ran) == 8


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    write_bag(PatrolWorld(PatrolSettings(frames=12, rate_hz=4.0, start=1000.0)), tmp_path / "kitchen", compressed=True)
    return tmp_path / "kitchen"


def write_questions(folder: Path, *entries: dict[str, Any]) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, entries)))
    return path


def test_a_recording_is_asked_the_questions_of_a_file(model: Path, kitchen: Path, tmp_path: Path) -> None:
    asked = write_questions(
        tmp_path, {"at": 1.0, "text": "what colour ?", "expected": {"regex": ".*"}, "evidence": [0.5]},
        {"at": 99, "text": "too late ?", "expected": "x y"},
    )  # fmt: skip
    words = small(model, tmp_path / "out", "--questions", str(asked), "--no-report", str(kitchen))
    report = evaluate.run(options(*words), console())
    assert all(row["accuracy"] == {"value": 1.0, "low": 1.0, "high": 1.0, "count": 1} for row in report["cells"])
    assert all(row["errors"] == 1 for row in report["cells"])
    first = json.loads((tmp_path / "out" / "results.jsonl").read_text().splitlines()[0])
    assert first["at"] == pytest.approx(1001.0) and first["true_evidence"] == pytest.approx([1000.5])


def test_questions_about_places_are_scored_by_the_goal_and_the_report_draws_the_path(
    model: Path, kitchen: Path, tmp_path: Path
) -> None:
    world = PatrolWorld(PatrolSettings(frames=12, rate_hz=4.0, start=1000.0))
    x, y, _ = world.pose(6).position
    asked = write_questions(
        tmp_path, {"text": "what ?", "id": "here", "expected": {"place": [x, y], "within": 50.0}},
        {"text": "what ?", "id": "far", "expected": {"place": [x + 500, y], "within": 1.0}},
        {"text": "what ?", "id": "near", "expected": {"regex": ".*"}, "near": [x, y, 0.0], "radius": 50.0},
        {"text": "what ?", "id": "nowhere", "expected": "a cone", "near": [x + 500, y, 0.0], "radius": 1.0},
    )  # fmt: skip
    report = evaluate.run(options(*small(model, tmp_path / "out", "--questions", str(asked), str(kitchen))), console())
    results = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    right = {line["question"]: line["correct"] for line in results}
    assert right == {"here": True, "far": False, "near": True, "nowhere": False}
    assert {line["question"] for line in results if line["verdict"] == "not_covered"} == {"nowhere"}
    assert any(line["error_m"] and line["error_m"] > 400 for line in results)
    assert "kitchen: poses are read from /odom" in report["notes"]
    assert (tmp_path / "out" / "plots" / "path.png").is_file()


@pytest.mark.parametrize("extra", [{"expected": {"place": [0, 0]}}, {"expected": "x", "near": [0, 0, 0], "radius": 1}])
def test_live_runs_do_not_take_questions_about_places(
    model: Path, kitchen: Path, tmp_path: Path, extra: dict[str, Any]
) -> None:
    asked = write_questions(tmp_path, {"text": "what ?", **extra})
    words = small(model, tmp_path / "out", "--live", "--questions", str(asked), str(kitchen))
    with pytest.raises(SettingsError, match="--live plays the images alone"):
        evaluate.run(options(*words), console())


def write_video(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width = stream.height = 64
        for index in range(6):
            picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 40 * index, np.uint8), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def write_sound(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.mark.parametrize("budget", ["--budget-mib", "--budget-share"])
def test_a_bad_video_or_entry_is_counted_and_the_rest_is_reported(budget: str, model: Path, tmp_path: Path) -> None:
    thing = {f"option {index}": f"thing {index}" for index in range(5)}
    names = ("empty", "sound", "cut", "good", "no option", "no question")
    entries = [{"q_uid": name, "question": "what ?", **thing} for name in names]
    del entries[-1]["question"]
    (tmp_path / "questions.json").write_text(json.dumps(entries))
    (tmp_path / "subset_answers.json").write_text(json.dumps({name: 9 if name == "no option" else 1 for name in names}))
    for name in ("good", "cut", "no option", "no question"):
        write_video(tmp_path / f"{name}.mp4")
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "cut.mp4").write_bytes((tmp_path / "cut.mp4").read_bytes()[:200])
    write_sound(tmp_path / "sound.mp4")
    words = ["--benchmark", "egoschema", "--data", str(tmp_path), "--rate", "2", "--model", str(model), "--policy",
             "recent", budget, "1", "--output", str(tmp_path / "out"), "--set", "memory.max_answer_tokens=3",
             "--set", "gate.mode=off"]  # fmt: skip
    for screen in (console(), console()):  # the second evaluation runs nothing again
        report = evaluate.run(options(*words), screen)
        (row,) = report["cells"]
        assert (row["runs"], len(row["refused"]), row["accuracy"]["count"]) == (4, 3, 1)
        assert all(name in reason for name, reason in zip(("empty", "sound", "cut"), row["refused"], strict=True))
        (note,) = [note for note in report["notes"] if "left out" in note]
        assert note.startswith("2 entries cannot be used") and "entry 4: the answer 9" in note
        assert "entry 5: lacks question" in note and Path(report["report"]).is_file()
        evaluate.show(report, screen)
        assert "refused on 3 of 4 streams" in screen.file.getvalue()  # type: ignore[attr-defined]
    assert "4 of them done before" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_an_empty_recording_among_good_ones_is_a_refused_run(model: Path, kitchen: Path, tmp_path: Path) -> None:
    Writer(tmp_path / "empty", version=9, storage_plugin=StoragePlugin.MCAP).open()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "cut.mcap").write_bytes(b"")
    asked = write_questions(tmp_path, {"at": 1.0, "text": "what colour ?", "expected": {"regex": ".*"}})
    words = small(model, tmp_path / "out", "--questions", str(asked), str(kitchen), str(tmp_path / "empty"),
                  str(tmp_path / "cut"))  # fmt: skip
    report = evaluate.run(options(*words), console())
    assert all((row["runs"], len(row["refused"]), row["accuracy"]["count"]) == (3, 2, 1) for row in report["cells"])
    words[-1] = str(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="no such file or folder: .*nowhere"):
        evaluate.run(options(*words), console())


def test_a_benchmark_is_asked_and_scored_as_its_paper_reports_it(model: Path, tmp_path: Path) -> None:
    options_ = {f"option {index}": f"thing {index}" for index in range(5)}
    (tmp_path / "questions.json").write_text(json.dumps([{"q_uid": "p", "question": "what ?", **options_}]))
    (tmp_path / "subset_answers.json").write_text('{"p": 1}')
    write_video(tmp_path / "p.mp4")
    words = ["--benchmark", "egoschema", "--data", str(tmp_path), "--rate", "2"]
    screen = console()
    report = evaluate.run(options(*words, *small(model, tmp_path / "out")), screen)
    assert all(row["scores"] == [{"name": "Subset", "value": row["accuracy"]["value"], "count": 1}]
               for row in report["cells"])  # fmt: skip
    assert ">Subset<" in Path(report["report"]).read_text()
    evaluate.show(report, screen)
    assert "Subset" in screen.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give one of"), (["--patrol", "1", "--benchmark", "mlvu"], "give one of"), (["bag"], "--questions"),
        (["--benchmark", "mlvu"], "--data"), (["--patrol", "1", "--policy", "best"], "--policy"),
        (["--patrol", "1", "--budget-mib", "1,x"], "--budget-mib '1,x'"), (["--patrol", "1", "--set", "a"], "--set"),
        (["--patrol", "1", "--set", "gate.colour=1"], "no such setting"),
        (["--patrol", "1", "--policy", ","], "--policy"), (["--patrol", "1", "--live"], "--live"),
        (["--patrol", "1", "--length", "0"], "--length"), (["--patrol", "1", "--questions", "q.yaml"], "--questions"),
        (["--patrol", "1", "--budget-mib", "1", "--budget-share", "1"], "--budget-share"),
        (["--patrol", "1", "--executor", "local", "--workers", "0"], "--workers"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(words: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        evaluate.run(options("--output", str(tmp_path), *words), console())


def test_questions_about_another_recording_are_refused(kitchen: Path, tmp_path: Path) -> None:
    asked = write_questions(tmp_path, {"text": "what ?", "expected": "x", "bag": "garage"})
    with pytest.raises(SettingsError, match="bag = garage is none of kitchen"):
        evaluate.run(options("--output", str(tmp_path), "--questions", str(asked), str(kitchen)), console())


def test_the_command_is_part_of_the_program_and_prints_json(model: Path, tmp_path: Path, capsys: Any) -> None:
    status = cli.main(["evaluate", "--json", *PATROL, *small(model, tmp_path, "--no-report")])
    assert status == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 4
