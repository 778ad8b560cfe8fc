# SPDX-License-Identifier: Apache-2.0
"""LLaVA-OneVision: the oracle, and what 1-D positions ask of the memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import family_checks as checks
from support.tiny_families import llava_onevision

from ros_kvstream.errors import SettingsError
from ros_kvstream.models.llava_onevision import LlavaOneVision
from ros_kvstream.settings import ArchiveSettings, RetrievalSettings


def one_shot(model: LlavaOneVision, frames: list[np.ndarray], stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward over one video; positions, mask and newline are its own."""
    pixels = model.image_processor(images=frames, return_tensors="pt")["pixel_values"]
    video = model.network.config.video_token_id
    tokens = len(frames) * np.prod(model.grid(*checks.SIZE)) + 1
    ids = [*model.prefix_ids, *[video] * tokens, *model.suffix_ids(question)[1:]]
    with torch.inference_mode():
        return checks.plain_network(model)(
            input_ids=torch.tensor([ids]), pixel_values_videos=pixels[None], use_cache=False
        ).logits[0]


class TestLlavaOneVision(checks.FamilyChecks):
    make = staticmethod(llava_onevision)
    one_shot = staticmethod(one_shot)


def test_positions_are_running_indices_and_places_those_of_the_grid() -> None:
    model = llava_onevision(layers=1)
    memory = checks.stream_of(model)
    checks.feed(memory, checks.frames_of(0, 2), [0.0, 1000.0])
    positions = memory.arena.frame_slots(0).positions[0]
    start = len(model.prefix_ids)
    assert positions[:, 0].tolist() == list(range(start, start + 18))
    assert positions[:9, 1:].tolist() == positions[9:, 1:].tolist() == [[i // 3, i % 3] for i in range(9)]
    assert model.text_start(memory.positions.newest, 3) == start + 18


def test_original_positions_of_retrieved_frames_are_refused_where_positions_are_no_times() -> None:
    archive, retrieval = ArchiveSettings(budget_mib=1.0), RetrievalSettings(positions="original")
    with pytest.raises(SettingsError, match="consecutive"):
        checks.stream_of(llava_onevision(layers=1), archive=archive, retrieval=retrieval)
