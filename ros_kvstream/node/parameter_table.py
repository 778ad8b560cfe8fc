"""Every parameter of the node in one table: name, type, default, range, when it may change, and its consequence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ros_kvstream.settings import ATTENTIONS, POLICIES, QUANTIZATIONS

Value = bool | int | float | str


class Change(Enum):
    """When a parameter may be changed."""

    START = "only when the node is started"
    CONFIGURE = "while the node is unconfigured; it takes effect at the next configure"
    RUNNING = "at any time, also while the node is active"


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter of the node."""

    name: str
    default: Value
    """Its type is the parameter's type; an integer is also accepted for a float."""
    description: str
    """What it does and what follows from setting it."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    change: Change = Change.CONFIGURE
    setting: str = ""
    """Where the value goes in StreamSettings ("memory.budget_mib"); empty for the node's own parameters."""

    @property
    def constraints(self) -> str:
        """The limits in words, as `ros2 param describe` shows them."""
        limits = f"One of: {', '.join(self.choices)}. " if self.choices else ""
        return f"{limits}May be changed {self.change.value}."


def _setting(name: str, default: Value, description: str, low: float | None = None, high: float | None = None, *,
             choices: tuple[str, ...] = (), change: Change = Change.CONFIGURE, setting: str = "") -> ParameterSpec:
    return ParameterSpec(name, default, description, low, high, choices, change, setting or name)


MODEL = (
    _setting("model", "tiny", "'tiny' (the model in this package), a local folder, or a hub id; a model of a family "
             "that is not supported is refused at configure.", setting="model.path"),
    _setting("device", "auto", "auto, cpu, cuda or cuda:N; auto takes the GPU where there is one.",
             setting="model.device"),
    _setting("dtype", "auto", "Number format of weights and memory; 16 bits halve the bytes per remembered token. "
             "auto: the checkpoint's own on a GPU, float32 on a CPU.",
             choices=("auto", "float32", "bfloat16", "float16"), setting="model.dtype"),
    _setting("max_frame_pixels", 0, "Larger frames are scaled down to this many pixels, which costs detail and saves "
             "time and memory; 0 keeps the model's own limit.", 0, 1 << 26, setting="model.max_frame_pixels"),
    _setting("attention", "auto", "Attention of the vision tower: auto takes the best that is there. The language "
             "model always attends over the memory's own planes.", choices=ATTENTIONS, setting="model.attention"),
    _setting("quantization", "none", "Weights of the language model in 8 or 4 bits, which takes less memory and is "
             "less exact; needs the package it is named after, and is refused at configure without it.",
             choices=QUANTIZATIONS, setting="model.quantization"),
    _setting("trust_remote_code", False, "Lets Python code that comes with a checkpoint run, with all rights of the "
             "node. Only for checkpoints whose code was read.", setting="model.trust_remote_code"),
    _setting("check_memory", True, "Refuse a model whose weights and memory.budget_mib do not fit the free memory, "
             "before it is loaded; false tries it all the same.", setting="model.check_memory"),
    _setting("seed", 0, "Seed of everything random (untrained weights); equal seeds give equal answers.", 0,
             2**31 - 1),
)

MEMORY = (
    _setting("memory.budget_mib", 64.0, "Hard cap in MiB of everything the memory allocates, the room for question "
             "and answer included. Less forgets sooner; too little is refused with the smallest that works.", 0.01,
             1 << 22, change=Change.RUNNING),
    _setting("memory.policy", "infinipot_v", "How the memory chooses what to forget when it is full. 'full' forgets "
             "nothing: frames are refused once the budget is used up.", choices=POLICIES, change=Change.RUNNING),
    _setting("memory.policy_options", "", "Settings of the policy as 'name=value name=value', such as 'alpha=0.5'; "
             "an unknown name is refused at configure.", change=Change.RUNNING),
    _setting("memory.keep_ratio", 0.9, "Share of the frame slots that survives when room is made, below "
             "memory.high_water. More keeps more and makes room more often, which costs time.", 0.05, 0.99,
             change=Change.RUNNING),
    _setting("memory.high_water", 1.0, "Share of the frame slots in use at which room is made; 1 waits until the "
             "next frame does not fit. Less makes room sooner and keeps free slots.", 0.1, 1.0, change=Change.RUNNING),
    _setting("memory.block_frames", 1, "Frames that are prefilled together: more is faster, and a frame waits for "
             "its block; a question flushes a half-filled one.", 1, 256),
    _setting("memory.frames_per_grid", 1, "Real frames in one temporal grid of the model. 2 halves a frame's cost and "
             "slots where the family's tower takes two moments at once (Qwen-VL), and mixes what moves between them. "
             "Frames pair by camera, at most 2 s apart: set memory.block_frames to the number of cameras.", 1, 2),
    _setting("memory.max_question_tokens", 256, "Longest question in tokens; longer ones are refused. Slots for it "
             "are taken from the budget.", 8, 8192),
    _setting("memory.max_answer_tokens", 128, "Longest answer in tokens; a query that asks for more is refused. "
             "Slots for it are taken from the budget.", 1, 4096),
    _setting("memory.position_limit", 0, "Positions are re-based before they reach this; 0 takes the model's own "
             "trained range.", 0, 1 << 24),
)

