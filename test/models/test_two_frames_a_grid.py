# SPDX-License-Identifier: Apache-2.0
"""Two real frames in one temporal grid: the families' own forward over the patches of a video is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import family_checks as checks
from support import oracles
from support.tiny_families import llava_onevision, qwen2_vl, qwen3_vl, wide_qwen2_5_vl
from support.tiny_models import qwen2_5_vl

from ros_kvstream.errors import SettingsError
from ros_kvstream.stream.memory import VideoMemory

STAMPS = [100.0, 100.0, 101.5, 102.0, 103.0]
"""Two pairs, the first of one moment (times count from the first grid), and a frame that is left over."""


def video_patches(model: Any, frames: list[np.ndarray]) -> torch.Tensor:
    """Patches as the families' video processors lay them out (which need torchvision): an odd last frame is doubled."""
    processor = model.image_processor
    mean, deviation = torch.tensor(processor.image_mean), torch.tensor(processor.image_std)
    moments = [*frames, *frames[-1:]] if len(frames) % 2 else frames
    video = (torch.from_numpy(np.stack(moments)).float() / 255 - mean) / deviation
    side, merge = processor.patch_size, processor.merge_size
    count, height, width, channels = video.shape
    rows, columns = height // side, width // side
    split = video.permute(0, 3, 1, 2).reshape(
        count // 2, 2, channels, rows // merge, merge, side, columns // merge, merge, side
    )
    return split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(count // 2 * rows * columns, -1)


def with_video(model: Any, frames: list[np.ndarray]) -> Any:
    """The model, but that its image processor gives the patches of this video, whatever it is asked."""
    side = model.image_processor.patch_size
    grid = torch.tensor([[1, frames[0].shape[0] // side, frames[0].shape[1] // side]])
    inputs = {"pixel_values": video_patches(model, frames), "image_grid_thw": grid}
    known = SimpleNamespace(**{name: getattr(model, name) for name in ("network", "prefix_ids", "suffix_ids")})
    for name in ("tokenize", "tokens_per_second"):
        setattr(known, name, getattr(model, name))
    known.image_processor = lambda images, return_tensors: inputs
    return known


CASES = [
    (qwen2_vl, oracles.qwen2_vl, (56, 84), False),
    (lambda: wide_qwen2_5_vl(seed=1), oracles.qwen2_5_vl, (56, 84), False),
    (qwen3_vl, oracles.qwen3_vl, (64, 96), True),
]
"""Maker, oracle, size without a resize, whether the text of a grid is its frames' mean time."""
FAMILIES = pytest.mark.parametrize(("make", "one_shot", "size", "mean"), CASES, ids=["qwen2", "qwen2_5", "qwen3"])


@FAMILIES
@pytest.mark.parametrize("block_frames", [1, 2])
def test_a_stream_of_pairs_equals_the_familys_own_forward_over_a_video(
    make: Callable[[], Any], one_shot: Callable[..., torch.Tensor], size: tuple[int, int], mean: bool, block_frames: int
) -> None:
    model, frames = make(), checks.frames_of(3, len(STAMPS), size)
    memory = checks.stream_of(model, frames_per_grid=2, block_frames=block_frames)
    checks.feed(memory, frames, STAMPS)
    ours = checks.question_logits(memory)
    told = [100.0, 101.75 if mean else 101.5, 103.0]
    theirs = one_shot(with_video(model, frames), frames[::2], told, checks.QUESTION)[-1]
    assert (ours - theirs).abs().max() < 1e-4
    alone = checks.stream_of(model)
    checks.feed(alone, frames[::2], STAMPS[::2])
    assert (ours - checks.question_logits(alone)).abs().max() > 1e-3, "the second frames must matter"


@FAMILIES
def test_a_frame_paired_with_itself_is_the_frame(
    make: Callable[[], Any], one_shot: object, size: tuple[int, int], mean: bool
) -> None:
    model, frames = make(), checks.frames_of(4, 2, (size[0] + 9, size[1] + 5))
    twice = model.encode_pairs([(frame, frame) for frame in frames])
    for once, pair in zip(model.encode_frames(frames), twice, strict=True):
        assert torch.equal(once.embeddings, pair.embeddings)
        assert (once.rows, once.columns) == (pair.rows, pair.columns)


def test_a_family_of_one_frame_a_grid_refuses_two() -> None:
    with pytest.raises(SettingsError, match="frames_per_grid = 2: a grid of the family llava_onevision holds 1"):
        checks.stream_of(llava_onevision(), frames_per_grid=2)


def frames_seen(memory: VideoMemory) -> tuple[int, int, int]:
    stats = memory.stats()
    return stats.frames_seen, stats.frames_kept, stats.frames_remembered


def test_pairs_take_half_the_slots_and_every_frame_is_counted() -> None:
    model, frames = qwen2_5_vl(seed=1), checks.frames_of(5, 6)
    single, paired = checks.stream_of(model), checks.stream_of(model, frames_per_grid=2)
    for memory in (single, paired):
        checks.feed(memory, frames, range(6))
    assert paired.arena.frame_slots_used * 2 == single.arena.frame_slots_used
    assert frames_seen(single) == (6, 6, 6)
    assert frames_seen(paired) == (6, 6, 3)
    assert [(record.stamp, record.stamp_end) for record in map(paired.frame_index.__getitem__, range(3))] == [
        (0.0, 1.0), (2.0, 3.0), (4.0, 5.0),
    ]  # fmt: skip
    assert paired.frame_index.newest_stamp() == 5.0
