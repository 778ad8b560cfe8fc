from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.memory.compaction import fill_holes, kept_mask
from ros_kvstream.memory.rows import PlaneRows


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
    planes = [
        torch.randint(0, 100, (heads, before + slots + behind, *rest), generator=generator).to(dtype)
        for rest in ((8,), (3,), ())
    ]
    old = [plane.clone() for plane in planes]
    region = slice(before, before + slots)
    if whole:
        fill_holes([PlaneRows.of(plane) for plane in planes], kept_mask(kept, slots), before)
    else:
        fill_holes([PlaneRows.of(plane[:, region]) for plane in planes], kept_mask(kept, slots))
    for new, plane in zip(planes, old, strict=True):
        assert torch.equal(new[:, :before], plane[:, :before])
        assert torch.equal(new[:, before + slots :], plane[:, before + slots :])
        for head in range(heads):
            stayed = new[head, before : before + keep].reshape(keep, plane[0, 0].numel()).tolist()
            wanted = plane[head, region][kept[head]].reshape(keep, plane[0, 0].numel()).tolist()
            assert sorted(stayed) == sorted(wanted)
            in_place = [slot for slot in kept[head].tolist() if slot < keep]
            assert torch.equal(new[head, region][in_place], plane[head, region][in_place])


def test_rows_of_different_planes_move_together() -> None:
    ids = torch.arange(24).view(2, 12)
    planes = [ids.clone(), ids[..., None].repeat(1, 1, 4).float(), ids.clone().short()]
    kept_slots = kept_mask(torch.tensor([[0, 3, 7, 9, 10], [1, 2, 3, 4, 11]]), 12)
    fill_holes([PlaneRows.of(plane) for plane in planes], kept_slots)
    kept = planes[0][:, :5]
    assert [sorted(row.tolist()) for row in kept] == [[0, 3, 7, 9, 10], [13, 14, 15, 16, 23]]
    assert torch.equal(planes[1][:, :5, 2].long(), kept)
    assert torch.equal(planes[2][:, :5].long(), kept)


def test_what_cannot_be_compacted_is_refused() -> None:
    ragged = torch.tensor([[True, False, True], [False, False, True]])
    with pytest.raises(ValueError, match="same number"):
        fill_holes([PlaneRows.of(torch.zeros(2, 3))], ragged)
    with pytest.raises(ValueError, match="in place"):
        PlaneRows.of(torch.zeros(6, 2).T)