GATE = (
    _setting("gate.mode", "flow", "Which frames are too much like the newest kept one to be computed: off (none), "
             "flow (fixed thresholds), adaptive (thresholds follow a target).", choices=("off", "flow", "adaptive"),
             change=Change.RUNNING),
    _setting("gate.motion", 8.0, "Speed that counts as motion, in pixels of the original picture per second. Higher "
             "drops more frames.", 0.01, 1e5, change=Change.RUNNING),
    _setting("gate.residual", 3.0, "Change that motion does not explain, in grey levels over one block. Higher drops "
             "more frames and misses smaller things.", 0.01, 255.0, change=Change.RUNNING),
    _setting("gate.block", 8, "Side of the block over which a change is averaged, in pixels of the small picture; "
             "less finds smaller things.", 2, 64, change=Change.RUNNING),
    _setting("gate.side", 160, "Longest side of the small picture on which frames are compared, in pixels; more "
             "finds smaller things and costs time.", 48, 1024, change=Change.RUNNING),
    _setting("gate.max_silence", 5.0, "Seconds after the newest kept frame at which a frame passes whatever it shows.",
             0.01, 1e6, change=Change.RUNNING),
    _setting("gate.window", 1.0, "A displacement counts as made within at most this many seconds, so that slow drift "
             "adds up to motion.", 0.01, 1e3, change=Change.RUNNING),
    _setting("gate.max_gain", 2.0, "Largest brightness or contrast ratio that is taken for exposure control; a "
             "larger one (lights off) is news.", 1.0, 100.0, change=Change.RUNNING),
    _setting("gate.flow", "dis_fast", "Optical flow method.",
             choices=("dis_ultrafast", "dis_fast", "dis_medium", "farneback"), change=Change.RUNNING),
    _setting("gate.target_share", 0.5, "adaptive: largest share of the frames that shall pass; not used where "
             "gate.target_rate is set.", 0.001, 1.0, change=Change.RUNNING),
    _setting("gate.target_rate", 0.0, "adaptive: frames per second that shall pass at most; 0 takes "
             "gate.target_share.", 0.0, 1e4, change=Change.RUNNING),
    _setting("gate.adapt_range", 64.0, "adaptive: gate.motion and gate.residual rise by at most this factor and "
             "never fall.", 1.0, 100.0, change=Change.RUNNING),
)

SALIENCY = (
    _setting("saliency.mode", "off", "off: every patch of a frame is kept; prune: patches without edges and without "
             "colour variance are left out; novel: also patches that did not change, for gate.max_silence.",
             choices=("off", "prune", "novel"), change=Change.RUNNING),
    _setting("saliency.threshold", 3.0, "Saliency below which a patch may be left out, in grey levels. Higher leaves "
             "out more.", 0.0, 1e3, change=Change.RUNNING),
    _setting("saliency.guard", 1, "Patches kept around every salient one, in patches.", 0, 16, change=Change.RUNNING),
    _setting("saliency.max_pruned", 0.5, "Largest share of a frame's patches that may be left out; the least salient "
             "go first.", 0.0, 1.0, change=Change.RUNNING),
)

LADDER = (
    _setting("quantized.mode", "off", "on: most of what is remembered is held in 8 and 4 bits, so that the same budget "
             "holds more frames, each less exactly; off: all in the model's own type.", choices=("off", "on")),
    _setting("quantized.int8", 0.25, "Share of the frame slots in 8 bits.", 0.0, 0.95),
    _setting("quantized.int4", 0.625, "Share of the frame slots in 4 bits; what is left of both stays in the model's "
             "own type. Together at most 0.95.", 0.0, 0.95),
    _setting("quantized.group", 64, "Channels that share a scale, at most; fewer are more exact and take more bytes.", 2,
             1024),
    _setting("quantized.order", "policy", "Which slots get the most bits: policy (those that the policy would keep "
             "longest), recent (the newest) or saliency (those of patches with edges and colour).",
             choices=("policy", "recent", "saliency")),
)

