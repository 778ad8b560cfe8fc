# SPDX-License-Identifier: Apache-2.0
"""A run of one cell on one bag over DDS: its messages are played to a node, its questions asked through ~/query.

The recorded messages are published at the recorded pace; the replay pauses while a question waits for its frames and
its answer. The answers therefore equal those of a run in code, unless the node drops frames: these are counted.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from ros_kvstream.errors import RecordingError, SettingsError
from ros_kvstream.evaluation.cell_run import (
    ANSWER_MEMORY,
    MIB,
    UNTRAINED,
    QuestionQueue,
    RunResult,
    refuse,
    start_result,
    trace_point,
)
from ros_kvstream.evaluation.grid import Job
from ros_kvstream.evaluation.processes import Process, ProcessError, ProcessGroup, free_domain, ros_environment
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.node.messages import VERDICTS, to_seconds, to_stamp
from ros_kvstream.recordings.bags import BagSource
from ros_kvstream.recordings.replay import Player
from ros_kvstream.settings import ModelSettings

PATIENCE = 300.0
"""Seconds for the node to load its model, and for an answer."""
SETTLE_SECONDS = 20.0
"""Longest wait for the frames before a question to be taken or counted as dropped."""
RUN_MEMORY = ("budget_bytes", "allocated_bytes", "used_bytes", "peak_bytes", "slots", "slots_used", "frames_seen",
              "frames_kept", "frames_gated", "frames_remembered", "archive_bytes")  # fmt: skip
"""Memory figures that the record of a run has."""


def run_live_job(job: Job, logs: Path, *, rate: float = 1.0, queue_frames: int = 2) -> RunResult:
    """Run a cell on a bag over DDS.

    :param logs: folder of the node's log and parameters; :param rate: 2 plays at twice the recorded pace;
    :param queue_frames: maximum number of waiting frames per camera in the node.
    :raises SettingsError: where the stream is no bag or the budget is a share.
    """
    source = job.episode.source
    if not isinstance(source, BagSource) or not job.cell.budget_mib:
        raise SettingsError("--live plays recordings to a node: give a BAG and --budget-mib")
    began, domain, result = time.perf_counter(), free_domain(), start_result(job)
    result.run["budget_bytes"] = int(job.cell.budget_mib * MIB)
    parameters = logs / "parameters.yaml"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        values = node_parameters(job, source, queue_frames)
    except RecordingError as error:
        refuse(result, error)
        return result
    parameters.write_text(json.dumps({"/**": {"ros__parameters": values}}))
    command = [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args", "--params-file", str(parameters)]

    from ros_kvstream.evaluation.node_client import NodeClient

    with ProcessGroup(logs, ros_environment(domain)) as processes, NodeClient(domain) as client:
        node = processes.start("kvstream_node", command)
        try:
            client.start(node, PATIENCE)
        except ProcessError as error:
            if "too small" not in str(error):
                raise
            refuse(result, error)
            return result
        player = client.make_player(node, source.topics(), rate=rate)
        try:
            _Playback(job, source, client, node, player, result).play()
        except (RecordingError, OSError) as error:
            refuse(result, error)
    result.run |= {"seconds": time.perf_counter() - began, "questions": len(result.lines)}
    return result


def node_parameters(job: Job, source: BagSource, queue_frames: int) -> dict[str, Any]:
    """Parameters of a node with the cell's settings and the bag's cameras."""
    from ros_kvstream.node.parameter_specs import to_parameters

    topics = source.topics()
    values: dict[str, Any] = to_parameters(job.cell.settings(job.cell.budget_mib))
    values |= {"autostart": False, "ingest.queue_frames": queue_frames, "diagnostics.period_s": 0.2,
               "query.timeout_s": PATIENCE, "cameras": list(topics)}  # fmt: skip
    for camera, topic in topics.items():
        name = topic.played_as.removesuffix("/compressed") if topic.transport == "compressed" else topic.name
        values |= {f"{camera}.topic": name, f"{camera}.transport": topic.transport}
    return values


class _Playback:
    """Plays the messages of a bag to a node and asks between them."""

    def __init__(
        self, job: Job, source: BagSource, client: Any, node: Process, player: Player, result: RunResult
    ) -> None:
        self._source, self._client, self._node, self._player = source, client, node, player
        self._result = result
        self._questions = QuestionQueue(job)
        self._model = ModelSettings(path=job.cell.model)
        self._untraced = 0

    def play(self) -> None:
        """Play everything and fill the result."""
        from ros_kvstream.models.loading import describe_model

        notes: list[str] = []
        questions, result = self._questions, self._result
        for stamp, camera, message in self._source.messages(notes.append):
            result.lines += map(self._ask, questions.due_before(stamp))
            self._node.check()
            self._player.publish(camera, message)
            questions.count_frame(stamp)
        result.lines += map(self._ask, questions.due_before(math.inf))
        stats = self._settled()
        dropped = dict(zip(stats.drop_causes, map(int, stats.drop_counts), strict=True))
        dropped["not_received"] = max(0, questions.frames - int(stats.frames_published))
        lost = ", ".join(f"{cause} {count}" for cause, count in dropped.items() if count)
        if lost:
            notes.append(f"the node dropped frames ({lost}): its answers can differ from those of a run in code")
        memory = {name: int(getattr(stats, name)) for name in RUN_MEMORY}
        if self._untraced:
            notes.append(f"memory over time lacks {self._untraced} points: the node was busy for {SETTLE_SECONDS:g} s")
        if not describe_model(self._model).trained:
            notes.append(UNTRAINED)
        result.run |= questions.data() | {"dropped": dropped, "notes": notes, "memory": memory}

    def _settled(self) -> Any:
        """Statistics of the node after it has taken or dropped every published frame."""
        return self._client.wait_for_settled(self._node, self._questions.frames, SETTLE_SECONDS)

    def _ask(self, question: EvaluationQuestion) -> dict[str, Any]:
        """Ask after the frames so far have arrived, and pause the replay meanwhile."""
        paused, frames = time.monotonic(), self._questions.frames
        if frames:
            try:
                stats = self._settled()
                point = trace_point(stats, to_seconds(stats.newest_stamp), frames, stats.process_bytes, [])
                self._result.run["trace"].append(point)
            except ProcessError:  # it has ended, or is still busy
                self._node.check()
                self._untraced += 1
        line = self._questions.line(question)
        if line["error"]:
            return line
        since, until = map(to_stamp, self._questions.limits(question))
        asked = self._client.ask(question.prompt, camera=question.camera, since=since, until=until)
        response = asked.result(PATIENCE)
        self._player.delay(time.monotonic() - paused)
        if not response.success:
            return line | {"error": response.message, "correct": False}
        return line | response_fields(response) | {"correct": question.expected.accepts(response.answer)}


def response_fields(response: Any) -> dict[str, Any]:
    """Fields that a node's response adds to a line of the results, with the names of a run in code."""
    latency = response.latency
    return {
        "answer": response.answer,
        "finish_reason": response.finish_reason,
        "verdict": next(verdict.value for verdict, number in VERDICTS.items() if number == response.verdict),
        "confidence": response.confidence,
        "covered_share": response.covered_share,
        "asked_at": to_seconds(response.asked_at),
        "evidence": [
            {"stamp": to_seconds(frame.stamp), "stamp_end": to_seconds(frame.stamp_end), "camera": frame.camera,
             "score": frame.score, "kept_share": frame.kept_share,
             "ranks": dict(zip(frame.experts, map(int, frame.ranks), strict=True)), "position": None}
            for frame in response.evidence
        ],
        "goal": None,  # no poses are played
        "error_m": None,
        "latency": {name: getattr(latency, name) for name in latency.get_fields_and_field_types()},
        "memory": {name: int(getattr(response.memory, name)) for name in ANSWER_MEMORY},
    }  # fmt: skip
