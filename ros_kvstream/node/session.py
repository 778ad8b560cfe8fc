"""What exists between configure and cleanup, and how it is made without holding up the caller."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ros_kvstream.node.cameras import CameraSubscription
from ros_kvstream.node.compressed_images import compressed_to_rgb
from ros_kvstream.node.frame_counters import FrameCounters
from ros_kvstream.node.frame_queue import FrameQueue
from ros_kvstream.node.images import DepthRendering, Rgb, image_to_rgb
from ros_kvstream.node.memory_files import memory_file
from ros_kvstream.node.parameters import NodeParameters
from ros_kvstream.node.settings import CameraSettings
from ros_kvstream.node.worker import Memory, Worker, WorkerEvents
from ros_kvstream.settings import StreamSettings


@dataclass
class Session:
    """One memory with its worker, queue, counters and cameras."""

    worker: Worker
    frames: FrameQueue
    counters: FrameCounters
    policy: str
    camera_settings: tuple[CameraSettings, ...]
    model: str = ""
    trained: bool = True
    check_budget: Callable[[float], None] = lambda _: None
    """Raises BudgetError for a budget in MiB that the memory could not live with."""
    check_settings: Callable[[StreamSettings], None] = lambda _: None
    """Raises SettingsError for settings that the memory could not take over while it runs."""
    cameras: list[CameraSubscription] = field(default_factory=list)


def make_session(parameters: NodeParameters, events: WorkerEvents, logger: Any) -> Future[Session]:
    """Start a worker that loads the model and makes the memory; the future holds the session, or what went wrong.

    :raises KvStreamError: when the parameters do not go together.
    """
    settings, depth = parameters.stream_settings(), parameters.depth()
    counters = FrameCounters()
    frames = FrameQueue(parameters.value("ingest.queue_frames"), counters)
    worker = Worker(frames, counters, lambda message: convert(message, depth), events)
    session = Session(worker, frames, counters, settings.memory.policy, parameters.cameras())
    done: Future[Session] = Future()

    def complete(made: Future[Memory]) -> None:
        if error := made.exception():
            done.set_exception(error)
            return
        memory: Any = made.result()
        session.model, session.trained = memory.model_name, memory.model.trained
        session.check_budget, session.check_settings = memory.check_budget, memory.check_settings
        done.set_result(session)

    restore = _restore_from(parameters, logger)
    worker.start(lambda: _make_memory(settings, restore, logger.info)).add_done_callback(complete)
    return done


def _make_memory(settings: StreamSettings, restore: Path | None, report: Callable[[str], None]) -> Memory:
    from ros_kvstream.models.loading import load_model  # imports torch: seconds, and only in the worker's thread
    from ros_kvstream.stream.memory import VideoMemory

    beside = int(settings.memory.budget_mib * (1 << 20))
    memory = VideoMemory(settings, load_model(settings.model, settings.seed, beside=beside, report=report))
    if restore is not None:
        memory.load(restore)
    return memory


def _restore_from(parameters: NodeParameters, logger: Any) -> Path | None:
    """File that the memory starts from; None when it starts empty."""
    name = parameters.value("memory.restore")
    if not name:
        return None
    path = memory_file(parameters.value("memory.directory"), name)
    if path.exists():
        return path
    logger.info(f"memory.restore: there is no {path.name} yet; the memory starts empty.")
    return None


def convert(message: Any, depth: DepthRendering) -> Rgb:
    """Convert an image message of either type; raise FrameError when it is no picture."""
    return compressed_to_rgb(message, depth) if hasattr(message, "format") else image_to_rgb(message, depth)
