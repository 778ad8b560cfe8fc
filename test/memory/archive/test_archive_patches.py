# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from ros_kvstream.memory.archive.patches import PatchSelector, patch_dissimilarity, unit_keys
from ros_kvstream.memory.archive.plan import ArchiveShape
from ros_kvstream.settings import ArchiveSettings

SHAPE = ArchiveShape(vectors=1, width=16, kv_heads=2, head_dim=8, index_layers=(0, 1), patches=16, cameras=2)


def keys(seed: int, patches: int = 16) -> torch.Tensor:
    return torch.randn(2, 2, patches, 8, generator=torch.Generator().manual_seed(seed))


def test_the_patch_that_changed_is_chosen():
    selector = PatchSelector(SHAPE, ArchiveSettings(keep_ratio=1 / 16, guard=0))
    selector.choose("front", keys(0), (4, 4))
    changed = keys(0)
    changed[:, :, 5] = keys(1)[:, :, 5]
    assert selector.choose("front", changed, (4, 4))[0].tolist() == [5]


def test_dissimilarity_is_one_minus_the_mean_cosine_over_layers_and_heads():
    a, b = keys(0), keys(1)
    by_hand = 1 - torch.nn.functional.cosine_similarity(a, b, dim=-1).mean((0, 1))
    torch.testing.assert_close(patch_dissimilarity(unit_keys(a), unit_keys(b)[None]), by_hand)


def test_patches_around_a_distinctive_one_are_kept_with_it():
    selector = PatchSelector(SHAPE, ArchiveSettings(keep_ratio=0.3, guard=1))
    still, changed = keys(0), keys(0)
    changed[:, :, 5] = keys(1)[:, :, 5]
    for _ in range(8):
        selector.choose("front", still, (4, 4))
    kept, _ = selector.choose("front", changed, (4, 4))
    assert kept.tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]


def test_what_any_of_the_compared_frames_held_is_redundant():
    a, b = keys(0), keys(1)
    one, several = (PatchSelector(SHAPE, ArchiveSettings(compare_frames=n)) for n in (1, 2))
    for selector in (one, several):
        for frame in (a, b):
            selector.choose("front", frame, (4, 4))
    assert one.choose("front", a, (4, 4))[1].min() > 0.1
    assert several.choose("front", a, (4, 4))[1].max() < 1e-2


def test_cameras_are_compared_with_themselves_and_a_new_grid_starts_afresh():
    selector = PatchSelector(SHAPE, ArchiveSettings())
    selector.choose("front", keys(0), (4, 4))
    assert selector.choose("rear", keys(0), (4, 4))[1].tolist() == [1.0] * 16
    assert selector.choose("front", keys(0), (4, 4))[1].max() < 1e-2
    assert selector.choose("front", keys(0), (2, 8))[1].tolist() == [1.0] * 16


def test_the_state_never_grows_with_cameras_or_frames():
    selector = PatchSelector(SHAPE, ArchiveSettings())
    before = selector.allocated_bytes
    for i in range(60):
        kept, dissimilarity = selector.choose(f"camera {i % 5}", keys(i), (4, 4))
        assert kept.numel() >= 1 and dissimilarity.shape == (16,)
    assert selector.allocated_bytes == before
