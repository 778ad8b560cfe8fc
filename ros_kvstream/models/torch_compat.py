# SPDX-License-Identifier: Apache-2.0
"""Operators of torch that are not public. No other file of this package uses one.

Tried with torch 2.13, on processors with and without AVX-512. Each user checks the result of a known case before it
relies on an operator (``flash_on_cpu`` here, ``packing_works`` in packed_weights.py), and works without it otherwise.

- ``aten._scaled_dot_product_flash_attention_for_cpu``: the only attention on the CPU that returns log-sum-exps, without
  which attention over the memory and over the chunk cannot be merged.
- ``mkldnn._reorder_linear_weight``, ``mkldnn._linear_pointwise`` and its overload ``binary``: matrix products over
  weights stored in the layout of the kernels. torch's own compiler uses them; nothing public keeps that layout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


@cache
def flash_on_cpu() -> Callable[..., tuple[Tensor, ...]] | None:
    """Return the CPU's attention kernel, whose results are output and log-sum-exps; None where it does not work."""
    try:
        kernel: Callable[..., tuple[Tensor, ...]] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        query, key, value = torch.linspace(-1.0, 1.0, 3 * 2 * 3 * 8).view(3, 1, 2, 3, 8)
        output, log_sums = kernel(query, key, value, is_causal=True, scale=0.5)[:2]
        scores = (0.5 * query @ key.mT).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -torch.inf)
        works = torch.allclose(log_sums, scores.logsumexp(-1), atol=1e-5)
        return kernel if works and torch.allclose(output, scores.softmax(-1) @ value, atol=1e-5) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


def packed_weight(weight: Tensor, rows: int) -> Tensor:
    """Copy a Linear's weight into the layout of the kernels, chosen for inputs of this many rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def packed_linear(
    rows: Tensor, packed: Tensor, bias: Tensor | None, activation: str = "none", factor: Tensor | None = None
) -> Tensor:
    """Return activation(rows @ weight.T + bias), or the product with ``factor``, rounded once; none | swish."""
    if factor is not None:
        return torch.ops.mkldnn._linear_pointwise.binary(rows, factor, packed, bias, "mul")
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, activation, [], "")
