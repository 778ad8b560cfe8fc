# SPDX-License-Identifier: Apache-2.0
"""Settings of a VideoMemory: frozen dataclasses that declare every setting once and reject bad values when made.

The field of a setting carries its default, description, range and when it may change. The node's parameters,
config/kvstream.yaml and docs/parameters.md are generated from the fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from ros_kvstream.errors import SettingsError


class Change(Enum):
    """When a setting may change in a running node."""

    START = "only when the node is started"
    CONFIGURE = "while the node is unconfigured; it takes effect at the next configure"
    RUNNING = "at any time, also while the node is active"


@dataclass(frozen=True)
class FieldRules:
    """Metadata of a setting's field, beside its type and default."""

    description: str
    """What it does, its unit, the reason for the default, and the consequence of changing it."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    change: Change = Change.CONFIGURE

    def check(self, name: str, value: Any) -> None:
        """Raise SettingsError unless the value is one of the choices or a number inside the inclusive range."""
        named = f"one of {', '.join(self.choices)}"
        if value in self.choices:
            return
        if self.low is None or self.high is None:
            require(not self.choices, name, value, named)
        elif self.choices and not isinstance(value, (int, float)):
            require(False, name, value, f"{named}, or a finite number from {self.low:.10g} to {self.high:.10g}")
        else:
            require_finite(name, value, self.low, self.high)


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
        rules.check(f"{group}.{name}" if group else name, getattr(settings, name))


def require(condition: bool, name: str, value: object, limit: str, remedy: str = "") -> None:
    """Raise SettingsError that names the value, the limit and the remedy unless the condition holds."""
    if not condition:
        raise SettingsError(f"{name} = {value!r}: must be {limit}." + (f" {remedy}" if remedy else ""))


def require_finite(name: str, value: float, low: float, high: float) -> None:
    """Raise SettingsError unless low <= value <= high and the value is a finite number."""
    finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    require(finite and low <= value <= high, name, value, f"a finite number from {low:.10g} to {high:.10g}")


@dataclass(frozen=True)
class ModelSettings:
    """Which model is loaded, and how."""

    path: str = setting(
        "tiny", "Model to load: 'tiny' (trained on synthetic patrols, part of this package; needs no download), a "
        "local folder, or a Hugging Face hub id. Configure fails for a model of an unsupported family.")
    device: str = setting(
        "auto", "Device of the model and its memory: auto, cpu, cuda or cuda:N. auto takes the GPU if there is one.")
    dtype: str = setting(
        "auto", "Number format of the weights and of the K/V tensors. auto takes the checkpoint's native dtype on a "
        "GPU and float32 on a CPU, where 16-bit arithmetic is slow. 16 bits halve the bytes per remembered token.",
        choices=("auto", "float32", "bfloat16", "float16"))
    max_frame_pixels: int = setting(
        0, "Frames with more pixels are scaled down to this number before the vision tower. A smaller value loses "
        "detail and saves time and memory. 0 uses the model's own limit.", 0, 1 << 26)
    attention: str = setting(
        "auto", "Attention implementation of the vision tower. auto takes the fastest that is available. The language "
        "model is not affected: it always attends over the memory's K/V tensors.",
        choices=("auto", "sdpa", "eager", "flash_attention_2"))
    quantization: str = setting(
        "none", "Weights of the language model in 8 or 4 bits: less memory, less exact answers. Needs the optional "
        "package of the same name; configure fails without it.",
        choices=("none", "bitsandbytes-int8", "bitsandbytes-nf4", "torchao-int8", "torchao-int4"))
    trust_remote_code: bool = setting(
        False, "Run Python code that comes with a checkpoint, with all rights of the node. Off for safety: enable it "
        "only for checkpoints whose code you have read.")
    check_memory: bool = setting(
        True, "Reject a model whose weights and memory.budget_mib exceed the free memory, before it is loaded. With "
        "false the load is tried anyway, and the system may end the process.")

    def __post_init__(self) -> None:
        require(bool(self.path.strip()), "model", self.path, "'tiny', a local folder or a hub id")
        require(
            self.device in ("auto", "cpu", "cuda") or self.device.removeprefix("cuda:").isdigit(),
            "device", self.device, "auto, cpu, cuda or cuda:N",
        )
        check_fields(self, "")


@dataclass(frozen=True)
class MemorySettings:
    """The arena: its byte cap, its policy and when it evicts."""

    budget_mib: float = setting(
        64.0, "Hard cap in MiB of everything the memory allocates, including the slots reserved for a question and its "
        "answer. A smaller budget remembers fewer frames. A budget that is too small is rejected, and the error states "
        "the minimum.", 0.01, 1 << 22, change=Change.RUNNING)
    policy: str = setting(
        "infinipot_v", "Selection policy: decides which tokens are kept when the memory is full. infinipot_v keeps "
        "what is neither redundant nor weak. full never evicts: frames are rejected once the budget is used up. The "
        "settings of a policy are the parameters memory.<policy>.*.", change=Change.RUNNING)
    policy_settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of the chosen policy by field name; the policy rejects unknown ones."""
    keep_ratio: float = setting(
        0.9, "Share of the frame slots that a compaction keeps; must be below memory.high_water. A larger value evicts "
        "less at once and compacts more often, which costs time.", 0.05, 0.99, change=Change.RUNNING)
    high_water: float = setting(
        1.0, "Share of the frame slots in use at which a compaction starts. 1 waits until the next frame does not fit, "
        "which uses the whole budget. A smaller value compacts earlier and leaves slots unused.",
        0.1, 1.0, change=Change.RUNNING)
    camera_shares: Mapping[str, float] = field(default_factory=dict)
    """Reserved share of the frame slots by camera name, 0 for an equal part of what the others leave; unused slots are
    lent to other cameras. Unless the mapping is empty, tokens of cameras that it does not name are evicted first."""
    block_frames: int = setting(
        1, "Frames that are prefilled together. More frames per block are faster, but a frame is remembered only when "
        "its block is complete. A question flushes an incomplete block.", 1, 256)
    frames_per_grid: int = setting(
        1, "Camera frames per temporal grid of the model. 2 halves the cost and the slots of a frame in families whose "
        "vision tower reads two moments at once (Qwen-VL), and blends what moves between the two. Frames are paired by "
        "camera, at most 2 s apart; set memory.block_frames to the number of cameras.", 1, 2)
    max_question_tokens: int = setting(
        256, "Longest question in tokens; longer questions are rejected. Slots for it are reserved in the budget.",
        8, 8192)
    max_answer_tokens: int = setting(
        128, "Longest answer in tokens; a query for a longer answer is rejected. Slots for it are reserved in the "
        "budget.", 1, 4096)
    position_limit: int | str = setting(
        "auto", "Largest number of positions of frames, question and answer together: older moments are drawn together "
        "before it is reached, so that a stream may run for days. auto, or 0, keeps frames in the range that the model "
        "reads well: measured (`kvstream benchmark range`), else the length that its family was trained on. A larger "
        "value keeps true distances longer; beyond the range answers get worse.", 0, 1 << 24, choices=("auto",))

    def __post_init__(self) -> None:
        check_fields(self, "memory")
        require(bool(self.policy.strip()), "memory.policy", self.policy, "the name of a policy")
        require(
            self.keep_ratio < self.high_water, "memory.keep_ratio", self.keep_ratio,
            f"below memory.high_water = {self.high_water:g}, or a compaction would free nothing",
        )
        for name, share in self.camera_shares.items():
            require_finite(f"{name}.share", share, 0.0, 1.0)
        total = sum(self.camera_shares.values())
        require(total <= 1.0 + 1e-9, "shares of all cameras together", round(total, 6), "at most 1")


