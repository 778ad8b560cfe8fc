"""One cell on one recording over DDS: its messages played to a real node, its questions asked through ~/query.

The recording's own messages are published at their own pace; while a question waits for its frames and its answer the
recording pauses. So the answers are those of the run in code, unless the node had to drop frames: those are counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ros_kvstream.errors import BudgetError, SettingsError
from ros_kvstream.evaluation.cell_run import LATE_SECONDS, MIB, RunResult, Trace, question_line
from ros_kvstream.evaluation.grid import Job
from ros_kvstream.evaluation.processes import Process, ProcessError, ProcessGroup, free_domain, ros_environment
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.recordings.bag_frames import BagSource
from ros_kvstream.recordings.bag_salvage import RawMessage
from ros_kvstream.recordings.bags import IMAGE_TYPES

PATIENCE = 300.0
"""Seconds for the node to load its model, and for an answer."""
SETTLE_SECONDS = 20.0
"""Longest wait for the frames before a question to be taken or counted as dropped."""
DISCOVERY = 0.3
"""Seconds between finding the node's subscriptions and the first frame: the node must find the publishers too."""
_RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"


def run_live_job(job: Job, logs: Path, *, rate: float = 1.0, queue_frames: int = 2) -> RunResult:
    """Run a cell on a recording over DDS.

    :param logs: folder of the node's log and parameters; :param rate: 2 plays twice as fast as it was recorded;
    :param queue_frames: frames per camera that wait in the node at most.
    :raises SettingsError: where the stream is no recording or the budget is a share.
    """
    source = job.episode.source
    if not isinstance(source, BagSource) or not job.cell.budget_mib:
        raise SettingsError("--live plays recordings to a node: give a BAG and --budget-mib")
    began, domain = time.perf_counter(), free_domain()
    run: dict[str, Any] = {"run": job.key, "cell": job.cell.data(), "episode": job.episode.name, "status": "done",
                           "reason": "", "budget_bytes": int(job.cell.budget_mib * MIB), "trace": []}  # fmt: skip
    result = RunResult(run)
    parameters = logs / "parameters.yaml"
    logs.mkdir(parents=True, exist_ok=True)
    parameters.write_text(json.dumps({"/**": {"ros__parameters": node_parameters(job, source, queue_frames)}}))
    command = [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args", "--params-file", str(parameters)]

    from ros_kvstream.evaluation.node_client import NodeClient

    with ProcessGroup(logs, ros_environment(domain)) as processes, NodeClient(domain) as client:
        node = processes.start("kvstream_node", command)
        try:
            client.start(node, PATIENCE)
        except ProcessError as error:
            if "too small" not in str(error):
                raise
            return RunResult(run | {"status": "refused", "reason": str(BudgetError(str(error))), "seconds": 0.0})
        with _publishers(source, domain, node) as publishers:
            _Playback(job, source, client, node, publishers, rate).play(result)
    run |= {"seconds": time.perf_counter() - began, "questions": len(result.lines)}
    return result


def node_parameters(job: Job, source: BagSource, queue_frames: int) -> dict[str, Any]:
    """Parameters of a node with the cell's settings and the recording's cameras."""
    from ros_kvstream.node.parameter_specs import to_parameters

    values: dict[str, Any] = to_parameters(job.cell.settings(job.cell.budget_mib))
    values |= {"autostart": False, "ingest.queue_frames": queue_frames, "diagnostics.period_s": 0.2}
    values["query.timeout_s"] = PATIENCE
    values["cameras"] = list(source.topics())
    for camera, (topic, kind) in source.topics().items():
        values[f"{camera}.topic"] = topic.removesuffix("/compressed") if IMAGE_TYPES[kind] == "compressed" else topic
        values[f"{camera}.transport"] = IMAGE_TYPES[kind]
    return values


@contextmanager
def _publishers(source: BagSource, domain: int, node: Process) -> Iterator[dict[str, Any]]:
    """A publisher for each camera, once the node listens to all of them."""
    import rclpy
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from rclpy.signals import SignalHandlerOptions
    from sensor_msgs.msg import CompressedImage, Image

    context = rclpy.Context()
    before = os.environ.get(_RANGE)
    os.environ[_RANGE] = "LOCALHOST"  # read once, when the context is made
    try:
        rclpy.init(context=context, domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
    finally:
        os.environ.pop(_RANGE) if before is None else os.environ.update({_RANGE: before})
    try:
        player = rclpy.create_node("kvstream_evaluate", context=context)
        quality = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
        made = {}
        for camera, (topic, kind) in source.topics().items():
            compressed = IMAGE_TYPES[kind] == "compressed"
            name = topic if not compressed or topic.endswith("/compressed") else f"{topic}/compressed"
            made[camera] = player.create_publisher(CompressedImage if compressed else Image, name, quality)
        node.wait_for(lambda: all(publisher.get_subscription_count() for publisher in made.values()),
                      "subscribing to the cameras", PATIENCE)  # fmt: skip
        time.sleep(DISCOVERY)
        yield made
        player.destroy_node()
    finally:
        rclpy.try_shutdown(context=context)


class _Playback:
    """Plays messages when they are due and asks between them."""

    def __init__(
        self, job: Job, source: BagSource, client: Any, node: Process, publishers: dict[str, Any], rate: float
    ) -> None:
        self._job = job
        self._source = source
        self._client = client
        self._node = node
        self._publishers = publishers
        self._rate = rate
        self._begun: tuple[float, int] | None = None
        self._published = 0
        self._newest = 0.0
        self._trace = Trace()

    def play(self, result: RunResult) -> None:
        """Play everything; fills the result."""
        first = self._source.first_stamp()
        waiting = deque(sorted(self._job.episode.questions, key=lambda question: question.stamp(question.at, first)))
        notes: list[str] = []
        for stamp, camera, message in self._source.messages(notes.append):
            while waiting and waiting[0].stamp(waiting[0].at, first) < stamp:
                result.lines.append(self._ask(waiting.popleft(), first))
            self._publish(camera, message)
            self._newest = max(self._newest, stamp)
        while waiting:
            result.lines.append(self._ask(waiting.popleft(), first))
        stats = self._client.wait_for_settled(self._node, self._published, SETTLE_SECONDS)
        dropped = dict(zip(stats.drop_causes, (int(count) for count in stats.drop_counts), strict=True))
        dropped["not_received"] = max(0, self._published - int(stats.frames_published))
        lost = {cause: count for cause, count in dropped.items() if count}
        if lost:
            notes.append(f"the node dropped frames ({', '.join(f'{c} {n}' for c, n in lost.items())}): its answers may "
                         "differ from those of a run in code")  # fmt: skip
        result.run |= {
            "frames": self._published, "first_stamp": first, "newest_stamp": self._newest, "dropped": dropped,
            "notes": notes, "trace": self._trace.points,
            "memory": {name: int(getattr(stats, name)) for name in
                       ("budget_bytes", "allocated_bytes", "used_bytes", "peak_bytes", "slots", "slots_used",
                        "frames_seen", "frames_kept", "frames_gated", "frames_remembered", "archive_bytes")},
        }  # fmt: skip

    def _publish(self, camera: str, message: RawMessage) -> None:
        if self._begun is None:
            self._begun = (time.monotonic(), message.received)
        due = self._begun[0] + (message.received - self._begun[1]) / 1e9 / self._rate
        time.sleep(max(0.0, due - time.monotonic()))
        self._node.check()
        self._publishers[camera].publish(message.data)  # serialized already
        self._published += 1

    def _ask(self, question: EvaluationQuestion, first: float) -> dict[str, Any]:
        """Let the frames so far arrive, ask, and let the recording wait meanwhile."""
        paused = time.monotonic()
        line = question_line(self._job, question, first) | {"frames_before": self._published, "asked_at": None}
        due = question.stamp(question.at, first)
        if self._published:
            line["asked_at"] = self._newest
            with suppress(ProcessError):
                stats = self._client.wait_for_settled(self._node, self._published, SETTLE_SECONDS)
                self._trace.points.append(self._trace.point(_Seconds(stats), self._published, stats.process_bytes))
        if due - self._newest > LATE_SECONDS and due != float("inf"):
            return line | {"error": f"not asked: the stream ended {due - self._newest:.1f} s before", "correct": None}
        limits = {name: _time(question.stamp(limit, first)) for name, limit in
                  (("since", question.since), ("until", question.until)) if limit}  # fmt: skip
        response = self._client.ask(question.prompt, camera=question.camera, **limits).result(PATIENCE)
        if self._begun is not None:
            self._begun = (self._begun[0] + time.monotonic() - paused, self._begun[1])
        if not response.success:
            return line | {"error": response.message, "correct": False}
        return line | response_fields(response) | {"correct": question.expected.accepts(response.answer)}


class _Seconds:
    """KvStats whose newest stamp is in seconds, as the memory's own figures have it."""

    def __init__(self, stats: Any) -> None:
        self._stats = stats
        self.newest_stamp = _seconds(stats.newest_stamp)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stats, name)


def response_fields(response: Any) -> dict[str, Any]:
    """What a node's response adds to a line of the results; the same names as a run in code gives."""
    latency = response.latency
    return {
        "answer": response.answer,
        "finish_reason": response.finish_reason,
        "asked_at": _seconds(response.asked_at),
        "evidence": [
            {"stamp": _seconds(frame.stamp), "stamp_end": _seconds(frame.stamp_end), "camera": frame.camera,
             "score": frame.score, "kept_share": frame.kept_share,
             "ranks": dict(zip(frame.experts, map(int, frame.ranks), strict=True))}
            for frame in response.evidence
        ],
        "latency": {name: getattr(latency, name) for name in latency.get_fields_and_field_types()},
        "memory": {name: int(getattr(response.memory, name)) for name in
                   ("budget_bytes", "used_bytes", "archive_bytes", "frames_remembered")},
    }  # fmt: skip


def _seconds(stamp: Any) -> float:
    return float(stamp.sec + stamp.nanosec / 1e9)


def _time(seconds: float) -> Any:
    from builtin_interfaces.msg import Time

    nanoseconds = round(seconds * 1e9)
    return Time(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9)
