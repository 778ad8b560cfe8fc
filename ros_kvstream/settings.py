"""Settings as frozen dataclasses that refuse bad values when made. No torch, no ROS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from ros_kvstream.errors import SettingsError

POLICIES = ("infinipot_v", "tar", "van", "aks", "uniform", "sliding_window", "recent", "full")
"""Names of the selection policies (parameter ``memory.policy``)."""

QUANTIZED_ORDERS = ("policy", "recent", "saliency")
"""What gets the most bits (parameter ``quantized.order``)."""

ATTENTIONS = ("auto", "sdpa", "eager", "flash_attention_2")
"""Choices of the parameter ``attention``."""

QUANTIZATIONS = ("none", "bitsandbytes-int8", "bitsandbytes-nf4", "torchao-int8", "torchao-int4")
"""Choices of the parameter ``quantization``."""


class Change(Enum):
    """When a setting may change in a running node."""

    START = "only when the node is started"
    CONFIGURE = "while the node is unconfigured; it takes effect at the next configure"
    RUNNING = "at any time, also while the node is active"


@dataclass(frozen=True)
class FieldRules:
    """What a setting's field says beside its type and default; the node's parameters and docs/parameters.md use it."""

    description: str
    """What it does, its unit, the reason for the default, and what follows from changing it."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    change: Change = Change.CONFIGURE


def setting(
    default: Any, description: str, low: float | None = None, high: float | None = None, *,
    choices: tuple[str, ...] = (), change: Change = Change.CONFIGURE,
) -> Any:  # fmt: skip
    """Declare one setting as a dataclass field: default, description, inclusive range or choices, and change."""
    return field(default=default, metadata={"rules": FieldRules(description, low, high, choices, change)})


def rules_of(settings: Any) -> dict[str, FieldRules]:
    """Rules by field name of a settings dataclass or instance; fields without rules are left out."""
    return {item.name: item.metadata["rules"] for item in fields(settings) if "rules" in item.metadata}


def check_fields(settings: Any, group: str) -> None:
    """Raise SettingsError for the first field outside its range or choices; call it from ``__post_init__``.

    :param group: prefix of the settings' names in messages, such as "memory"; "" for none.
    """
    for name, rules in rules_of(settings).items():
        full, value = f"{group}.{name}" if group else name, getattr(settings, name)
        if rules.choices:
            require(value in rules.choices, full, value, "one of " + ", ".join(rules.choices))
        if rules.low is not None and rules.high is not None:
            require_finite(full, value, rules.low, rules.high)


def require(condition: bool, name: str, value: object, limit: str, remedy: str = "") -> None:
    """Raise SettingsError that names the value, the limit and the remedy unless the condition holds."""
    if not condition:
        raise SettingsError(f"{name} = {value!r}: must be {limit}." + (f" {remedy}" if remedy else ""))


def require_finite(name: str, value: float, low: float, high: float) -> None:
    """Raise SettingsError unless low <= value <= high and the value is a finite number."""
    finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    require(finite and low <= value <= high, name, value, f"a finite number from {low:g} to {high:g}")


@dataclass(frozen=True)
class ModelSettings:
    """Which model, and how it is loaded."""

    path: str = "tiny"
    """"tiny" (the model in this package), a local folder, or a hub id."""
    device: str = "auto"
    """auto | cpu | cuda | cuda:N."""
    dtype: str = "auto"
    """auto | float32 | bfloat16 | float16; auto takes the checkpoint's own on a GPU, float32 on a CPU."""
    max_frame_pixels: int = 0
    """Larger frames are scaled down to this many pixels before the vision tower; 0 keeps the model's own limit."""
    attention: str = "auto"
    """Attention of the vision tower: auto (the best that is there) | sdpa | eager | flash_attention_2."""
    quantization: str = "none"
    """Weights of the language model in fewer bits, one of QUANTIZATIONS; needs an optional package."""
    trust_remote_code: bool = False
    """Whether Python code that comes with a checkpoint (its tokenizer) may run."""
    check_memory: bool = True
    """Whether a model whose weights do not fit the free memory is refused before it is loaded."""

    def __post_init__(self) -> None:
        require(bool(self.path.strip()), "model", self.path, "'tiny', a local folder or a hub id")
        require(
            self.device in ("auto", "cpu", "cuda") or self.device.removeprefix("cuda:").isdigit(),
            "device", self.device, "auto, cpu, cuda or cuda:N",
        )
        require(
            self.dtype in ("auto", "float32", "bfloat16", "float16"),
            "dtype", self.dtype, "auto, float32, bfloat16 or float16",
        )
        require_finite("model.max_frame_pixels", self.max_frame_pixels, 0, 1 << 26)
        require(self.attention in ATTENTIONS, "attention", self.attention, "one of " + ", ".join(ATTENTIONS))
        require(
            self.quantization in QUANTIZATIONS,
            "quantization", self.quantization, "one of " + ", ".join(QUANTIZATIONS),
        )


