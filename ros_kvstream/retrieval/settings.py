"""Settings of retrieval: which experts rank, how they are fused, and what goes into the answer's context."""

from __future__ import annotations

from dataclasses import dataclass

from ros_kvstream.validation import require, require_finite

POSITIONS = ("consecutive", "original")
"""Positions of the answer's context: renumbered without gaps, or as the frames were seen."""


@dataclass(frozen=True)
class RetrievalSettings:
    """How archived frames are ranked and brought back; needs an archive."""

    top_k: int = 8
    """Frames brought back for a question, at most; 0 switches retrieval off."""
    newest_frames: int = 4
    """Newest frames that are always in the context, so that questions about now are not hurt."""
    layers: tuple[int, ...] = ()
    """Model layers whose keys the internal expert searches; empty takes the model's own default."""
    query: str = "last"
    """last | mean: the question's last token, or the mean of its tokens."""
    patch_pooling: str = "max"
    """max | mean over a frame's patches; a mean buries small objects."""
    head_pooling: str = "mean"
    """mean | max over the attention heads."""
    internal_weight: float = 1.0
    """Weight of the internal expert in the fusion; 0 switches it off."""
    external_weight: float = 1.0
    """Weight of the external expert in the fusion; 0 switches it off."""
    external: str = ""
    """"" = none, "tiny" (in this package), "imagenet" (optional downloads), or a CLIP / SigLIP id or folder."""
    rrf_k: float = 60.0
    """k of reciprocal rank fusion: score = sum of weight / (k + rank)."""
    rank_depth: int = 1000
    """Ranks deeper than this count as not found; a bound on the work, not on the archive."""
    moment_gap_seconds: float = 1.0
    """Ranked frames closer than this in time, of one camera, are one moment."""
    moment_frames: int = 2
    """Frames of one moment brought back, at most."""
    spread: str = "auto"
    """auto | always | never: for questions of order, take moments spread over time, one per distinct object."""
    context: str = "auto"
    """newest | arena | auto: what is seen beside the retrieved frames, the newest frames or all that the arena holds;
    auto takes the newest once the stream spans a good part of the trained positions and the archive holds several times
    as many frames as fit into the arena."""
    positions: str = "consecutive"
    """consecutive | original: retrieved frames right before what is seen beside them, or where they were seen."""
    room_tokens: int = 0
    """Slots planned for retrieved frames; 0 takes top_k times the first frame's tokens."""
    pending_pictures: int = 32
    """Pictures that may wait for an idle moment to be embedded by the external expert."""

    def __post_init__(self) -> None:
        require_finite("retrieval.top_k", self.top_k, 0, 4096)
        require_finite("retrieval.newest_frames", self.newest_frames, 0, 4096)
        require(
            all(isinstance(layer, int) and layer >= 0 for layer in self.layers)
            and len(set(self.layers)) == len(self.layers),
            "retrieval.layers", self.layers, "distinct layer numbers from 0",
        )
        for name, choices in (
            ("query", ("last", "mean")),
            ("patch_pooling", ("max", "mean")),
            ("head_pooling", ("mean", "max")),
            ("spread", ("auto", "always", "never")),
            ("positions", POSITIONS),
            ("context", ("auto", "newest", "arena")),
        ):
            value = getattr(self, name)
            require(value in choices, f"retrieval.{name}", value, "one of " + ", ".join(choices))
        require_finite("retrieval.room_tokens", self.room_tokens, 0, 1 << 24)
        require_finite("retrieval.pending_pictures", self.pending_pictures, 0, 4096)
        require_finite("retrieval.internal_weight", self.internal_weight, 0.0, 1000.0)
        require_finite("retrieval.external_weight", self.external_weight, 0.0, 1000.0)
        require_finite("retrieval.rrf_k", self.rrf_k, 0.0, 1e6)
        require_finite("retrieval.rank_depth", self.rank_depth, 1, 1 << 30)
        require_finite("retrieval.moment_gap_seconds", self.moment_gap_seconds, 0.0, 1e9)
        require_finite("retrieval.moment_frames", self.moment_frames, 1, 4096)
