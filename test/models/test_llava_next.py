# SPDX-License-Identifier: Apache-2.0
"""LLaVA 1.6: the oracle, and what every family must pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import family_checks as checks
from support.tiny_llava import llava_next

from ros_kvstream.errors import ModelError
from ros_kvstream.models.layout import TEXT_AFTER
from ros_kvstream.models.llava_next import LlavaNext

SQUARE = {"size": {"height": 48, "width": 48}, "do_center_crop": False}


def one_shot(model: LlavaNext, frames: list[np.ndarray], stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward over images of their overview tile alone, packed by itself.

    A best resolution of 0 x 0 makes the library cut no further tiles.
    """
    pixels = model.image_processor(images=frames, return_tensors="pt", **SQUARE)["pixel_values"]
    image = model.network.config.image_token_id
    ids = [*model.prefix_ids, *[image] * (37 * len(frames)), *model.suffix_ids(question)]
    network = checks.plain_network(model)
    network.model.config.image_grid_pinpoints = [[0, 0]]
    sizes = torch.tensor([frame.shape[:2] for frame in frames])
    with torch.inference_mode():
        return network(
            input_ids=torch.tensor([ids]), pixel_values=pixels[:, None], image_sizes=sizes, use_cache=False
        ).logits[0]


class TestLlavaNext(checks.FamilyChecks):
    make = staticmethod(llava_next)
    one_shot = staticmethod(one_shot)


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