@dataclass(frozen=True)
class MemorySettings:
    """The arena: its byte cap, its policy and when it makes room."""

    budget_mib: float = 64.0
    """Hard cap in MiB of everything the memory allocates."""
    policy: str = "infinipot_v"
    """Name of the selection policy, one of POLICIES."""
    policy_options: Mapping[str, object] = field(default_factory=dict)
    """Settings of the policy by name (alpha, recent_share, ...); the policy refuses unknown ones."""
    keep_ratio: float = 0.9
    """Share of the frame slots that a compaction keeps (published: 32 grids cut to 24)."""
    high_water: float = 1.0
    """Share of the frame slots that may fill up before a compaction makes room."""
    camera_shares: Mapping[str, float] = field(default_factory=dict)
    """Share of the frame slots by camera name that other cameras cannot take, 0 for an equal part of what the others
    leave; what a camera does not fill is lent. Cameras that are not named give way first, unless none is named."""
    block_frames: int = 1
    """Frames that are prefilled together; a question flushes a half-filled block."""
    frames_per_grid: int = 1
    """Real frames in one temporal grid: 2 halves the cost and the slots of a frame in families whose tower takes two
    moments at once (Qwen-VL), and a grid waits for its second frame; a question flushes a half-filled one."""
    max_question_tokens: int = 256
    """Longest question, in tokens; slots for it are reserved."""
    max_answer_tokens: int = 128
    """Longest answer, in tokens; slots for it are reserved."""
    position_limit: int = 0
    """Positions are re-based before they reach this; 0 takes the model's own trained range."""

    def __post_init__(self) -> None:
        require_finite("memory.budget_mib", self.budget_mib, 0.01, 1 << 22)
        require(self.policy in POLICIES, "memory.policy", self.policy, "one of " + ", ".join(POLICIES))
        require_finite("memory.keep_ratio", self.keep_ratio, 0.05, 0.99)
        require_finite("memory.high_water", self.high_water, 0.1, 1.0)
        require(
            self.keep_ratio < self.high_water, "memory.keep_ratio", self.keep_ratio,
            f"below memory.high_water = {self.high_water:g}, or a compaction would free nothing",
        )
        for name, share in self.camera_shares.items():
            require_finite(f"{name}.share", share, 0.0, 1.0)
        total = sum(self.camera_shares.values())
        require(total <= 1.0 + 1e-9, "shares of all cameras together", round(total, 6), "at most 1")
        require_finite("memory.block_frames", self.block_frames, 1, 256)
        require_finite("memory.frames_per_grid", self.frames_per_grid, 1, 2)
        require_finite("memory.max_question_tokens", self.max_question_tokens, 8, 8192)
        require_finite("memory.max_answer_tokens", self.max_answer_tokens, 1, 4096)
        require_finite("memory.position_limit", self.position_limit, 0, 1 << 24)


