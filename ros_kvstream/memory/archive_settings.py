"""Settings of the archive: its cap, its place, what it keeps of a frame and how it forgets."""

from __future__ import annotations

from dataclasses import dataclass

from ros_kvstream.validation import require, require_finite

PRECISIONS = ("fp16", "int8", "int4")
"""How archived keys and values are stored."""


@dataclass(frozen=True)
class ArchiveSettings:
    """The second tier beside the arena; off while ``budget_mib`` is 0."""

    budget_mib: float = 0.0
    """Hard cap in MiB of everything the archive owns, in memory and on disk together; 0 switches it off."""
    place: str = "memory"
    """"memory", or a folder that holds one preallocated file and survives a restart."""
    precision: str = "fp16"
    """fp16 | int8 | int4: how keys and values are stored; look-up keys are always float16."""
    keep_ratio: float = 0.5
    """Share of the stream's patches that is archived, the least similar to the frames before; 1 keeps all."""
    frame_patches: int = 0
    """Visual tokens of the largest frame that is archived; 0 takes the first frame's."""
    guard: int = 1
    """Patches around a telling patch that are kept with it, in rows and columns of the patch grid."""
    compare_frames: int = 4
    """How many frames before are compared: a patch that any of them already held is redundant."""
    lookup_keys: int = 4
    """Patch keys a frame that the experts search, the most telling first."""
    mean_key: bool = True
    """Whether the mean key of all patches is kept for look-up too (needed for ``patch_pooling: mean``)."""
    thumbnail_bytes: int = 0
    """Room for a frame's JPEG thumbnail, bytes; 0 keeps none."""
    age_weight: float = 0.5
    """When full: the gap that forgetting may leave grows with age to this power; 0 covers all times alike."""
    novelty_weight: float = 1.0
    """When full: how strongly frames that differ from those before are protected; 0 looks at time only."""
    queue_frames: int = 8
    """Frames that may wait for the disk; ingest never waits, a frame that finds the queue full is not archived."""

    def __post_init__(self) -> None:
        require_finite("archive.budget_mib", self.budget_mib, 0.0, 1 << 24)
        require(bool(self.place.strip()), "archive.place", self.place, "'memory' or a folder")
        require(self.precision in PRECISIONS, "archive.precision", self.precision, "one of " + ", ".join(PRECISIONS))
        require_finite("archive.keep_ratio", self.keep_ratio, 0.01, 1.0)
        require_finite("archive.frame_patches", self.frame_patches, 0, 1 << 15)
        require_finite("archive.guard", self.guard, 0, 8)
        require_finite("archive.compare_frames", self.compare_frames, 1, 64)
        require_finite("archive.lookup_keys", self.lookup_keys, 1, 1024)
        require_finite("archive.thumbnail_bytes", self.thumbnail_bytes, 0, 1 << 20)
        require_finite("archive.age_weight", self.age_weight, 0.0, 4.0)
        require_finite("archive.novelty_weight", self.novelty_weight, 0.0, 8.0)
        require_finite("archive.queue_frames", self.queue_frames, 1, 4096)

    @property
    def enabled(self) -> bool:
        """Whether there is an archive at all."""
        return self.budget_mib > 0
