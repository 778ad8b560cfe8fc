"""Settings as frozen dataclasses that refuse bad values when made. No torch, no ROS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ros_kvstream.errors import SettingsError

POLICIES = ("infinipot_v", "tar", "van", "aks", "uniform", "sliding_window", "recent", "full")
"""Names of the selection policies (parameter ``memory.policy``)."""


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


@dataclass(frozen=True)
class MemorySettings:
    """The arena: its byte cap, its policy and when it makes room."""

    budget_mib: float = 64.0
    """Hard cap in MiB of everything the memory allocates."""
    policy: str = "infinipot_v"
    """Name of the selection policy, one of POLICIES."""
    policy_options: Mapping[str, object] = field(default_factory=dict)
    """Settings of the policy by name (alpha, recent_share, ...); the policy refuses unknown ones."""
    keep_ratio: float = 0.75
    """Share of the frame slots that a compaction keeps (published: 32 grids cut to 24)."""
    block_frames: int = 1
    """Frames that are prefilled together; a question flushes a half-filled block."""
    max_question_tokens: int = 256
    """Longest question, in tokens; slots for it are reserved."""
    max_answer_tokens: int = 128
    """Longest answer, in tokens; slots for it are reserved."""

    def __post_init__(self) -> None:
        require_finite("memory.budget_mib", self.budget_mib, 0.01, 1 << 22)
        require(self.policy in POLICIES, "memory.policy", self.policy, "one of " + ", ".join(POLICIES))
        require_finite("memory.keep_ratio", self.keep_ratio, 0.05, 0.99)
        require_finite("memory.block_frames", self.block_frames, 1, 256)
        require_finite("memory.max_question_tokens", self.max_question_tokens, 8, 8192)
        require_finite("memory.max_answer_tokens", self.max_answer_tokens, 1, 4096)


@dataclass(frozen=True)
class StreamSettings:
    """Everything that a VideoMemory is made from."""

    model: ModelSettings = field(default_factory=ModelSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    seed: int = 0
    """Seed of everything random (untrained weights); equal seeds give equal answers."""