@dataclass(frozen=True)
class GateSettings:
    """The frame gate: skips frames that show nothing new since the newest kept frame."""

    mode: str = setting(
        "flow", "Frame gate: off passes every frame, flow uses the thresholds below as they are, adaptive raises them "
        "to meet gate.target_share or gate.target_rate. A skipped frame costs almost no time and no memory.",
        choices=("off", "flow", "adaptive"), change=Change.RUNNING)
    motion: float = setting(
        8.0, "Speed that counts as motion, in pixels of the original image per second. A larger value skips more "
        "frames and misses slower motion.", 0.01, 1e5, change=Change.RUNNING)
    residual: float = setting(
        3.0, "Brightness or colour change, in grey levels averaged over one block, that neither motion nor sensor "
        "noise explains. A larger value skips more frames and misses smaller or fainter changes.",
        0.01, 255.0, change=Change.RUNNING)
    block: int = setting(
        8, "Side of the blocks over which changes are averaged, in pixels of the downscaled image. A smaller value "
        "detects smaller objects and is more sensitive to noise.", 2, 64, change=Change.RUNNING)
    side: int = setting(
        160, "Longest side of the downscaled image on which frames are compared, in pixels. A larger value detects "
        "smaller objects and costs time.", 48, 1024, change=Change.RUNNING)
    max_silence: float = setting(
        5.0, "Longest time without a kept frame, in seconds: the next frame then passes whatever it shows.",
        0.01, 1e6, change=Change.RUNNING)
    window: float = setting(
        1.0, "Time over which a displacement is converted to a speed, in seconds at most, so that slow drift adds up "
        "to motion. A larger value detects slower motion later.", 0.01, 1e3, change=Change.RUNNING)
    max_gain: float = setting(
        2.0, "Largest ratio in brightness or contrast that is attributed to exposure control and ignored. A larger "
        "change, such as lights switched off, passes the gate.", 1.0, 100.0, change=Change.RUNNING)
    flow: str = setting(
        "dis_fast", "Optical flow method, from fast to exact. The default is exact enough for whole images; "
        "docs/thinning.md has measurements.",
        choices=("dis_ultrafast", "dis_fast", "dis_medium", "farneback"), change=Change.RUNNING)
    target_share: float = setting(
        0.5, "adaptive mode: largest share of the frames that passes. Not used if gate.target_rate is set.",
        0.001, 1.0, change=Change.RUNNING)
    target_rate: float = setting(
        0.0, "adaptive mode: largest number of frames per second that passes. 0 uses gate.target_share instead.",
        0.0, 1e4, change=Change.RUNNING)
    adapt_range: float = setting(
        64.0, "adaptive mode: gate.motion and gate.residual are raised by at most this factor and never lowered, so a "
        "target is an upper bound only. A larger value allows more frames to be skipped.",
        1.0, 100.0, change=Change.RUNNING)

    def __post_init__(self) -> None:
        check_fields(self, "gate")


