"""What the memory reports: plain records without torch or ROS, shared by the stream, the node and the tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FrameEvidence:
    """One frame that took part in an answer."""

    frame_id: int
    """Running number of the frame in its stream, from 0."""
    stamp: float
    """Seconds of the frame's header stamp."""
    stamp_end: float
    """Seconds of the last redundant frame that this one stands for (equal to ``stamp`` when there is none)."""
    camera: str
    """Name of the camera."""
    score: float
    """Fused score, or the share of the answer's attention where no expert ranked the frame; higher is better."""
    kept_share: float = 1.0
    """Share of the frame's slots that are still in the arena, averaged over layers and KV heads, 0 - 1."""
    ranks: dict[str, int] = field(default_factory=dict)
    """Rank per retrieval expert, 1 is best; empty where no expert ran."""
    scores: dict[str, float] = field(default_factory=dict)
    """Raw score per retrieval expert; empty where no expert ran."""


@dataclass(frozen=True)
class LatencyBreakdown:
    """Where the time of one answer went, in milliseconds of a monotonic clock."""

    queue_ms: float = 0.0
    """Waiting for the worker before anything was done; filled in by the caller that queues."""
    flush_ms: float = 0.0
    """Prefilling frames of a half-filled block, so that "now" is really now."""
    retrieval_ms: float = 0.0
    """Ranking the archive and bringing frames back."""
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
    """The memory's own figures; every byte count is of live tensors, not of an estimate."""

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
    """Frames given to the memory: kept + gated."""
    frames_kept: int = 0
    """Frames prefilled."""
    frames_gated: int = 0
    """Frames that the frame gate found redundant."""
    frames_remembered: int = 0
    """Distinct frames of which at least one slot is still in the arena."""
    oldest_stamp: float = 0.0
    """Stamp of the oldest frame remembered in the arena, seconds; 0 when empty."""
    newest_stamp: float = 0.0
    """Stamp of the newest frame, seconds; 0 when empty."""
    compactions: int = 0
    """How often the policy made room."""
    rebases: int = 0
    """How often positions were re-based."""
    questions: int = 0
    """Questions answered."""
    archive_budget_bytes: int = 0
    """The archive's own cap; 0 when it is off."""
    archive_bytes: int = 0
    """Bytes that the archive uses."""
    archive_frames: int = 0
    """Frames that the archive holds."""
    archive_problem: str = ""
    """Why frames do not reach the archive, and what helps; empty while all is well."""
    camera_slots: Mapping[str, int] = field(default_factory=dict)
    """Slots per layer and KV head in use now, by camera."""
    device_bytes: int = 0
    """Memory that the model and the arena hold on the GPU; 0 without one."""


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
    """"stop" (the model ended), "length" (the token limit), or "cancelled"."""


@dataclass(frozen=True)
class Observation:
    """What became of one frame given to ``observe``."""

    frame_id: int
    """Running number, also of the frame that a gated one was folded into."""
    kept: bool
    """False when the frame gate found it redundant."""
    tokens: int
    """Visual tokens prefilled or waiting in the block."""
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    compaction_ms: float = 0.0
