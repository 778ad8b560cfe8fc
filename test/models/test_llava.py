# SPDX-License-Identifier: Apache-2.0
"""The LLaVA families: square frames, running positions, learned newlines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import family_checks as checks
from support.tiny_families import llava_next, llava_next_video, llava_onevision

from ros_kvstream.errors import ModelError, SettingsError
from ros_kvstream.models.layout import TEXT_AFTER
from ros_kvstream.settings import ArchiveSettings, RetrievalSettings


def test_positions_are_running_indices_and_places_those_of_the_grid() -> None:
    model = llava_onevision(layers=1)
    memory = checks.stream_of(model)
    checks.feed(memory, checks.frames_of(0, 2), [0.0, 1000.0])
    positions = memory.arena.frame_slots(0).positions[0]
    start = len(model.prefix_ids)
    assert positions[:, 0].tolist() == list(range(start, start + 18))
    assert positions[:9, 1:].tolist() == positions[9:, 1:].tolist() == [[i // 3, i % 3] for i in range(9)]
    assert model.layout.after(memory.positions.newest, 3) == start + 18


def test_original_positions_of_retrieved_frames_are_refused_where_positions_are_no_times() -> None:
    archive, retrieval = ArchiveSettings(budget_mib=1.0), RetrievalSettings(positions="original")
    with pytest.raises(SettingsError, match="consecutive"):
        checks.stream_of(llava_onevision(layers=1), archive=archive, retrieval=retrieval)


def test_the_sides_of_a_wide_picture_are_seen() -> None:
    model = llava_next_video()
    dark = np.zeros((60, 120, 3), dtype=np.uint8)
    left = dark.copy()
    left[:, :20] = 255  # outside the square in the middle, which the published processor cuts out
    first, second = (tokens.embeddings.view(3, 3, -1) for tokens in model.encode_frames([dark, left]))
    assert (first[:, 0] - second[:, 0]).abs().max() > 0.01


def test_every_frame_ends_in_the_learned_newline() -> None:
    model = llava_next(layers=1)
    memory = checks.stream_of(model)
    checks.feed(memory, checks.frames_of(0, 2), [0.0, 1.0])
    positions = memory.arena.frame_slots(0).positions[0]
    start = len(model.prefix_ids)
    assert positions[:, 0].tolist() == list(range(start, start + 2 * 37))
    assert positions[36, 1:].tolist() == positions[73, 1:].tolist() == [TEXT_AFTER, 0]
    assert torch.equal(model.embed([-1])[0], model.network.model.image_newline)


def test_a_sliding_window_of_the_language_model_is_refused() -> None:
    with pytest.raises(ModelError, match="sliding_window = 64"):
        llava_next(window=64)