@dataclass(frozen=True)
class SaliencySettings:
    """Which patches of a kept frame are left out of the language model's prefill."""

    mode: str = setting(
        "off", "Patches left out of the prefill to save slots: off keeps all; prune drops patches with neither edges "
        "nor colour variance; novel also drops patches that did not change since the newest kept frame and keeps all "
        "again after gate.max_silence. novel needs gate.mode other than off.",
        choices=("off", "prune", "novel"), change=Change.RUNNING)
    threshold: float = setting(
        3.0, "Saliency below which a patch may be dropped, in absolute grey levels. A larger value drops more patches.",
        0.0, 1e3, change=Change.RUNNING)
    guard: int = setting(
        1, "Margin around every salient patch that is also kept, in patches. A larger value keeps more context and "
        "saves less.", 0, 16, change=Change.RUNNING)
    max_pruned: float = setting(
        0.5, "Largest share of a frame's patches that may be dropped; the least salient are dropped first.",
        0.0, 1.0, change=Change.RUNNING)

    def __post_init__(self) -> None:
        check_fields(self, "saliency")


@dataclass(frozen=True)
class QuantizedSettings:
    """The quantized arena: most frame slots in 8 or 4 bits, the best and the newest ones in the native dtype."""

    mode: str = setting(
        "off", "Mixed precision of the K/V tensors. on stores most of the remembered tokens in 8 and 4 bits: the same "
        "budget holds more frames, each less exactly. off stores all in the native dtype.", choices=("off", "on"))
    int8: float = setting(0.25, "Share of the frame slots in 8 bits.", 0.0, 0.95)
    int4: float = setting(
        0.625, "Share of the frame slots in 4 bits. The slots of neither share stay in the native dtype; both shares "
        "together are above 0 and at most 0.95. A larger value holds more frames, each less exactly.", 0.0, 0.95)
    group: int = setting(
        64, "Largest number of channels that share one scale. A smaller group is more exact and takes more bytes. If "
        "it does not divide the head dimension, a smaller group is used.", 2, 1024)
    order: str = setting(
        "policy", "Which slots get the most bits: policy (those that memory.policy would keep longest) or recent (the "
        "newest).", choices=("policy", "recent"))

    def __post_init__(self) -> None:
        check_fields(self, "quantized")
        packed = round(self.int8 + self.int4, 9)
        require(0 < packed <= 0.95, "quantized.int8 + quantized.int4", packed, "above 0 and at most 0.95")


