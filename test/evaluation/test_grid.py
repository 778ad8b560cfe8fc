# SPDX-License-Identifier: Apache-2.0
"""The grid: every combination once, settings that reach the stream, keys that change with whatever decides results."""

from __future__ import annotations

from pathlib import Path

import pytest

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.episodes import patrol_episodes
from ros_kvstream.evaluation.grid import Cell, Job, make_grid, make_jobs, override, read_cell
from ros_kvstream.settings import StreamSettings


def test_a_grid_holds_every_combination_once() -> None:
    cells = make_grid(["a", "b"], ["recent", "van"], [8.0, 16.0], [0.0, 64.0])
    assert len(cells) == len(set(cells)) == 16
    assert len(make_grid(["a"], ["recent", "recent"], [8.0], [0.0])) == 1
    assert {cell.budget_share for cell in make_grid(["a"], ["full"], [], [0.0], shares=[0.5, 1.0])} == {0.5, 1.0}


def test_a_cell_is_read_back_as_it_was_written() -> None:
    (cell,) = make_grid(["m"], ["tar"], [8.0], [4.0], overrides=[("retrieval.layers", (0, 2)), ("gate.mode", "off")])
    assert read_cell(cell.data()) == cell


def test_settings_of_a_cell_reach_the_stream() -> None:
    cell = Cell("m", "tar", 8.0, archive_mib=4.0, overrides=(("memory.high_water", 0.9), ("memory.keep_ratio", 0.85)))
    settings = cell.settings(8.0)
    assert (settings.model.path, settings.memory.policy, settings.memory.budget_mib) == ("m", "tar", 8.0)
    assert (settings.archive.budget_mib, settings.memory.keep_ratio, settings.memory.high_water) == (4.0, 0.85, 0.9)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("memory.colour", 1, "no such setting"), ("memory", 1, "no such setting"), ("seed.x", 1, "no such setting"),
        ("memory.keep_ratio", "half", "type of 0.9"), ("memory.block_frames", 1.5, "type of 1"),
        ("memory.keep_ratio", 2.0, "memory.keep_ratio"), ("gate.mode", "on", "gate.mode"),
        ("memory.block_frames", True, "type of 1"),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_there_or_cannot_work_is_refused(name: str, value: object, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        override(StreamSettings(), [(name, value)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["m"], ["best"], [8.0], [0.0]), "--policy"), ((["m"], ["tar"], [-1.0], [0.0]), "--budget-mib"),
        ((["m"], ["tar"], [8.0], [-4.0]), "--archive-mib"),
    ],
)  # fmt: skip
def test_bad_axes_are_refused(arguments: tuple[list[str], list[str], list[float], list[float]], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        make_grid(*arguments)
    with pytest.raises(SettingsError, match="--budget-share"):
        make_grid(["m"], ["tar"], [8.0], [0.0], shares=[0.5])


def test_jobs_go_model_by_model_and_keep_the_cells_of_a_stream_together() -> None:
    episodes = patrol_episodes(2, 10.0, 2)
    jobs = make_jobs(make_grid(["a", "b"], ["recent", "van"], [8.0], [0.0]), episodes)
    assert [(job.cell.model, job.episode.name, job.cell.policy) for job in jobs] == [
        (model, episode.name, policy) for model in "ab" for episode in episodes for policy in ("recent", "van")
    ]


def test_a_key_changes_with_cell_questions_stream_and_weights_and_with_nothing_else() -> None:
    (first,), (again,) = patrol_episodes(1, 10.0, 2), patrol_episodes(1, 10.0, 2)
    cell = Cell("m", "tar", 8.0)
    key = Job(cell, first).key
    assert Job(Cell("m", "tar", 8.0), again).key == key
    others = [
        Job(Cell("m", "tar", 9.0), first), Job(cell, patrol_episodes(1, 10.0, 3)[0]), Job(cell, first, "other"),
        Job(cell, patrol_episodes(1, 10.0, 2, seed=1)[0]), Job(cell, patrol_episodes(1, 12.0, 2)[0]),
    ]  # fmt: skip
    assert len({key, *(job.key for job in others)}) == 6


def test_other_weights_in_the_same_folder_give_other_keys(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    cells, episodes = [Cell(str(tmp_path), "tar", 8.0)], patrol_episodes(1, 10.0, 2)
    (before,) = make_jobs(cells, episodes)
    (tmp_path / "model.safetensors").write_bytes(b"another")
    assert make_jobs(cells, episodes)[0].key != before.key


def test_patrol_questions_are_spread_over_the_later_part_with_known_answers() -> None:
    (episode,) = patrol_episodes(1, 60.0, 12, seed=3)
    times = [question.at - 1000.0 for question in episode.questions]
    assert len(times) == 12 and times == sorted(times) and times[0] > 15 and times[-1] > 58
    assert len({question.task for question in episode.questions}) >= 8
    assert all(max(question.evidence, default=0.0) <= question.at for question in episode.questions)
