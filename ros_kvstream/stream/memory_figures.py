"""The figures that a memory reports, read off its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ros_kvstream.memory.archive.records import ArchiveStatus
from ros_kvstream.memory.budget import MIB
from ros_kvstream.records import MemoryStats

if TYPE_CHECKING:
    from ros_kvstream.stream.memory import VideoMemory


def memory_stats(memory: VideoMemory) -> MemoryStats:
    """All figures of a memory now; every byte count is read off live tensors."""
    arena, counters = memory.arena, memory._counters
    kept = arena.frames_kept()
    records = [memory.frame_index[frame] for frame in kept if frame in memory.frame_index]
    held = arena.cameras_kept()
    archive = memory.archive_retrieval.status() if memory.archive_retrieval else ArchiveStatus("ok")
    device = memory.model.device
    return MemoryStats(
        budget_bytes=int(memory._budget_mib * MIB),
        allocated_bytes=arena.allocated_bytes,
        used_bytes=arena.used_bytes,
        peak_bytes=arena.peak_bytes,
        slots=arena.plan.frame_slots,
        slots_used=arena.frame_slots_used,
        frames_seen=counters["seen"],
        frames_kept=counters["kept"] + memory._block.frames,
        frames_gated=counters["gated"],
        frames_remembered=len(kept),
        oldest_stamp=min((record.stamp for record in records), default=0.0),
        newest_stamp=memory.frame_index.newest_stamp(),
        compactions=arena.compactions,
        rebases=memory.positions.rebases,
        questions=counters["questions"],
        archive_budget_bytes=archive.budget_bytes,
        archive_bytes=archive.used_bytes,
        archive_frames=archive.frames,
        archive_problem=archive.message,
        camera_slots={name: held.get(number, 0) for name, number in memory.frame_index.cameras.items()},
        device_bytes=torch.cuda.memory_reserved(device) if device.type == "cuda" else 0,
    )
