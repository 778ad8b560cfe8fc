# SPDX-License-Identifier: Apache-2.0
"""Qwen2-VL: the oracle, and positions that its own library gets wrong."""

from __future__ import annotations

import inspect

import numpy as np
import torch
from support import family_checks as checks
from support.tiny_families import qwen2_vl

from ros_kvstream.models.qwen2_vl import Qwen2VL


def video_inputs(model: Qwen2VL, frames: list[np.ndarray], question: str) -> dict[str, torch.Tensor]:
    """The library's inputs for one video of doubled frames, its own positions not among them."""
    inputs = model.image_processor(images=frames, return_tensors="pt")
    grid = inputs["image_grid_thw"][0, 1:].tolist()
    video = model.network.config.video_token_id
    tokens = len(frames) * grid[0] * grid[1] // 4
    ids = torch.tensor([[*model.prefix_ids, *[video] * tokens, *model.suffix_ids(question)]])
    return {
        "input_ids": ids,
        "mm_token_type_ids": (ids == video).int() * 2,
        "pixel_values_videos": inputs["pixel_values"],
        "video_grid_thw": torch.tensor([[len(frames), *grid]]),
    }


def library_positions(model: Qwen2VL, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the library itself would use, [3, 1, tokens]."""
    find = model.network.model.get_rope_index
    known = inspect.signature(find).parameters
    return find(**{name: tensor for name, tensor in inputs.items() if name in known})[0]


def one_shot(model: Qwen2VL, frames: list[np.ndarray], stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward, with its own positions but for the text behind the video."""
    inputs = video_inputs(model, frames, question)
    positions = library_positions(model, inputs)
    suffix = len(model.suffix_ids(question))
    start = int(positions[..., :-suffix].max()) + 1
    positions[..., -suffix:] = torch.arange(start, start + suffix)
    with torch.inference_mode():
        return checks.plain_network(model)(**inputs, position_ids=positions, use_cache=False).logits[0]


class TestQwen2VL(checks.FamilyChecks):
    make = staticmethod(qwen2_vl)
    one_shot = staticmethod(one_shot)
    far_limit = 120
    far_frames = 100


def test_the_question_comes_after_the_newest_frame_where_the_library_puts_it_before() -> None:
    model, frames = qwen2_vl(layers=1), checks.frames_of(0, 9)
    memory = checks.stream_of(model)
    checks.feed(memory, frames, range(9))
    ours = memory.ingest.text_start
    theirs = library_positions(model, video_inputs(model, frames, checks.QUESTION))
    suffix = len(model.suffix_ids(checks.QUESTION))
    newest = int(theirs[0, 0, :-suffix].max())
    assert memory.positions.newest == newest == len(model.prefix_ids) + 8
    assert ours == newest + 1
    if int(theirs[0, 0, -suffix]) <= newest:  # transformers 5.24, its issue 45381
        assert ours > int(theirs[0, 0, -suffix])


def test_positions_that_the_library_remembers_from_before_change_nothing() -> None:
    model = qwen2_vl(layers=1)
    memory = checks.stream_of(model)
    checks.feed(memory, checks.frames_of(0, 3), range(3))
    before = checks.question_logits(memory)
    model.network.model.rope_deltas = torch.tensor([[12345]])
    assert torch.equal(before, checks.question_logits(memory))
