# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.memory.slot_table import TensorRows, fill_holes, kept_mask


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int32, torch.int16]),
    st.booleans(),
    st.data(),
)
def test_every_kept_row_ends_in_front_and_rows_outside_the_view_stay(
    heads: int, slots: int, before: int, behind: int, dtype: torch.dtype, whole: bool, data: st.DataObject
) -> None:
    keep = data.draw(st.integers(0, slots))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    kept = torch.stack([torch.randperm(slots, generator=generator)[:keep].sort().values for _ in range(heads)])
    tensors = [
        torch.randint(0, 100, (heads, before + slots + behind, *rest), generator=generator).to(dtype)
        for rest in ((8,), (3,), ())
    ]
    old = [tensor.clone() for tensor in tensors]
    region = slice(before, before + slots)
    if whole:
        fill_holes([TensorRows.of(tensor) for tensor in tensors], kept_mask(kept, slots), before)
    else:
        fill_holes([TensorRows.of(tensor[:, region]) for tensor in tensors], kept_mask(kept, slots))
    for new, tensor in zip(tensors, old, strict=True):
        assert torch.equal(new[:, :before], tensor[:, :before])
        assert torch.equal(new[:, before + slots :], tensor[:, before + slots :])
        for head in range(heads):
            stayed = new[head, before : before + keep].reshape(keep, tensor[0, 0].numel()).tolist()
            wanted = tensor[head, region][kept[head]].reshape(keep, tensor[0, 0].numel()).tolist()
            assert sorted(stayed) == sorted(wanted)
            in_place = [slot for slot in kept[head].tolist() if slot < keep]
            assert torch.equal(new[head, region][in_place], tensor[head, region][in_place])


def test_rows_of_different_tensors_move_together() -> None:
    ids = torch.arange(24).view(2, 12)
    tensors = [ids.clone(), ids[..., None].repeat(1, 1, 4).float(), ids.clone().short()]
    kept_slots = kept_mask(torch.tensor([[0, 3, 7, 9, 10], [1, 2, 3, 4, 11]]), 12)
    fill_holes([TensorRows.of(tensor) for tensor in tensors], kept_slots)
    kept = tensors[0][:, :5]
    assert [sorted(row.tolist()) for row in kept] == [[0, 3, 7, 9, 10], [13, 14, 15, 16, 23]]
    assert torch.equal(tensors[1][:, :5, 2].long(), kept)
    assert torch.equal(tensors[2][:, :5].long(), kept)


def test_what_cannot_be_compacted_is_refused() -> None:
    ragged = torch.tensor([[True, False, True], [False, False, True]])
    with pytest.raises(ValueError, match="same number"):
        fill_holes([TensorRows.of(torch.zeros(2, 3))], ragged)
    with pytest.raises(ValueError, match="in place"):
        TensorRows.of(torch.zeros(6, 2).T)