@dataclass(frozen=True)
class GateSettings:
    """The frame gate: which frames are so much like the newest kept one that they are not computed."""

    mode: str = "flow"
    """off (every frame passes) | flow (fixed thresholds) | adaptive (thresholds follow a target)."""
    motion: float = 8.0
    """Speed that counts as motion, in pixels of the original picture per second."""
    residual: float = 3.0
    """Change that motion does not explain, in grey levels beyond noise averaged over one block, 0 - 255."""
    block: int = 8
    """Side of the block over which a change is averaged, in pixels of the small picture; less finds smaller things."""
    side: int = 160
    """Longest side of the small picture on which frames are compared, in pixels."""
    max_silence: float = 5.0
    """Seconds after the newest kept frame at which a frame passes whatever it shows."""
    window: float = 1.0
    """A displacement counts as made within at most this many seconds, so that slow drift adds up to motion."""
    max_gain: float = 2.0
    """Largest brightness or contrast ratio taken for exposure control; a larger one (lights off) is news."""
    flow: str = "dis_fast"
    """Optical flow: dis_ultrafast | dis_fast | dis_medium | farneback (docs/thinning.md has them measured)."""
    target_share: float = 0.5
    """adaptive: largest share of the frames that shall pass; not used where target_rate is set."""
    target_rate: float = 0.0
    """adaptive: frames per second that shall pass at most; 0 takes target_share."""
    adapt_range: float = 64.0
    """adaptive: ``motion`` and ``residual`` rise by at most this factor, and never fall below what is set here: a
    target is a ceiling, nothing passes only to fill it."""

    def __post_init__(self) -> None:
        require(self.mode in ("off", "flow", "adaptive"), "gate.mode", self.mode, "off, flow or adaptive")
        require_finite("gate.motion", self.motion, 0.01, 1e5)
        require_finite("gate.residual", self.residual, 0.01, 255.0)
        require_finite("gate.block", self.block, 2, 64)
        require_finite("gate.side", self.side, 48, 1024)
        require_finite("gate.max_silence", self.max_silence, 0.01, 1e6)
        require_finite("gate.window", self.window, 0.01, 1e3)
        require_finite("gate.max_gain", self.max_gain, 1.0, 100.0)
        flows = ("dis_ultrafast", "dis_fast", "dis_medium", "farneback")
        require(self.flow in flows, "gate.flow", self.flow, "one of " + ", ".join(flows))
        require_finite("gate.target_share", self.target_share, 0.001, 1.0)
        require_finite("gate.target_rate", self.target_rate, 0.0, 1e4)
        require_finite("gate.adapt_range", self.adapt_range, 1.0, 100.0)


@dataclass(frozen=True)
class SaliencySettings:
    """Which patches of a kept frame are left out of the language model's prefill."""

    mode: str = "off"
    """off (every patch is kept) | prune (patches without edges and without colour variance are left out) | novel
    (also patches that did not change since the newest kept frame, whatever they show; all are kept again after
    ``gate.max_silence``; needs gate.mode other than off)."""
    threshold: float = 3.0
    """Saliency below which a patch may be left out, in grey levels (absolute, see vision/saliency.py)."""
    guard: int = 1
    """Patches kept around every salient one, in patches."""
    max_pruned: float = 0.5
    """Largest share of a frame's patches that may be left out; the least salient go first."""

    def __post_init__(self) -> None:
        require(self.mode in ("off", "prune", "novel"), "saliency.mode", self.mode, "off, prune or novel")
        require_finite("saliency.threshold", self.threshold, 0.0, 1e3)
        require_finite("saliency.guard", self.guard, 0, 16)
        require_finite("saliency.max_pruned", self.max_pruned, 0.0, 1.0)


@dataclass(frozen=True)
class QuantizedSettings:
    """The precision ladder: most frame slots in 8 or 4 bits, the best ones and the newest in the model's own type."""

    mode: str = "off"
    """off (every slot in the model's own type) | on."""
    int8: float = 0.25
    """Share of the frame slots in 8 bits."""
    int4: float = 0.625
    """Share of the frame slots in 4 bits; what is left of both stays in the model's own type."""
    group: int = 64
    """Channels that share a scale, at most; fewer where that does not divide the head's."""
    order: str = "policy"
    """Which slots get the most bits: policy (those that the policy would keep longest) | recent (the newest) |
    saliency (those of the most salient patches, vision/saliency.py; equal ones: the newer)."""

    def __post_init__(self) -> None:
        require(self.mode in ("off", "on"), "quantized.mode", self.mode, "off or on")
        require_finite("quantized.int8", self.int8, 0.0, 0.95)
        require_finite("quantized.int4", self.int4, 0.0, 0.95)
        packed = round(self.int8 + self.int4, 9)
        require(packed <= 0.95, "quantized.int8 + quantized.int4", packed, "at most 0.95")
        require(packed > 0, "quantized.int8 + quantized.int4", packed, "above 0")
        require_finite("quantized.group", self.group, 2, 1024)
        require(self.order in QUANTIZED_ORDERS, "quantized.order", self.order, "one of " + ", ".join(QUANTIZED_ORDERS))