ARCHIVE = (
    _setting("archive.budget_mib", 0.0, "Hard cap in MiB of the second memory, which keeps what leaves the first and "
             "is searched for each question; 0 switches it off.", 0.0, 1 << 24),
    _setting("archive.path", "memory", "'memory', or a folder that holds one preallocated file, which survives a "
             "restart."),
    _setting("archive.precision", "fp16", "How archived keys and values are stored; fewer bits hold more frames, "
             "each less exactly.", choices=("fp16", "int8", "int4")),
    _setting("archive.keep_ratio", 0.5, "Share of a frame's patches that is archived, the least similar to the "
             "frames before; 1 keeps all and holds fewer frames.", 0.01, 1.0),
    _setting("archive.guard", 1, "Patches around a telling patch that are kept with it, in rows and columns.", 0, 8),
    _setting("archive.compare_frames", 4, "How many frames before are compared: a patch that any of them held is "
             "redundant. More costs time.", 1, 64),
    _setting("archive.index_keys", 4, "Patch keys of a frame that are searched, beside its mean key; more find "
             "smaller things and cost time.", 1, 1024),
    _setting("archive.mean_key", True, "Whether the mean key of a frame's patches is searched too (needed for "
             "retrieval.patch_pooling mean)."),
    _setting("archive.frame_patches", 0, "Visual tokens of the largest frame that is archived; larger ones are not. "
             "0 takes the first frame's.", 0, 1 << 15),
    _setting("archive.thumbnail_bytes", 0, "Room for a frame's JPEG thumbnail, bytes; 0 keeps none.", 0, 1 << 20),
    _setting("archive.age_weight", 0.5, "When full: the gap that forgetting may leave grows with age to this power; "
             "0 covers all times alike.", 0.0, 4.0),
    _setting("archive.novelty_weight", 1.0, "When full: how strongly frames that differ from those before are "
             "protected; 0 looks at time only.", 0.0, 8.0),
    _setting("archive.queue_frames", 8, "Frames that may wait for the disk; one that finds the queue full is not "
             "archived.", 1, 4096),
)

RETRIEVAL = (
    _setting("retrieval.top_k", 8, "Archived frames brought back for a question, at most; slots for them are taken "
             "from memory.budget_mib. 0 switches retrieval off.", 0, 4096, change=Change.RUNNING),
    _setting("retrieval.newest_frames", 4, "Newest frames that are always in the context, so that questions about "
             "now are not hurt.", 0, 4096, change=Change.RUNNING),
    _setting("retrieval.layers", "", "Model layers whose keys are searched, as '3 7'; empty takes the model's own "
             "default."),
    _setting("retrieval.query", "last", "What of the question is searched with: its last token, or the mean of all.",
             choices=("last", "mean"), change=Change.RUNNING),
    _setting("retrieval.patch_pooling", "max", "How a frame's patches make its score; a mean buries small objects.",
             choices=("max", "mean"), change=Change.RUNNING),
    _setting("retrieval.head_pooling", "mean", "How the attention heads make a score.", choices=("mean", "max"),
             change=Change.RUNNING),
    _setting("retrieval.internal_weight", 1.0, "Weight of the model's own attention in the ranking; 0 switches it "
             "off.", 0.0, 1000.0, change=Change.RUNNING),
    _setting("retrieval.external_weight", 1.0, "Weight of the external encoder in the ranking; 0 switches it off.",
             0.0, 1000.0, change=Change.RUNNING),
    _setting("retrieval.external", "", "External encoder: empty for none, 'tiny', 'imagenet' (optional downloads), "
             "or a CLIP / SigLIP id or folder."),
    _setting("retrieval.rrf_k", 60.0, "k of reciprocal rank fusion; lower trusts the first ranks more.", 0.0, 1e6,
             change=Change.RUNNING),
    _setting("retrieval.rank_depth", 1000, "Ranks deeper than this count as not found; a bound on the work.", 1,
             1 << 30, change=Change.RUNNING),
    _setting("retrieval.moment_gap_seconds", 1.0, "Ranked frames of one camera closer than this in time are one "
             "moment.", 0.0, 1e9, change=Change.RUNNING),
    _setting("retrieval.moment_frames", 2, "Frames of one moment brought back, at most.", 1, 4096,
             change=Change.RUNNING),
    _setting("retrieval.temporal_diversity", "auto", "For questions of order, moments spread over time are taken: auto, always "
             "or never.", choices=("auto", "always", "never"), change=Change.RUNNING),
    _setting("retrieval.context", "auto", "What is seen beside the frames brought back: the newest frames, all that "
             "the arena holds, or auto: the newest once the stream spans a good part of the trained positions.",
             choices=("auto", "newest", "arena"), change=Change.RUNNING),
    _setting("retrieval.capacity_tokens", 0, "Slots planned for frames brought back, taken from memory.budget_mib; 0 "
             "takes retrieval.top_k times the first frame's tokens.", 0, 1 << 24),
    _setting("retrieval.pending_pictures", 32, "Pictures that may wait for an idle moment to be embedded by the "
             "external encoder; more find more and take memory.", 0, 4096),
    _setting("retrieval.positions", "consecutive", "Positions of what is brought back: renumbered without gaps, or "
             "as the frames were seen.", choices=("consecutive", "original"), change=Change.RUNNING),
)

