# SPDX-License-Identifier: Apache-2.0
"""Executors: one process, or many workers on Ray; the results are the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.model_folders import folder_without_weights

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.episodes import patrol_episodes
from ros_kvstream.evaluation.executors import TRIES, Runner, run_pool, run_ray
from ros_kvstream.evaluation.grid import Job, make_grid, make_jobs

TEXT = [("memory.max_question_tokens", 32), ("memory.max_answer_tokens", 3), ("gate.mode", "off")]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    model = folder_without_weights(tmp_path_factory.mktemp("model"))
    cells = make_grid([str(model)], ["recent", "uniform"], [1.0], [0.0], overrides=TEXT)
    return make_jobs(cells, patrol_episodes(2, 5.0, 2))


def comparable(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines without what is a time."""
    return [{key: value for key, value in line.items() if key != "latency"} for line in lines]


def test_a_model_is_loaded_once_for_all_of_its_jobs(jobs: list[Job]) -> None:
    runner = Runner(64.0, "cpu")
    assert [runner.run(job).run["run"] for job in jobs] == [job.key for job in jobs]
    assert runner.models_loaded == 1


# -- Ray --------------------------------------------------------------------------------------------------------------


class FakeRay:
    """What run_pool uses of Ray, in this process: a task that "kills its worker" raises when its result is fetched."""

    class exceptions:  # noqa: N801 - as Ray has it
        class RayError(Exception): ...

        class RayTaskError(RayError):
            cause: Exception | None = None

        class RayActorError(RayError): ...

        class WorkerCrashedError(RayError): ...

    def wait(self, tasks: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task: FakeTask) -> str:
        task.worker.dead = task.dies
        if task.dies:
            raise self.exceptions.RayActorError("died")
        return task.job.key


@dataclass(eq=False)
class FakeTask:
    worker: FakeWorker
    job: Any
    dies: bool


class FakeWorker:
    def __init__(self, deaths: dict[str, int]) -> None:
        self.deaths, self.dead, self.run = deaths, False, self

    def remote(self, job: Any) -> FakeTask:
        assert not self.dead, "a dead worker got a job"
        left = self.deaths.get(job.key, 0)
        self.deaths[job.key] = left - 1
        return FakeTask(self, job, left > 0)


def run_with_deaths(jobs: list[Job], deaths: dict[str, int]) -> tuple[list[str], int]:
    made: list[FakeWorker] = []

    def make() -> FakeWorker:
        made.append(FakeWorker(deaths))
        return made[-1]

    results = [result for _, result in run_pool(FakeRay(), make, jobs, workers=2)]
    return [str(result) for result in results], len(made)


def test_a_lost_workers_job_is_run_again_by_a_new_one(jobs: list[Job]) -> None:
    results, workers = run_with_deaths(jobs, {jobs[1].key: 2})
    assert sorted(results) == sorted(job.key for job in jobs)
    assert workers == 4


def test_a_job_that_kills_every_worker_is_given_up_by_name(jobs: list[Job]) -> None:
    with pytest.raises(SettingsError, match=jobs[0].episode.name):
        run_with_deaths(jobs, {jobs[0].key: TRIES})


def test_no_more_workers_are_started_than_there_are_jobs(jobs: list[Job]) -> None:
    assert run_with_deaths(jobs[:1], {}) == ([jobs[0].key], 1)


def test_without_ray_its_extra_is_named(jobs: list[Job], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"ros_kvstream\[ray\]"):
        list(run_ray(jobs, workers=2, frames_mib=64.0))


def test_ray_gives_the_results_of_one_process_even_when_a_worker_dies(jobs: list[Job], tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is an optional extra")
    support = str(Path(__file__).parents[1])
    environment = {"PYTHONPATH": os.pathsep.join([support, os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    try:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import a test
        worker = ray.remote(num_cpus=1, max_restarts=0)(DyingRunner)
        flag = tmp_path / "died"
        results = run_pool(ray, lambda: worker.remote(str(flag)), jobs, 2)
        spread = {job.key: result for job, result in results}
    finally:
        ray.shutdown()
    assert flag.exists()
    runner = Runner(64.0, "cpu")
    local = {job.key: runner.run(job) for job in jobs}
    assert spread.keys() == local.keys()
    for key, result in local.items():
        assert comparable(spread[key].lines) == comparable(result.lines)
        assert spread[key].run["frames_digest"] == result.run["frames_digest"]


class DyingRunner(Runner):
    """Its process ends at the first job that any of these is given."""

    def __init__(self, flag: str) -> None:
        super().__init__(64.0, "cpu")
        self._flag = Path(flag)

    def run(self, job: Job, progress: Any = lambda _: None) -> Any:
        if not self._flag.exists():
            self._flag.touch()
            os._exit(1)
        return super().run(job, progress)