PRECISIONS = ("fp16", "int8", "int4")
"""How archived keys and values are stored."""


@dataclass(frozen=True)
class ArchiveSettings:
    """The second tier beside the arena; off while ``budget_mib`` is 0."""

    budget_mib: float = 0.0
    """Hard cap in MiB of everything the archive owns, in memory and on disk together; 0 switches it off."""
    path: str = "memory"
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
    index_keys: int = 4
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
        require(bool(self.path.strip()), "archive.path", self.path, "'memory' or a folder")
        require(self.precision in PRECISIONS, "archive.precision", self.precision, "one of " + ", ".join(PRECISIONS))
        require_finite("archive.keep_ratio", self.keep_ratio, 0.01, 1.0)
        require_finite("archive.frame_patches", self.frame_patches, 0, 1 << 15)
        require_finite("archive.guard", self.guard, 0, 8)
        require_finite("archive.compare_frames", self.compare_frames, 1, 64)
        require_finite("archive.index_keys", self.index_keys, 1, 1024)
        require_finite("archive.thumbnail_bytes", self.thumbnail_bytes, 0, 1 << 20)
        require_finite("archive.age_weight", self.age_weight, 0.0, 4.0)
        require_finite("archive.novelty_weight", self.novelty_weight, 0.0, 8.0)
        require_finite("archive.queue_frames", self.queue_frames, 1, 4096)

    @property
    def enabled(self) -> bool:
        """Whether there is an archive at all."""
        return self.budget_mib > 0


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
    temporal_diversity: str = "auto"
    """auto | always | never: for questions of order, take moments spread over time, one per distinct object."""
    context: str = "auto"
    """newest | arena | auto: what is seen beside the retrieved frames, the newest frames or all that the arena holds;
    auto takes the newest once the stream spans a good part of the trained positions and the archive holds several times
    as many frames as fit into the arena."""
    positions: str = "consecutive"
    """consecutive | original: retrieved frames right before what is seen beside them, or where they were seen."""
    capacity_tokens: int = 0
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
            ("temporal_diversity", ("auto", "always", "never")),
            ("positions", POSITIONS),
            ("context", ("auto", "newest", "arena")),
        ):
            value = getattr(self, name)
            require(value in choices, f"retrieval.{name}", value, "one of " + ", ".join(choices))
        require_finite("retrieval.capacity_tokens", self.capacity_tokens, 0, 1 << 24)
        require_finite("retrieval.pending_pictures", self.pending_pictures, 0, 4096)
        require_finite("retrieval.internal_weight", self.internal_weight, 0.0, 1000.0)
        require_finite("retrieval.external_weight", self.external_weight, 0.0, 1000.0)
        require_finite("retrieval.rrf_k", self.rrf_k, 0.0, 1e6)
        require_finite("retrieval.rank_depth", self.rank_depth, 1, 1 << 30)
        require_finite("retrieval.moment_gap_seconds", self.moment_gap_seconds, 0.0, 1e9)
        require_finite("retrieval.moment_frames", self.moment_frames, 1, 4096)


@dataclass(frozen=True)
class StreamSettings:
    """Everything that a VideoMemory is made from."""

    model: ModelSettings = field(default_factory=ModelSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    gate: GateSettings = field(default_factory=GateSettings)
    saliency: SaliencySettings = field(default_factory=SaliencySettings)
    quantized: QuantizedSettings = field(default_factory=QuantizedSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    seed: int = 0
    """Seed of everything random (untrained weights); equal seeds give equal answers."""
