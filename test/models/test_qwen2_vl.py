# SPDX-License-Identifier: Apache-2.0
"""Qwen2-VL: positions that its own library gets wrong."""

from __future__ import annotations

import torch
from support import family_checks as checks
from support.oracles import library_positions, video_inputs
from support.tiny_families import qwen2_vl


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
