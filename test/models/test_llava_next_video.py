# SPDX-License-Identifier: Apache-2.0
"""LLaVA-NeXT-Video: the oracle, and what every family must pass."""

from __future__ import annotations

import numpy as np
import torch
from support import family_checks as checks
from support.tiny_llava import llava_next_video

from ros_kvstream.models.llava_next_video import LlavaNextVideo

SQUARE = {"size": {"height": 48, "width": 48}, "do_center_crop": False}


def one_shot(model: LlavaNextVideo, frames: list[np.ndarray], stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward over one video; pooling, positions and mask are its own."""
    pixels = model.image_processor(images=frames, return_tensors="pt", **SQUARE)["pixel_values"]
    video = model.network.config.video_token_id
    ids = [*model.prefix_ids, *[video] * (9 * len(frames)), *model.suffix_ids(question)]
    with torch.inference_mode():
        return checks.plain_network(model)(
            input_ids=torch.tensor([ids]), pixel_values_videos=pixels[None], use_cache=False
        ).logits[0]


class TestLlavaNextVideo(checks.FamilyChecks):
    make = staticmethod(llava_next_video)
    one_shot = staticmethod(one_shot)


def test_the_sides_of_a_wide_picture_are_seen() -> None:
    model = llava_next_video()
    dark = np.zeros((60, 120, 3), dtype=np.uint8)
    left = dark.copy()
    left[:, :20] = 255  # outside the square in the middle, which the published processor cuts out
    first, second = (tokens.embeddings.view(3, 3, -1) for tokens in model.encode_frames([dark, left]))
    assert (first[:, 0] - second[:, 0]).abs().max() > 0.01


def test_special_tokens_spelled_in_a_question_stay_plain_text() -> None:
    model = llava_next_video()
    video = model.tokenizer.convert_tokens_to_ids("<video>")
    assert video not in model.suffix_ids("what <video> colour")
    assert model.suffix_ids("what")[-2:] == model.suffix_ids("what <video> colour")[-2:]
