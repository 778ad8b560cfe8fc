"""Where the runs of an evaluation are computed: here one after the other, or spread over a Ray cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.cell_run import RunResult, run_job
from ros_kvstream.evaluation.grid import Job
from ros_kvstream.recordings.frame_sources import FrameStore
from ros_kvstream.settings import ModelSettings

if TYPE_CHECKING:
    from ros_kvstream.models.base import VideoLanguageModel

EXECUTORS = ("local", "ray")
TRIES = 3
"""How often a run is given to a worker before it is given up."""


class Runner:
    """Runs jobs in this process; each model is loaded once, each stream decoded once where it fits."""

    def __init__(self, frames_mib: float, device: str = "auto") -> None:
        """:param frames_mib: room for decoded frames; :param device: of the models."""
        self._store = FrameStore(frames_mib)
        self._device = device
        self._loaded: tuple[str, VideoLanguageModel] | None = None
        self.models_loaded = 0

    def run(self, job: Job, progress: Callable[[int], None] = lambda _: None) -> RunResult:
        """Run one job."""
        return run_job(job, self._model(job), self._store, progress)

    def _model(self, job: Job) -> VideoLanguageModel:
        """The job's model; another one is dropped first."""
        if self._loaded is None or self._loaded[0] != job.cell.model:
            from transformers.utils import logging

            from ros_kvstream.models.loading import load_model

            logging.disable_progress_bar()  # there is one for the whole evaluation
            self._loaded = None
            model = load_model(ModelSettings(path=job.cell.model, device=self._device))
            self._loaded = (job.cell.model, model)
            self.models_loaded += 1
        return self._loaded[1]


def run_local(
    jobs: Sequence[Job], runner: Runner, progress: Callable[[int], None] = lambda _: None
) -> Iterator[tuple[Job, RunResult]]:
    """Run jobs one after the other; ``progress`` is told of every few frames."""
    for job in jobs:
        yield job, runner.run(job, progress)


def run_ray(
    jobs: Sequence[Job], *, workers: int, frames_mib: float, device: str = "auto", address: str = ""
) -> Iterator[tuple[Job, RunResult]]:
    """Spread jobs over a Ray cluster, one worker process each with its own model; a lost worker's job is run again.

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
    pool = RayPool(ray, lambda: actor.remote(frames_mib, device))
    try:
        yield from pool.run(jobs, workers)
    finally:
        if started:
            ray.shutdown()


class RayPool:
    """Keeps a number of Ray workers busy and replaces those that die."""

    def __init__(self, ray: Any, make_worker: Callable[[], Any]) -> None:
        """:param ray: the module; :param make_worker: starts a worker that has ``run(job)``."""
        self._ray = ray
        self._make_worker = make_worker

    def run(self, jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, RunResult]]:
        """Give out the jobs in order; results come as they are ready."""
        waiting = deque(jobs)
        tries: dict[str, int] = {}
        running: dict[Any, tuple[Job, Any]] = {}
        for _ in range(min(workers, len(jobs))):
            self._give(self._make_worker(), waiting, running, tries)
        while running:
            (ready,), _ = self._ray.wait(list(running), num_returns=1)
            job, worker = running.pop(ready)
            try:
                result = self._ray.get(ready)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause or error from error
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.WorkerCrashedError) as error:
                if tries[job.key] >= TRIES:
                    text = f"{job.episode.name}, {job.cell.label}: {TRIES} workers died of it"
                    raise SettingsError(text) from error
                waiting.appendleft(job)
                worker = self._make_worker()
            else:
                yield job, result
            self._give(worker, waiting, running, tries)

    @staticmethod
    def _give(worker: Any, waiting: deque[Job], running: dict[Any, tuple[Job, Any]], tries: dict[str, int]) -> None:
        if waiting:
            job = waiting.popleft()
            tries[job.key] = tries.get(job.key, 0) + 1
            running[worker.run.remote(job)] = (job, worker)
