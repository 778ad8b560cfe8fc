# SPDX-License-Identifier: Apache-2.0
"""Resolve device, dtype and attention of a model to what the machine supports."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from ros_kvstream.errors import ModelError
from ros_kvstream.models.transformers_compat import supports_flash_attention, supports_sdpa


def resolve_device(device: str) -> torch.device:
    """Resolve auto | cpu | cuda | cuda:N to a device; raises ModelError where it is not available."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not device.startswith("cuda"):
        return torch.device(device)
    if not torch.cuda.is_available():
        reason = (
            "no CUDA device is visible. Check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a container, its GPU option."
        )
        if torch.version.cuda is None:
            reason = (
                f"the installed torch {torch.__version__} is built without CUDA. Install a CUDA build of torch, "
                "with requirements.txt of this package and without an index of CPU builds."
            )
        raise ModelError(f"device = {device!r}: {reason} Or use device = auto or cpu.")
    count, found = torch.cuda.device_count(), torch.device(device)
    if found.index is not None and found.index >= count:
        there = ", ".join(f"cuda:{index}" for index in range(count))
        raise ModelError(f"device = {device!r}: this machine has {count} CUDA device(s). Use one of {there}, or auto.")
    return found


def resolve_dtype(dtype: str, device: torch.device, config: dict[str, Any]) -> torch.dtype:
    """Resolve auto | float32 | bfloat16 | float16 to a dtype.

    auto: float32 on a CPU, else the checkpoint's own, with float16 for bfloat16 on GPUs before Ampere.
    """
    if dtype != "auto":
        return _named(dtype)
    if device.type == "cpu":
        return torch.float32
    own = _named(checkpoint_dtype(config))
    if own == torch.bfloat16 and device.type == "cuda" and not _ampere_or_newer(device):
        return torch.float16  # bfloat16 is emulated there, and slow
    return own


def _ampere_or_newer(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 8


def checkpoint_dtype(config: dict[str, Any]) -> str:
    """Name of the dtype of a checkpoint's weights by its config.json; float32 where none is given."""
    for part in (config, config.get("text_config") or {}):
        name = part.get("dtype") or part.get("torch_dtype")
        if isinstance(name, str):
            return name.removeprefix("torch.")
    return "float32"


def _named(dtype: str) -> torch.dtype:
    named = getattr(torch, dtype, None)
    if not isinstance(named, torch.dtype) or not named.is_floating_point:
        raise ModelError(f"the checkpoint's dtype {dtype!r} is unknown: set dtype = float32, bfloat16 or float16")
    return named


def resolve_attention(attention: str, device: torch.device, dtype: torch.dtype, architecture: Any) -> str:
    """Resolve auto | sdpa | eager | flash_attention_2 to transformers' name, for the vision tower.

    The language model always uses arena_attention (attention.py). auto: flash_attention_2 with its package, a GPU
    and a 16-bit dtype; else sdpa; else eager, where the family supports nothing better.

    :raises ModelError: when the attention is not available.
    """
    flash_installed = importlib.util.find_spec("flash_attn") is not None
    fits_flash = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16) and _ampere_or_newer(device)
    if attention == "auto":
        if flash_installed and fits_flash and supports_flash_attention(architecture):
            return "flash_attention_2"
        return "sdpa" if supports_sdpa(architecture) else "eager"
    if attention == "flash_attention_2":
        if not flash_installed:
            raise ModelError(
                "attention = 'flash_attention_2': the package flash-attn is not installed. "
                "pip install flash-attn --no-build-isolation, or use attention = auto."
            )
        if not fits_flash:
            kind = str(dtype).removeprefix("torch.")
            raise ModelError(
                f"attention = 'flash_attention_2': it needs an Ampere or newer GPU and a 16-bit dtype, not {kind} on "
                f"{device}. Set dtype = bfloat16 and device = cuda, or use attention = auto."
            )
    return attention
