# SPDX-License-Identifier: Apache-2.0
"""A run over DDS gives the answers of a run in code when nothing is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_folders import folder_without_weights

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.episodes import Episode, patrol_episodes
from ros_kvstream.evaluation.executors import Runner
from ros_kvstream.evaluation.grid import Cell, Job
from ros_kvstream.evaluation.live_run import run_live_job
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.evaluation.scoring import Pattern
from ros_kvstream.patrol.bags import write_bag
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.recordings.bags import BagSource

TEXT = (("memory.max_question_tokens", 16), ("memory.max_answer_tokens", 4), ("gate.mode", "off"))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("live")
    write_bag(PatrolWorld(PatrolSettings(frames=10, rate_hz=4.0, start=1000.0)), folder / "bag", compressed=True,
              topic="/front/image_raw/compressed")  # fmt: skip
    model = folder_without_weights(folder / "model")
    asked = tuple(
        EvaluationQuestion(name, at, "what colour is the cone ?", Pattern(".*"), evidence=(at / 2,), since=since)
        for name, at, since in (("early", 0.8, 0.0), ("later", 1.6, 0.5), ("end", float("inf"), 0.0))
    )  # fmt: skip
    cell = Cell(str(model), "recent", 0.5, overrides=TEXT)
    return Job(cell, Episode(BagSource(folder / "bag"), asked))


def test_answers_and_evidence_are_those_of_the_run_in_code(job: Job, tmp_path: Path) -> None:
    live = run_live_job(job, tmp_path / "logs", rate=2.0, queue_frames=64)
    code = Runner(64.0, "cpu").run(job)
    assert live.run["status"] == "done" and sum(live.run["dropped"].values()) == 0
    assert [(line["question"], line["answer"], line["asked_at"]) for line in live.lines] == [
        (line["question"], line["answer"], pytest.approx(line["asked_at"])) for line in code.lines
    ]
    for over_dds, in_code in zip(live.lines, code.lines, strict=True):
        stamps = [frame["stamp"] for frame in over_dds["evidence"]]
        assert stamps == pytest.approx([frame["stamp"] for frame in in_code["evidence"]])
        assert over_dds.keys() == in_code.keys()
    assert live.run["frames"] == code.run["frames"] == 10
    assert (live.run["memory"]["frames_seen"], live.run["memory"]["slots"]) == (10, code.run["memory"]["slots"])


def test_what_cannot_be_played_is_refused(job: Job, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--live"):
        run_live_job(Job(job.cell, patrol_episodes(1, 10.0, 1)[0]), tmp_path)
    with pytest.raises(SettingsError, match="--budget-mib"):
        run_live_job(Job(Cell("m", "recent", budget_share=0.5), job.episode), tmp_path)