@dataclass(frozen=True)
class ArchiveSettings:
    """The archive: the second tier beside the arena; off while ``budget_mib`` is 0."""

    budget_mib: float = setting(
        0.0, "Hard cap in MiB of the archive, in memory and on disk together. The archive stores what the arena evicts "
        "and is searched for each question. 0 disables it.", 0.0, 1 << 24)
    path: str = setting(
        "memory", "Where the archive is stored: 'memory', or a folder for one preallocated file that survives a "
        "restart.")
    content: str = setting(
        "embeddings", "What is stored of a patch. embeddings: the output of the vision tower, which a question "
        "prefills afresh, so that moments are read as the model learned to read videos. kv: keys and values of all "
        "layers, which need no prefill but take more bytes, and depend on what the memory held when they were made.",
        choices=("embeddings", "kv"))
    precision: str = setting(
        "fp16", "Number format of what is archived. Fewer bits hold more frames, each less exactly. Index keys "
        "are always float16.", choices=("fp16", "int8", "int4"))
    keep_ratio: float = setting(
        0.5, "Share of the patches that is archived: those that differ most from the previous frames. 1 archives all "
        "patches and holds fewer frames.", 0.01, 1.0)
    frame_patches: int = setting(
        0, "Visual tokens of the largest frame that fits into the archive; larger frames are not archived. 0 takes the "
        "size of the first frame. Set it if cameras differ in size.", 0, 1 << 15)
    guard: int = setting(
        1, "Margin around a distinctive patch that is archived with it, in rows and columns of the patch grid. A "
        "larger value keeps more of an object and less of the rest.", 0, 8)
    compare_frames: int = setting(
        4, "Number of previous frames that a frame is compared with: a patch that appears in any of them is redundant. "
        "A larger value costs time.", 1, 64)
    index_keys: int = setting(
        4, "Index keys per frame: keys of its most distinctive patches, which the internal expert searches. More keys "
        "find smaller objects and cost time and bytes.", 1, 1024)
    mean_key: bool = setting(
        True, "Index the mean key of a frame's patches too. Needed for retrieval.patch_pooling mean.")
    thumbnail_bytes: int = setting(
        0, "Bytes reserved per frame for a JPEG thumbnail, taken from the archive's budget. 0 stores none.", 0, 1 << 20)
    age_weight: float = setting(
        0.5, "Eviction from a full archive: the time gaps between kept frames may grow with their age to this power. 0 "
        "covers all times equally; a larger value keeps more of the recent past.", 0.0, 4.0)
    novelty_weight: float = setting(
        1.0, "Eviction from a full archive: how strongly frames with high novelty are kept. 0 considers time only.",
        0.0, 8.0)
    queue_frames: int = setting(
        8, "Frames that may wait for the disk. Ingest never waits: a frame that finds the queue full is not archived.",
        1, 4096)

    def __post_init__(self) -> None:
        check_fields(self, "archive")
        require(bool(self.path.strip()), "archive.path", self.path, "'memory' or a folder")

    @property
    def enabled(self) -> bool:
        """Whether there is an archive at all."""
        return self.budget_mib > 0


