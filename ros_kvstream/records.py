# SPDX-License-Identifier: Apache-2.0
"""What goes into a memory and what comes out: plain records without torch or ROS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ros_kvstream.poses import FramePose, Pose, Vector

Note = Callable[[str], None]
"""Is called with a sentence about what is lost or cannot be read."""


def ignore(text: str) -> None:
    """Discard a note."""


@dataclass(frozen=True)
class Scope:
    """Which frames a question may use; the one rule for frames in the arena and in the archive."""

    camera: str = ""
    """Only frames of this camera; '' = all."""
    since: float = 0.0
    """Only frames that end at or after this stamp, seconds; 0 = unbounded."""
    until: float = 0.0
    """Only frames that begin at or before this stamp, seconds; 0 = unbounded."""
    near: Vector | None = None
    """Only frames that were taken within ``radius`` of this point (x, y, z), metres; None = anywhere."""
    radius: float = 0.0
    """Metres, in three dimensions, from ``near`` to the robot's base."""
    map: str = ""
    """Segment of the map that ``near`` is in; frames without a pose in it do not match."""

    @property
    def limited(self) -> bool:
        """Whether only some of the frames may be used."""
        return bool(self.camera or self.since or self.until or self.near)

    def in_time(self, stamp: Any, stamp_end: Any) -> Any:
        """Whether the time span of a frame, or of each of several, overlaps that of the scope: bool, or bool [frames].

        :param stamp, stamp_end: seconds; scalars, or arrays with one entry per frame.
        """
        late_enough = (self.since <= 0) | (stamp_end >= self.since)
        return late_enough & ((self.until <= 0) | (stamp <= self.until))

    def in_place(self, positions: ArrayLike) -> Any:
        """Whether the robot was near at the first or the last moment of a frame: bool, or bool [frames].

        :param positions: of its base in ``map``, metres, [2, 3] or [frames, 2, 3].
        """
        if self.near is None:
            return True
        away = np.asarray(positions, dtype=np.float64) - np.asarray(self.near)
        return (np.linalg.norm(away, axis=-1) <= self.radius).any(-1)

    def __str__(self) -> str:
        """List the limits in use, for messages."""
        limits = [f"camera = {self.camera!r}"] if self.camera else []
        limits += [f"{name} = {value:.3f}" for name, value in (("since", self.since), ("until", self.until)) if value]
        if self.near is not None:
            limits.append("near = ({:g}, {:g}, {:g})".format(*self.near) + f" within {self.radius:g} m")
        return ", ".join(limits)


UNLIMITED = Scope()
"""All frames."""


@dataclass(frozen=True)
class Question:
    """A question that has been checked."""

    text: str
    ids: tuple[int, ...]
    """Tokens from the end of the frames to the beginning of the answer."""
    scope: Scope
    """Frames that it may use."""
    max_tokens: int
    """Most answer tokens."""
    min_confidence: float = 0.0
    """An answer with less confidence gets the verdict NOT_SEEN."""


@dataclass(frozen=True)
class FrameEvidence:
    """One frame that took part in an answer."""

    frame_id: int
    """Running number of the frame in its stream, from 0."""
    stamp: float
    """Seconds of the frame's header stamp."""
    stamp_end: float
    """Stamp of the last redundant frame merged into this one, seconds; equal to ``stamp`` when there is none."""
    camera: str
    """Name of the camera."""
    score: float
    """Fused score, or share of the question's attention where no expert ranked the frame; higher is better. Evidence is
    ordered by attention."""
    kept_share: float = 1.0
    """Share of the frame's tokens in the context, averaged over layers and KV heads, 0 - 1."""
    ranks: dict[str, int] = field(default_factory=dict)
    """Rank per retrieval expert, 1 is best; empty where no expert ran."""
    scores: dict[str, float] = field(default_factory=dict)
    """Raw score per retrieval expert; empty where no expert ran."""
    pose: FramePose | None = None
    """Where it was taken; None where that is not known in the present map."""
    base_end: Pose | None = None
    """Pose of the robot's base at the last redundant frame; None like ``pose``."""


@dataclass(frozen=True)
class Place:
    """Where one remembered moment was seen."""

    frame_id: int
    """Running number of the frame in its stream, from 0."""
    stamp: float
    """Seconds of the frame's header stamp."""
    camera: str
    """Name of the camera."""
    pose: FramePose


@dataclass(frozen=True)
class LatencyBreakdown:
    """Duration of each stage of one answer, in milliseconds of a monotonic clock."""

    queue_ms: float = 0.0
    """Waiting in the worker's queue; set by the caller that owns the queue."""
    flush_ms: float = 0.0
    """Prefilling the frames of a partly filled block, so that the newest frame is included."""
    retrieval_ms: float = 0.0
    """Ranking the archive and writing retrieved frames into the context."""
    prefill_ms: float = 0.0
    """Prefilling the question."""
    first_token_ms: float = 0.0
    """From the start of ``ask`` to the first answer token (TTFT)."""
    decode_ms: float = 0.0
    """All answer tokens after the first."""
    total_ms: float = 0.0
    """The whole call, roll back included."""
    answer_tokens: int = 0
    """Number of answer tokens generated."""