INGEST = (
    ParameterSpec("ingest.queue_frames", 2, "Frames per camera that wait for the memory at most; when one more comes "
                  "the oldest is dropped and counted (cause 'queue'). More smooths bursts and makes 'now' older.", 1,
                  64),
    ParameterSpec("ingest.depth", "refuse", "Depth images (16UC1, 32FC1): refuse drops them as no pictures; grey "
                  "renders near as bright between ingest.depth_near and ingest.depth_far.",
                  choices=("refuse", "grey")),
    ParameterSpec("ingest.depth_near", 0.3, "Metres at and below which a depth pixel is white.", 0.0, 1e4),
    ParameterSpec("ingest.depth_far", 10.0, "Metres at and beyond which a depth pixel is darkest; must be more than "
                  "ingest.depth_near.", 0.0, 1e4),
)

FILES = (
    ParameterSpec("memory.directory", "", "Folder on the node's machine that ~/save and ~/load use; empty switches "
                  "both off. Any peer on the network can call them, by plain names inside this folder only."),
    ParameterSpec("memory.restore", "", "Name of a saved memory in memory.directory that configure loads; the node "
                  "starts empty when there is no such file, and configure fails when it does not fit. Empty starts "
                  "empty."),
)

QUERY = (
    ParameterSpec("query.max_waiting", 3, "Questions that wait or are being answered at most; a further one is told "
                  "'busy' at once.", 1, 64, change=Change.RUNNING),
    ParameterSpec("query.timeout_s", 60.0, "Longest time for an answer in seconds, waiting included, for queries "
                  "that name none; then generation stops at the next token and the query fails.", 0.01, 86400.0,
                  change=Change.RUNNING),
)

FAULTS = (
    ParameterSpec("faults.action", "continue", "After an error inside the memory: continue drops the frame or fails "
                  "the question and goes on; deactivate leaves the active state so that a supervisor can act.",
                  choices=("continue", "deactivate"), change=Change.RUNNING),
    ParameterSpec("faults.limit", 5, "Errors in a row after which 'deactivate' acts.", 1, 1000, change=Change.RUNNING),
)

DIAGNOSTICS = (
    ParameterSpec("diagnostics.period_s", 1.0, "Seconds between two reports on ~/stats and /diagnostics; by the "
                  "machine's own clock, also when /clock stands still.", 0.05, 60.0, change=Change.RUNNING),
    ParameterSpec("diagnostics.no_image_s", 5.0, "Seconds without an image after which a camera is WARN, and the "
                  "topic it waits on is named; ten times as long without one makes it STALE.", 0.1, 1e6,
                  change=Change.RUNNING),
    ParameterSpec("diagnostics.image_age_s", 1.0, "Seconds that the newest frame may lag behind its header stamp, "
                  "before WARN.", 0.001, 1e6, change=Change.RUNNING),
    ParameterSpec("diagnostics.drop_share", 0.5, "Share of the frames of the last seconds that may be dropped, for "
                  "any cause but a gate, before WARN.", 0.0, 1.0, change=Change.RUNNING),
)

NODE = (
    ParameterSpec("autostart", True, "Configure and activate by itself at start; a failure leaves the node "
                  "unconfigured with the reason in diagnostics.", change=Change.START),
)

PARAMETERS: tuple[ParameterSpec, ...] = (
    *MODEL, *MEMORY, *GATE, *SALIENCY, *LADDER, *ARCHIVE, *RETRIEVAL, *FILES, *INGEST, *QUERY, *FAULTS,
    *DIAGNOSTICS, *NODE,
)
"""All parameters but the cameras' own, which depend on the list ``cameras`` (see parameters.py)."""

BY_NAME: dict[str, ParameterSpec] = {spec.name: spec for spec in PARAMETERS}

MAX_CAMERAS = 8
TRANSPORTS = ("raw", "compressed")
CAMERAS_DESCRIPTION = (
    f"Names of the cameras, 1 to {MAX_CAMERAS}; each has the parameters <camera>.topic, <camera>.transport and "
    "<camera>.share. "
    "Questions and evidence name cameras by these."
)
TOPIC_DESCRIPTION = (
    "Topic with the camera's images: the base name, to which '/compressed' is added for that transport. Default: "
    "'image' for a single camera (remap it), '<camera>/image' for several."
)
SHARE_DESCRIPTION = (
    "Share of the memory that other cameras cannot take from this one; what it does not fill is lent. 0: an equal part "
    "of what the others leave. All together at most 1. From 0 to 1."
)
TRANSPORT_DESCRIPTION = "raw: sensor_msgs/Image; compressed: sensor_msgs/CompressedImage on <topic>/compressed."