@dataclass(frozen=True)
class RetrievalSettings:
    """How archived frames are ranked and added to a question's context; needs an archive."""

    top_k: int = setting(
        12, "Largest number of archived frames in a question's context. Slots for them are reserved in "
        "memory.budget_mib. 0 disables retrieval.", 0, 4096, change=Change.RUNNING)
    newest_frames: int = setting(
        4, "Newest frames that are always in the context, so that questions about the present stay exact.",
        0, 4096, change=Change.RUNNING)
    layers: tuple[int, ...] = setting(
        (), "Model layers whose keys the internal expert searches, such as '3 7'. Empty uses the layers that suit the "
        "model: one at a third of its depth, and the last. More layers cost time and archive bytes.")
    query: str = setting(
        "last", "Query of the internal expert: the question's last token, or the mean of its tokens (as published).",
        choices=("last", "mean"), change=Change.RUNNING)
    patch_pooling: str = setting(
        "max", "How patch scores combine to a frame's score. max finds small objects; mean averages them out.",
        choices=("max", "mean"), change=Change.RUNNING)
    head_pooling: str = setting(
        "mean", "How the scores of the attention heads combine.", choices=("mean", "max"), change=Change.RUNNING)
    internal_weight: float = setting(
        1.0, "Weight of the internal expert (the model's own attention) in the rank fusion. 0 disables it.",
        0.0, 1000.0, change=Change.RUNNING)
    external_weight: float = setting(
        1.0, "Weight of the external expert in the rank fusion. 0 disables it.", 0.0, 1000.0, change=Change.RUNNING)
    external: str = setting(
        "", "Image-text encoder of the external expert: empty for none, 'tiny' (part of this package), 'imagenet' "
        "(optional packages), or a CLIP or SigLIP hub id or folder, which suits a real robot best.")
    rrf_k: float = setting(
        60.0, "Constant k of reciprocal rank fusion: score = sum of weight / (k + rank). A smaller value gives more "
        "weight to the first ranks.", 0.0, 1e6, change=Change.RUNNING)
    rank_depth: int = setting(
        1000, "Deepest rank that counts in the fusion. It limits the work per question, not the archive.",
        1, 1 << 30, change=Change.RUNNING)
    moment_gap_seconds: float = setting(
        2.0, "Frames of one camera closer together than this time, in seconds, or next to each other in a slower "
        "stream, count as one moment.",
        0.0, 1e9, change=Change.RUNNING)
    moment_frames: int = setting(
        2, "Largest number of frames per moment where retrieval.temporal_diversity is never; one is taken otherwise. A "
        "smaller value leaves capacity for more moments.",
        1, 4096, change=Change.RUNNING)
    temporal_diversity: str = setting(
        "auto", "Which retrieved moments are chosen by novelty, so that they span the stream: half of them with auto, "
        "and all of them for questions of order (first, last, before, after); always all; never none.",
        choices=("auto", "always", "never"), change=Change.RUNNING)
    context: str = setting(
        "auto", "What the context holds: retrieved and newest frames, or all of the arena. auto takes the former once "
        "the archive holds many times as many frames as fit into the arena (and, for an archive of keys and values, "
        "once the stream is beyond the range that the model reads well).",
        choices=("auto", "newest", "arena"), change=Change.RUNNING)
    positions: str = setting(
        "consecutive", "Positions of retrieved frames: consecutive places them directly before the rest of the "
        "context, original where they were seen. A model reads positions far back less well.",
        choices=("consecutive", "original"), change=Change.RUNNING)
    capacity_tokens: int = setting(
        0, "Slots reserved for retrieved frames, taken from memory.budget_mib. 0 takes retrieval.top_k times the "
        "tokens of the first frame; with an archive of embeddings retrieval.newest_frames are added.", 0, 1 << 24)
    pending_pictures: int = setting(
        32, "Images that may wait for idle time to be embedded by the external expert; beyond that number the oldest "
        "is embedded at once, which delays the next frame. A larger value takes more memory.", 0, 4096)

    def __post_init__(self) -> None:
        check_fields(self, "retrieval")
        require(
            all(isinstance(layer, int) and layer >= 0 for layer in self.layers)
            and len(set(self.layers)) == len(self.layers),
            "retrieval.layers", self.layers, "distinct layer numbers from 0",
        )

    def slots(self, frame_tokens: int, archive: ArchiveSettings) -> int:
        """Slots of the arena to reserve for retrieved frames of this many tokens, and for the newest ones afresh."""
        if not archive.enabled:
            return 0
        return self.capacity_tokens or (self.top_k + self.frames_afresh(archive)) * frame_tokens

    def frames_afresh(self, archive: ArchiveSettings) -> int:
        """Newest frames that a question prefills afresh: those of an archive of embeddings."""
        return self.newest_frames if archive.content == "embeddings" else 0


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
    seed: int = setting(
        0, "Seed of everything random (untrained weights). Equal seeds give equal answers.", 0, 2**31 - 1)

    def __post_init__(self) -> None:
        check_fields(self, "")
