"""Where and how a model computes: device, number format and attention, each from what is there."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from ros_kvstream.errors import ModelError


def resolve_device(device: str) -> torch.device:
    """auto | cpu | cuda | cuda:N to a device; raises ModelError where it is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not device.startswith("cuda"):
        return torch.device(device)
    if not torch.cuda.is_available():
        raise ModelError(f"device = {device!r}: {_why_no_cuda()} Or use device = auto or cpu.")
    count, found = torch.cuda.device_count(), torch.device(device)
    if found.index is not None and found.index >= count:
        there = ", ".join(f"cuda:{index}" for index in range(count))
        raise ModelError(f"device = {device!r}: this machine has {count} CUDA device(s). Use one of {there}, or auto.")
    return found


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return (
            f"the installed torch {torch.__version__} is built without CUDA. Install a CUDA build of torch, "
            "with requirements.txt of this package and without an index of CPU builds."
        )
    return (
        "no CUDA device is visible. Look at what nvidia-smi prints, at CUDA_VISIBLE_DEVICES, and in a container at "
        "its option for GPUs."
    )


def resolve_dtype(dtype: str, device: torch.device, config: dict[str, Any]) -> torch.dtype:
    """auto | float32 | bfloat16 | float16 to a type.

    auto takes float32 on a CPU, else the checkpoint's own; a GPU without bfloat16 gets float16 instead.
    """
    if dtype != "auto":
        return _named(dtype)
    if device.type == "cpu":
        return torch.float32
    own = _named(checkpoint_dtype(config))
    if own == torch.bfloat16 and device.type == "cuda" and not _ampere_or_newer(device):
        return torch.float16  # emulated there, and slow
    return own


def _ampere_or_newer(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 8


def checkpoint_dtype(config: dict[str, Any]) -> str:
    """Name of the type that a checkpoint's weights are stored in, by its config.json; float32 where it says nothing."""
    for part in (config, config.get("text_config") or {}):
        name = part.get("dtype") or part.get("torch_dtype")
        if isinstance(name, str):
            return name.removeprefix("torch.")
    return "float32"


def _named(dtype: str) -> torch.dtype:
    named = getattr(torch, dtype, None)
    if not isinstance(named, torch.dtype) or not named.is_floating_point:
        raise ModelError(f"the checkpoint's type {dtype!r} is not known: set dtype = float32, bfloat16 or float16")
    return named


def resolve_attention(attention: str, device: torch.device, dtype: torch.dtype, architecture: Any) -> str:
    """auto | sdpa | eager | flash_attention_2 to transformers' name, for all but the language model.

    The language model always attends over the arena's own planes (attention.py); this is for the vision tower. auto
    takes flash attention where its package, a GPU and a 16-bit type are there, else torch's own, which chooses its
    kernel itself, else plain matrix products where the family has nothing better.

    :raises ModelError: when what is asked for is not there.
    """
    flash_installed = importlib.util.find_spec("flash_attn") is not None
    fits_flash = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and _ampere_or_newer(device)
    if attention == "auto":
        if flash_installed and fits_flash and getattr(architecture, "_supports_flash_attn", False):
            return "flash_attention_2"
        return "sdpa" if getattr(architecture, "_supports_sdpa", True) else "eager"
    if attention == "flash_attention_2":
        if not flash_installed:
            raise ModelError(
                "attention = 'flash_attention_2': the package flash-attn is not installed. "
                "pip install flash-attn --no-build-isolation, or use attention = auto."
            )
        if not fits_flash:
            kind = str(dtype).removeprefix("torch.")
            raise ModelError(
                f"attention = 'flash_attention_2': it needs a GPU from Ampere on and a 16-bit type, not {kind} on "
                f"{device}. Set dtype = bfloat16 and device = cuda, or use attention = auto."
            )
    return attention
