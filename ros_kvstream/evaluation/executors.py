# SPDX-License-Identifier: Apache-2.0
"""Execution of jobs: in this process, or distributed over a Ray cluster."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.cell_run import Progress, RunResult, run_job
from ros_kvstream.evaluation.grid import Job
from ros_kvstream.recordings.frame_sources import FrameStore
from ros_kvstream.settings import ModelSettings

if TYPE_CHECKING:
    from ros_kvstream.models.base import VideoLanguageModel

EXECUTORS = ("local", "ray")
TRIES = 3
"""Number of workers that a job may lose before it is given up."""


class Runner:
    """Runs jobs in this process; each model is loaded once, each stream decoded once where it fits."""

    def __init__(self, frames_mib: float, device: str = "auto") -> None:
        """:param frames_mib: limit of decoded frames that are kept; :param device: of the models."""
        self._store = FrameStore(frames_mib)
        self._device = device
        self._loaded: tuple[str, VideoLanguageModel] | None = None
        self.models_loaded = 0

    def run(self, job: Job, progress: Progress = lambda _: None) -> RunResult:
        """Run one job."""
        return run_job(job, self._model(job.cell.model), self._store, progress)

    def _model(self, path: str) -> VideoLanguageModel:
        """Return the model; a different one is dropped first."""
        if self._loaded is None or self._loaded[0] != path:
            from transformers.utils import logging

            from ros_kvstream.models.loading import load_model

            logging.disable_progress_bar()  # there is one for the whole evaluation
            self._loaded = None
            self._loaded = (path, load_model(ModelSettings(path=path, device=self._device)))
            self.models_loaded += 1
        return self._loaded[1]


def run_ray(
    jobs: Sequence[Job], *, workers: int, frames_mib: float, device: str = "auto", address: str = ""
) -> Iterator[tuple[Job, RunResult]]:
    """Distribute jobs over a Ray cluster, with one model per worker process; jobs of a lost worker run again.

    :param workers: worker processes; :param address: of a running cluster, empty starts one on this machine.
    :raises SettingsError: where Ray is not installed, or a job's workers keep dying.
    """
    try:
        import ray
    except ImportError as error:
        raise SettingsError("--executor ray needs the package ray: pip install 'ros_kvstream[ray]'") from error
    started = not ray.is_initialized()
    if started:
        cluster: dict[str, Any] = {"address": address} if address else {"num_cpus": workers}
        ray.init(include_dashboard=False, log_to_driver=False, **cluster)
    actor = ray.remote(num_cpus=1, max_restarts=0)(Runner)
    try:
        yield from run_pool(ray, lambda: actor.remote(frames_mib, device), jobs, workers)
    finally:
        if started:
            ray.shutdown()


def run_pool(
    ray: Any, make_worker: Callable[[], Any], jobs: Sequence[Job], workers: int
) -> Iterator[tuple[Job, RunResult]]:
    """Keep Ray workers busy and replace those that die; jobs start in order, results come as they are ready.

    :param ray: the module; :param make_worker: starts a worker that has ``run(job)``.
    """
    waiting, tries = deque(jobs), Counter[str]()
    running: dict[Any, tuple[Job, Any]] = {}
    idle = [make_worker() for _ in range(min(workers, len(jobs)))]
    while idle or running:
        while idle:
            worker = idle.pop(0)
            if waiting:
                job = waiting.popleft()
                tries[job.key] += 1
                running[worker.run.remote(job)] = (job, worker)
        if not running:
            return
        (ready,), _ = ray.wait(list(running), num_returns=1)
        job, worker = running.pop(ready)
        try:
            result = ray.get(ready)
        except ray.exceptions.RayTaskError as error:
            raise error.cause or error from error
        except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError) as error:
            if tries[job.key] >= TRIES:
                raise SettingsError(f"{job.episode.name}, {job.cell.label}: {TRIES} workers died of it") from error
            waiting.appendleft(job)
            idle.append(make_worker())
        else:
            idle.append(worker)
            yield job, result
