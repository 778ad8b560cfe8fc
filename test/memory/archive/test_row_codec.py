# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.memory.archive.row_codec import RowCodec

LARGEST_ERROR = {"fp16": 1e-3, "int8": 1 / 255, "int4": 1 / 15}
"""As a share of a vector's own range, with the rounding of scale and zero point."""


@settings(max_examples=60, deadline=None)
@given(
    precision=st.sampled_from(["fp16", "int8", "int4"]),
    layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    half=st.integers(1, 40),
    patches=st.integers(1, 5),
    scale=st.sampled_from([1e-3, 1.0, 300.0]),
    seed=st.integers(0, 1000),
)
def test_patches_come_back_within_half_a_step(precision, layers, kv_heads, half, patches, scale, seed):
    codec = RowCodec(layers, kv_heads, 2 * half, precision)
    generator = torch.Generator().manual_seed(seed)
    keys, values = scale * torch.randn(2, layers, kv_heads, patches, 2 * half, generator=generator)
    coordinates = torch.randint(0, 99, (patches, 2), generator=generator).to(torch.int16)
    rows = torch.zeros(patches, codec.row_bytes, dtype=torch.uint8)
    codec.encode(keys, values, coordinates, rows)
    found_keys, found_values, found_places = codec.decode(rows)
    assert found_places.equal(coordinates)
    for found, given_tensor in ((found_keys, keys), (found_values, values)):
        reach = given_tensor.abs().amax(-1, keepdim=True) * 2
        assert ((found - given_tensor).abs() <= LARGEST_ERROR[precision] * reach + 2e-5).all()


@pytest.mark.parametrize(("precision", "row"), [("fp16", 36868), ("int8", 36 * 2 * 2 * (128 + 8) + 4),
                                                ("int4", 36 * 2 * 2 * (64 + 8) + 4)])  # fmt: skip
def test_row_bytes_at_the_shape_of_a_3b_model(precision, row):
    assert RowCodec(36, 2, 128, precision).row_bytes == row


def test_values_beyond_float16_are_clamped_not_infinite():
    codec = RowCodec(1, 1, 4, "fp16")
    rows = torch.zeros(1, codec.row_bytes, dtype=torch.uint8)
    codec.encode(torch.full((1, 1, 1, 4), 1e9), torch.zeros(1, 1, 1, 4), torch.zeros(1, 2, dtype=torch.int16), rows)
    assert codec.decode(rows)[0].isfinite().all()