@dataclass(frozen=True)
class MemoryStats:
    """Metrics of a memory; every byte count is read from live tensors."""

    budget_bytes: int = 0
    """The cap: ``memory.budget_mib`` in bytes."""
    allocated_bytes: int = 0
    """Bytes of all tensors that the memory owns (K, V, slot table, scratch); never above the budget."""
    used_bytes: int = 0
    """Bytes of the slots in use now, slot table included."""
    peak_bytes: int = 0
    """Highest ``used_bytes`` since the start or the last clear, questions included."""
    slots: int = 0
    """Slots per layer and KV head that frames may fill."""
    slots_used: int = 0
    """Slots per layer and KV head in use now."""
    frames_seen: int = 0
    """Frames given to this memory object: kept + gated. The frame counters are not reset by clear or load."""
    frames_kept: int = 0
    """Frames prefilled."""
    frames_gated: int = 0
    """Frames that the frame gate found redundant."""
    frames_remembered: int = 0
    """Distinct frames of which at least one slot is still in the arena."""
    patches_kept: int = 0
    """Patches of the kept frames that were prefilled; a grid of two frames counts once."""
    patches_pruned: int = 0
    """Patches of the kept frames that saliency left out."""
    oldest_stamp: float = 0.0
    """Stamp of the oldest frame remembered in the arena, seconds; 0 when empty."""
    newest_stamp: float = 0.0
    """Stamp of the newest frame, seconds; 0 when empty."""
    compactions: int = 0
    """Number of compactions."""
    rebases: int = 0
    """Number of times the positions were re-based."""
    position_limit: int = 0
    """Positions of frames stay below this value."""
    position_source: str = ""
    """What the limit follows from."""
    questions: int = 0
    """Questions answered."""
    archive_budget_bytes: int = 0
    """The archive's own cap; 0 when it is off."""
    archive_bytes: int = 0
    """Bytes that the archive uses."""
    archive_frames: int = 0
    """Frames that the archive holds."""
    archive_problem: str = ""
    """Why frames do not reach the archive, with a remedy; empty without a problem."""
    camera_slots: Mapping[str, int] = field(default_factory=dict)
    """Slots per layer and KV head in use now, by camera."""
    device_bytes: int = 0
    """GPU memory reserved by torch, model included; 0 on the CPU."""


class Verdict(str, Enum):
    """What an answer stands for."""

    SEEN = "seen"
    """It is based on what was seen."""
    NOT_SEEN = "not_seen"
    """What was asked for is not in what is remembered of that time, place and camera."""
    NOT_COVERED = "not_covered"
    """Nothing is remembered of that time, place or camera."""


@dataclass(frozen=True)
class Coverage:
    """Which part of the time asked about is remembered, in the arena or in the archive."""

    covered_since: float = 0.0
    """Earliest stamp asked about of which a frame is remembered, seconds; 0 where there is none."""
    covered_until: float = 0.0
    """Latest stamp asked about of which a frame is remembered, seconds; 0 where there is none."""
    covered_share: float = 0.0
    """Share of the time asked about that is at most COVERED_SECONDS away from a remembered frame, 0 - 1."""


@dataclass(frozen=True)
class Answer:
    """An answer with its evidence."""

    question: str
    text: str
    evidence: tuple[FrameEvidence, ...]
    latency: LatencyBreakdown
    memory: MemoryStats
    asked_at: float
    """Stamp of the newest frame when the question was asked, seconds."""
    finish_reason: str = "stop"
    """"stop" (the model ended), "length" (the token limit), or "not_covered" (the model was not asked)."""
    verdict: Verdict = Verdict.SEEN
    """What the answer stands for."""
    confidence: float = 0.0
    """Geometric mean of the probabilities of the answer's tokens, its end included, 0 - 1; 0 where the model was not
    asked."""
    covered_since: float = 0.0
    """See :class:`Coverage`; like the next two."""
    covered_until: float = 0.0
    covered_share: float = 0.0

    @property
    def goal(self) -> FramePose | None:
        """Where the best evidence with a pose was taken: its base pose is a goal for navigation; None without one."""
        return next((frame.pose for frame in self.evidence if frame.pose is not None), None)


@dataclass(frozen=True)
class Observation:
    """Result of ``observe`` for one frame."""

    frame_id: int
    """Running number; for a gated frame, that of the frame it was merged into."""
    kept: bool
    """False when the frame gate found it redundant."""
    tokens: int
    """Visual tokens prefilled, or waiting in the block."""
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    compaction_ms: float = 0.0
