"""LLaVA 1.6: the oracle, and what every family must pass."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("block_frames", [1, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_streamed_memory_equals_the_familys_own_forward(block_frames: int, seed: int) -> None:
    checks.check_oracle(llava_next(seed=seed), one_shot, block_frames, seed)


def test_every_frame_matters() -> None:
    checks.check_every_frame_matters(llava_next())


def test_keys_can_be_turned_back() -> None:
    checks.check_rotation(llava_next())


def test_every_policy_keeps_its_cap_at_a_quarter_of_the_full_cache() -> None:
    checks.check_policies(llava_next())


def test_retrieval_leaves_no_trace() -> None:
    checks.check_retrieval(llava_next())


def test_retrieved_frames_answer_like_kept_ones() -> None:
    checks.check_retrieved_equals_kept(llava_next(layers=1))


def test_a_stream_past_the_trained_range_answers_like_a_short_one() -> None:
    checks.check_far_stream(llava_next(layers=1, limit=300), 80)


def test_a_saved_memory_goes_on(tmp_path: Path) -> None:
    checks.check_save_and_load(llava_next(layers=2), tmp_path / "memory")


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
