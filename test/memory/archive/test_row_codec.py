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
    vectors=st.integers(1, 12),
    half=st.integers(1, 40),
    patches=st.integers(1, 5),
    scale=st.sampled_from([1e-3, 1.0, 300.0]),
    seed=st.integers(0, 1000),
)
def test_patches_come_back_within_half_a_step(precision, vectors, half, patches, scale, seed):
    codec = RowCodec(vectors, 2 * half, precision)
    generator = torch.Generator().manual_seed(seed)
    content = scale * torch.randn(patches, vectors, 2 * half, generator=generator)
    coordinates = torch.randint(0, 99, (patches, 2), generator=generator).to(torch.int16)
    rows = torch.zeros(patches, codec.row_bytes, dtype=torch.uint8)
    codec.encode(content, coordinates, rows)
    found, found_places = codec.decode(rows)
    assert found_places.equal(coordinates)
    reach = content.abs().amax(-1, keepdim=True) * 2
    assert ((found - content).abs() <= LARGEST_ERROR[precision] * reach + 2e-5).all()


@pytest.mark.parametrize(("precision", "keys_values", "embeddings"), [
    ("fp16", 36868, 4100), ("int8", 36 * 2 * 2 * (128 + 8) + 4, 2048 + 32 * 4 + 4),
    ("int4", 36 * 2 * 2 * (64 + 8) + 4, 1024 + 32 * 4 + 4)])  # fmt: skip
def test_row_bytes_at_the_shape_of_a_3b_model(precision, keys_values, embeddings):
    assert RowCodec(2 * 36 * 2, 128, precision).row_bytes == keys_values
    assert RowCodec(1, 2048, precision).row_bytes == embeddings


def test_values_beyond_float16_are_clamped_not_infinite():
    codec = RowCodec(1, 4, "fp16")
    rows = torch.zeros(1, codec.row_bytes, dtype=torch.uint8)
    codec.encode(torch.full((1, 1, 4), 1e9), torch.zeros(1, 2, dtype=torch.int16), rows)
    assert codec.decode(rows)[0].isfinite().all()
