# SPDX-License-Identifier: Apache-2.0
"""Weights stored in the layout of the CPU's matrix kernels; otherwise every product converts them again.

The network stays as it is where the operators (torch_compat.py) are missing or give wrong results. Results are equal
within the rounding of the dtype.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, silu

from ros_kvstream.models.torch_compat import packed_linear, packed_weight

LEAST_WEIGHTS = 1 << 20
"""Weights of the smallest matrix that is packed; for smaller ones the call costs more than it saves."""
ROWS = 144
"""Rows for which the layout is chosen; it works for any number."""
LEAST_ROWS = 4
"""Rows to which fewer are padded, such as a decode step's single row: the kernels are slower with fewer."""


SAMPLES = 1024
"""Weights of each tensor that a checksum covers."""


def sample(weights: Tensor) -> Tensor:
    """At most SAMPLES weights, evenly spread over rows and columns; a sample's own sample is itself."""
    if hasattr(weights, "__tensor_flatten__"):  # torchao's: its scales are inside
        weights = weights.dequantize()
    flat = weights.detach().reshape(-1)
    return flat[:: -(-len(flat) // SAMPLES) | 1]


class PackedLinear(nn.Module):
    """A Linear with its weights in the layout of the kernels only, and a sample of them for the checksum."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.bias = source.bias
        self.packed = packed_weight(source.weight.detach(), ROWS)
        self.register_buffer("sample", sample(source.weight).clone())

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        rows = hidden.reshape(-1, self.in_features)
        return self.product(padded(rows))[: len(rows)].view(*hidden.shape[:-1], self.out_features)

    def product(self, rows: Tensor, activation: str = "none", factor: Tensor | None = None) -> Tensor:
        """Map [rows, in_features] to [rows, out_features], with an activation or a factor (packed_linear)."""
        return packed_linear(rows, self.packed, self.bias, activation, factor)

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedLinear:
        return self  # weights are never changed


class PackedGatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x)) with activation and product inside the matrix kernels."""

    def __init__(self, source: Any) -> None:
        """:param source: a gated MLP of the library with packed projections."""
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = source.gate_proj, source.up_proj, source.down_proj

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., hidden] to [..., hidden]."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        wide = padded(rows)
        mixed = self.up_proj.product(wide, factor=self.gate_proj.product(wide, "swish"))
        return self.down_proj.product(mixed)[: len(rows)].view(hidden.shape)


def padded(rows: Tensor) -> Tensor:
    """Pad [rows, width] with zeros to LEAST_ROWS rows."""
    return pad(rows, (0, 0, 0, LEAST_ROWS - len(rows))) if len(rows) < LEAST_ROWS else rows


@lru_cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether the operators exist for a dtype and give the results of torch's public ones."""
    generator = torch.Generator().manual_seed(0)
    gate, down = nn.Linear(48, 80).to(dtype), nn.Linear(80, 48, bias=False).to(dtype)
    hidden = torch.randn(5, 48, generator=generator).to(dtype)
    try:
        with torch.inference_mode():
            packed = PackedLinear(gate)
            ours = PackedLinear(down)(packed.product(hidden, factor=packed.product(hidden, "swish")))
            once = linear(hidden.float(), gate.weight.float(), gate.bias.float())
            expected = linear(silu(once) * once, down.weight.float())
    except (RuntimeError, AttributeError):  # missing in this torch, or not supported by this processor
        return False
    return bool(torch.allclose(ours.float(), expected, atol=0.02 if dtype == torch.bfloat16 else 1e-5))


def pack_weights(network: nn.Module, least: int = LEAST_WEIGHTS) -> int:
    """Replace the large Linears of a network on the CPU, and gated MLPs made of them; return the number of Linears.

    Weights tied to an embedding stay, since the embedding reads them. Replaced weights are freed one by one.
    """
    dtype, device = getattr(network, "dtype", None), next(network.parameters()).device
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16) or not packing_works(dtype):
        return 0
    embeddings = {id(module.weight) for module in network.modules() if isinstance(module, nn.Embedding)}
    count = 0
    parents = [module for module in network.modules() if not isinstance(module, nn.Linear)]
    for module in parents:  # holds no reference to a Linear, so that its weights are freed before the next
        for name in [name for name, _ in module.named_children()]:
            child = module.get_submodule(name)
            if type(child) is nn.Linear and child.weight.numel() >= least and id(child.weight) not in embeddings:
                setattr(module, name, PackedLinear(child))
                count += 1
    for module in parents:
        for name, child in module.named_children():
            if _is_gated_mlp(child):
                setattr(module, name, PackedGatedMlp(child))
    return count


def _is_gated_mlp(module: Any) -> bool:
    """Whether a module is down(silu(gate(x)) * up(x)) of packed projections."""
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if isinstance(module, PackedGatedMlp) or not all(isinstance(part, PackedLinear) for part in parts):
        return False
    probe, activation = torch.linspace(-4, 4, 9), getattr(module, "act_fn", None)
    return callable(activation) and torch.allclose(activation(probe), silu(probe))
