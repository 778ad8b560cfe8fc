# SPDX-License-Identifier: Apache-2.0
"""Check from a model's config, before anything is loaded, that its weights fit the free memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from ros_kvstream.errors import ModelError
from ros_kvstream.models.quantization import KEPT_EXACT, QUANTIZATIONS, Quantization

GIB = 1 << 30
CGROUP_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Files with a container's limit and usage, of cgroups version 2 and 1."""


def skeleton(architecture: Any, config: Any) -> Any:
    """Build the network without weights, on torch's meta device."""
    with torch.device("meta"):
        network = architecture(config)
    network.tie_weights()  # so that tied weights count once
    return network


def count_parameters(network: nn.Module) -> int:
    """Number of weights of a network, tied ones counted once."""
    return sum(parameter.numel() for parameter in network.parameters())


def weight_bytes(network: nn.Module, dtype: torch.dtype, quantization: Quantization | None = None) -> int:
    """Bytes of the weights on the device."""
    total = float(count_parameters(network) * dtype.itemsize)
    if quantization is not None:
        for name, module in network.named_modules():
            if isinstance(module, nn.Linear) and not name.startswith(KEPT_EXACT):
                total -= module.weight.numel() * (dtype.itemsize - quantization.weight_bytes)
    return int(total)


def free_bytes(device: torch.device) -> int:
    """Free bytes of a device: of a GPU its own memory, else of the machine or the container."""
    if device.type == "cuda" and not getattr(torch.cuda.get_device_properties(device), "is_integrated", False):
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    for limit, used in CGROUP_LIMITS:
        try:
            free = min(free, int(limit.read_text()) - int(used.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return max(0, free)


def check_memory(
    name: str, network: nn.Module, dtype: torch.dtype, device: torch.device, *, quantization: str, beside: int
) -> None:
    """Raise ModelError with sizes and remedies unless the weights and ``beside`` bytes fit the free memory."""
    chosen = QUANTIZATIONS.get(quantization)
    weights, free = weight_bytes(network, dtype, chosen), free_bytes(device)
    if weights + beside <= free:
        return
    kind = quantization if chosen else str(dtype).removeprefix("torch.")
    raise ModelError(
        f"model = {name!r}: {count_parameters(network):,} parameters in {kind} take {weights / GIB:.2f} GiB, and "
        f"{beside / GIB:.2f} GiB are for the memory: more than the {free / GIB:.2f} GiB that are free on {device}. "
        f"{_remedies(network, dtype, free - beside)}, or set check_memory = false to skip this check."
    )


def _remedies(network: nn.Module, dtype: torch.dtype, capacity: int) -> str:
    """List the settings with which the weights fit ``capacity`` bytes."""
    halved, fitting = torch.bfloat16, []
    if dtype.itemsize > halved.itemsize and weight_bytes(network, halved) <= capacity:
        fitting.append("dtype = bfloat16")
    for name, quantization in QUANTIZATIONS.items():
        if weight_bytes(network, halved, quantization) <= capacity:
            fitting.append(f"quantization = {name} with dtype = bfloat16")
    if not fitting:
        return "Use a smaller model, lower memory.budget_mib or free memory"
    return f"These fit: {', '.join(fitting)}. Or use a smaller model or lower memory.budget_mib"
