"""LLaVA-NeXT-Video: the oracle, and what every family must pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
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


@pytest.mark.parametrize("block_frames", [1, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_streamed_memory_equals_the_familys_own_forward(block_frames: int, seed: int) -> None:
    checks.check_oracle(llava_next_video(seed=seed), one_shot, block_frames, seed)


def test_every_frame_matters() -> None:
    checks.check_every_frame_matters(llava_next_video())


def test_keys_can_be_turned_back() -> None:
    checks.check_rotation(llava_next_video())


def test_every_policy_keeps_its_cap_at_a_quarter_of_the_full_cache() -> None:
    checks.check_policies(llava_next_video())


def test_retrieval_leaves_no_trace() -> None:
    checks.check_retrieval(llava_next_video())


def test_retrieved_frames_answer_like_kept_ones() -> None:
    checks.check_retrieved_equals_kept(llava_next_video(layers=1))


def test_a_stream_past_the_trained_range_answers_like_a_short_one() -> None:
    checks.check_far_stream(llava_next_video(layers=1, limit=300), 80)


def test_a_saved_memory_goes_on(tmp_path: Path) -> None:
    checks.check_save_and_load(llava_next_video(layers=2), tmp_path / "memory")


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
