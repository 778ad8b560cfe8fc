# SPDX-License-Identifier: Apache-2.0
"""Packed 8-bit and 4-bit rows: what comes back, and how many bytes it takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.quantized.packing import (
    BLOCK_ROWS,
    Packed,
    dequantize_into,
    packed_bytes,
    quantize,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def rows(seed: int, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Tensor:
    """Seeded normal values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale + offset


def decoded(packed: Packed, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values that come back, in a tensor of their own."""
    return dequantize_into(packed, torch.empty((*packed.codes.shape[:-1], packed.head_dim), dtype=dtype))


def error_bound(x: Tensor, bits: int, group: int) -> Tensor:
    """Largest error per value that the documentation promises, same shape as x."""
    grouped = x.float().unflatten(-1, (-1, group))
    spread = grouped.amax(-1) - grouped.amin(-1)
    largest = grouped.abs().amax(-1)
    bound = spread / (2 * (2**bits - 1)) * 1.001 + 2.0**-10 * largest + 1e-5
    return bound[..., None].expand_as(grouped).flatten(-2)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([8, 4]), groups=st.integers(1, 4), group=st.sampled_from([2, 8, 16, 32]),
    heads=st.integers(1, 3), slots=st.integers(0, 9), seed=st.integers(0, 999),
    scale=st.sampled_from([1e-8, 1e-4, 1.0, 30.0, 2e4]), offset=st.sampled_from([0.0, -3.0, 500.0]),
    dtype=st.sampled_from(DTYPES),
)  # fmt: skip
def test_values_come_back_within_the_promised_error(
    bits: int, groups: int, group: int, heads: int, slots: int, seed: int, scale: float, offset: float,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    head_dim = groups * group
    x = rows(seed, heads, slots, head_dim, scale=scale, offset=offset).clamp(-65504, 65504).to(dtype)
    packed = quantize(x, bits, group)
    nbytes = sum(tensor.nbytes for tensor in packed.tensors().values())
    assert nbytes == heads * slots * packed_bytes(head_dim, bits, group)
    back = decoded(packed)
    assert back.shape == x.shape
    assert ((back - x.float()).abs() <= error_bound(x, bits, group)).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_equal_values_and_zeros_come_back_exactly(bits: int) -> None:
    x = torch.stack([torch.zeros(32), torch.full((32,), -7.25), torch.full((32,), 1024.0)])
    assert torch.equal(decoded(quantize(x, bits, 16)), x)


@pytest.mark.parametrize("bits", [8, 4])
def test_extreme_values_stay_finite(bits: int) -> None:
    x = torch.tensor([[1e30, -1e30, 0.0, 1.0], [65504.0, 65503.0, 6e-8, -65504.0], [1e-30, -1e-30, 1e-38, 0.0]])
    back = decoded(quantize(x, bits, 4))
    assert back.isfinite().all()
    assert back[0, 0] == pytest.approx(65504.0, rel=0.01) and back[0, 1] == pytest.approx(-65504.0, rel=0.01)
    assert back[2].abs().max() < 1e-5


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_into_a_narrow_type_adds_only_its_own_rounding(bits: int, dtype: torch.dtype) -> None:
    packed = quantize(rows(1, 2, 40, 64, scale=4.0), bits, 32)
    assert torch.equal(decoded(packed, dtype), decoded(packed).to(dtype))


def test_an_outlier_only_costs_its_own_group() -> None:
    x = rows(2, 1, 5, 64)
    x[..., 3] = 300.0
    error = (decoded(quantize(x, 4, 32)) - x).abs()
    assert error[..., 32:].max() < 0.25 < error[..., :32].max()


@settings(max_examples=30, deadline=None)
@given(slots=st.integers(1, 3 * BLOCK_ROWS), bits=st.sampled_from([8, 4]))
def test_any_number_of_rows_is_decoded_alike(slots: int, bits: int) -> None:
    x = rows(3, 1, slots, 8)
    packed = quantize(x, bits, 4)
    last = Packed(packed.codes[:, -1:], packed.scales[:, -1:], packed.zeros[:, -1:], bits)
    assert torch.equal(decoded(packed)[:, -1:], decoded(last))


def test_decoding_writes_only_into_the_view_that_it_is_given() -> None:
    out = torch.full((2, 10, 16), 99.0)
    x = rows(4, 2, 4, 16)
    dequantize_into(quantize(x, 8, 16), out[:, 3:7])
    assert (out[:, :3] == 99).all() and (out[:, 7:] == 99).all()
    assert torch.allclose(out[:, 3:7], x, atol=0.02)


@pytest.mark.parametrize(
    ("head_dim", "bits", "group", "expected"),
    [(128, 8, 128, 132), (128, 4, 32, 80), (64, 4, 64, 36), (64, 8, 32, 72)],
)
def test_bytes_per_row(head_dim: int, bits: int, group: int, expected: int) -> None:
    assert packed_bytes(head_dim, bits, group) == expected


@pytest.mark.parametrize(("head_dim", "bits", "group"), [(15, 4, 5), (16, 3, 4), (16, 8, 5), (16, 4, 0), (16, 4, 32)])
def test_odd_sizes_are_refused(head_dim: int, bits: int, group: int) -> None:
    with pytest.raises(SettingsError):
        quantize(torch.zeros(2, head_dim), bits, group)
    with pytest.raises(SettingsError):
        packed_bytes(head_dim, bits, group)


def test_an_output_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        dequantize_into(quantize(torch.zeros(2, 3, 16), 8, 16), torch.zeros(2, 4, 16))
