# SPDX-License-Identifier: Apache-2.0
"""What exists between configure and cleanup, and how it is created without blocking the caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ros_kvstream.errors import MemoryFileError
from ros_kvstream.memory.partial_files import remove_partial_files
from ros_kvstream.node.cameras import CameraSubscription
from ros_kvstream.node.compressed_images import compressed_to_rgb
from ros_kvstream.node.frame_counters import FrameCounters
from ros_kvstream.node.frame_poses import FramePoses
from ros_kvstream.node.frame_queue import FrameQueue, QueuedFrame
from ros_kvstream.node.images import Rgb, image_to_rgb
from ros_kvstream.node.parameters import NodeParameters
from ros_kvstream.node.pose_source import PoseSource, TopicPoses
from ros_kvstream.node.pose_tf import TfPoses
from ros_kvstream.node.settings import CameraSettings, PoseSettings, mounting
from ros_kvstream.node.worker import Worker, WorkerEvents
from ros_kvstream.settings import StreamSettings

if TYPE_CHECKING:
    from ros_kvstream.stream.memory import VideoMemory

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ENDING = ".safetensors"


@dataclass
class Session:
    """One memory with its worker, queue, counters and cameras."""

    worker: Worker
    frames: FrameQueue
    counters: FrameCounters
    policy: str
    camera_settings: tuple[CameraSettings, ...]
    memory: VideoMemory
    """Owned by the worker; other threads only read what never changes and call its ``check_*`` methods."""
    poses: FramePoses | None = None
    """Poses of the frames; None without a source."""
    cameras: list[CameraSubscription] = field(default_factory=list)


@dataclass
class NodeStatus:
    """Lifecycle state of the node and its session; written by the node, read by reporter and services."""

    state: str = "unconfigured"
    """unconfigured, configuring, inactive, active or finalized."""
    failure: str = ""
    """Why the last transition failed; empty when it succeeded."""
    session: Session | None = None
    """The session between configure and cleanup."""


def make_session(parameters: NodeParameters, events: WorkerEvents, log: Callable[[str], None]) -> Future[Session]:
    """Start a worker that loads the model and creates the memory; the future holds the session or the error.

    :raises KvStreamError: when the parameters do not fit together.
    """
    settings, own, cameras = parameters.stream_settings(), parameters.node_settings(), parameters.cameras()
    ingest, source = own.ingest, pose_source(own.pose, cameras)
    counters = FrameCounters()
    frames = FrameQueue(ingest.queue_frames, counters)
    by_name = {camera.name: camera for camera in cameras}

    def convert(frame: QueuedFrame) -> Rgb:
        to_rgb = compressed_to_rgb if hasattr(frame.message, "format") else image_to_rgb
        return to_rgb(frame.message, ingest, by_name[frame.camera], lambda text: events.image_loss(frame, text))

    poses = FramePoses(source, own.pose) if source is not None else None
    worker = Worker(frames, counters, convert, events, poses)
    done: Future[Session] = Future()

    def complete(made: Future[VideoMemory]) -> None:
        if error := made.exception():
            done.set_exception(error)
            return
        memory = made.result()
        if poses is not None:
            poses.compare_maps(memory)
        done.set_result(Session(worker, frames, counters, settings.memory.policy, cameras, memory, poses))

    restore = _restore_from(parameters, log)
    worker.start(lambda: _make_memory(settings, restore, log)).add_done_callback(complete)
    return done


def pose_source(settings: PoseSettings, cameras: Sequence[CameraSettings]) -> PoseSource | None:
    """Return the source of poses, None for ``none``; raise KvStreamError where it cannot be used."""
    if settings.source == "topic":
        return TopicPoses(settings, {camera.name: mounting(camera) for camera in cameras})
    return TfPoses(settings) if settings.source == "tf" else None


def _make_memory(settings: StreamSettings, restore: Path | None, log: Callable[[str], None]) -> VideoMemory:
    # These import torch, which takes seconds: only in the worker's thread.
    from ros_kvstream.models.loading import load_model
    from ros_kvstream.stream.memory import VideoMemory

    beside = int(settings.memory.budget_mib * (1 << 20))
    memory = VideoMemory(settings, load_model(settings.model, settings.seed, beside=beside, report=log))
    if restore is not None:
        memory.load(restore)
    return memory


def _restore_from(parameters: NodeParameters, log: Callable[[str], None]) -> Path | None:
    """Return the file to restore the memory from, None for an empty memory; remove what an interrupted save left."""
    directory, name = parameters.value("memory.directory"), parameters.value("memory.restore")
    if directory and (removed := remove_partial_files(Path(directory).expanduser())):
        log(f"memory.directory: removed {', '.join(removed)}, left by a save that was interrupted.")
    if not name:
        return None
    path = memory_file(directory, name)
    if path.exists():
        return path
    log(f"memory.restore: {path.name} does not exist yet; the memory starts empty.")
    return None


def memory_file(directory: str, name: str) -> Path:
    """Return the path of a saved memory inside the folder ``memory.directory``.

    Only plain names are accepted, because any peer on the network can call the services.

    :raises MemoryFileError: for a missing folder, or a name that leads out of it.
    """
    if not directory:
        raise MemoryFileError("memory.directory is not set: set it to the folder for saved memories, and configure.")
    folder = Path(directory).expanduser()
    if not folder.is_dir():
        raise MemoryFileError(f"memory.directory = {directory!r}: no such folder; create it or choose another one.")
    if not _FILE_NAME.fullmatch(name):
        raise MemoryFileError(f"name = {name[:100]!r}: must be letters, digits, '.', '_' and '-', at most 100.")
    path = folder / (name if name.endswith(_ENDING) else name + _ENDING)
    if path.resolve().parent != folder.resolve():
        raise MemoryFileError(f"name = {name!r}: leads out of memory.directory.")
    return path
