# SPDX-License-Identifier: Apache-2.0
"""Qwen3-VL: the oracle with text between grids and DeepStack features, and how its slots are laid out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from support import family_checks as checks
from support.tiny_families import qwen3_vl

from ros_kvstream.memory.policies import make_policy
from ros_kvstream.models.layout import TEXT_AFTER, TEXT_BEFORE
from ros_kvstream.models.qwen3_vl import MOST_SECONDS, Qwen3VL


def one_shot(model: Qwen3VL, frames: list[np.ndarray], stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward; times as text, positions, mask and DeepStack are its own."""
    inputs = model.image_processor(images=frames, return_tensors="pt")
    grid = inputs["image_grid_thw"][0, 1:].tolist()
    video = model.network.config.video_token_id
    text = "".join(
        f"<{stamp - stamps[0]:.1f} seconds><|vision_start|>{'<|video_pad|>' * (grid[0] * grid[1] // 4)}<|vision_end|>"
        for stamp in stamps
    )
    ids = torch.tensor([[*model.prefix_ids, *model.tokenize(text), *model.suffix_ids(question)]])
    with torch.inference_mode():
        return checks.plain_network(model)(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),  # without one 4.57 takes equal positions for packed sequences
            mm_token_type_ids=(ids == video).int() * 2,
            pixel_values_videos=inputs["pixel_values"],
            video_grid_thw=torch.tensor([[len(frames), *grid]]),
            use_cache=False,
        ).logits[0]


class TestQwen3VL(checks.FamilyChecks):
    make = staticmethod(qwen3_vl)
    one_shot = staticmethod(one_shot)
    far_limit = 500
    far_frames = 70


def test_deepstack_features_matter() -> None:
    model, frames = qwen3_vl(), checks.frames_of(1, 3)
    with_features, without = checks.stream_of(model), checks.stream_of(model)
    checks.feed(with_features, frames, range(3))
    encode, hidden = model.encode_frames, model.language_model.config.hidden_size
    encoded = encode(frames)
    assert all(tokens.embeddings.shape[1] == 3 * hidden for tokens in encoded)
    cut = torch.arange(3 * hidden) < hidden
    encoded = [replace(tokens, embeddings=tokens.embeddings * cut) for tokens in encoded]
    model.encode_frames = lambda pictures: [encoded.pop(0)]  # type: ignore[method-assign]
    checks.feed(without, frames, range(3))
    model.encode_frames = encode  # type: ignore[method-assign]
    assert (checks.question_logits(with_features) - checks.question_logits(without)).abs().max() > 1e-3


def test_text_stands_around_each_grid_and_a_grid_takes_its_longer_side() -> None:
    model = qwen3_vl(layers=1)
    memory = checks.stream_of(model)
    checks.feed(memory, checks.frames_of(0, 2), [5.0, 17.26])
    before = len(model.tokenize("<12.3 seconds><|vision_start|>"))
    rows, columns = model.grid(*checks.SIZE)
    tokens = before + rows * columns + 1
    positions = memory.arena.frame_slots(0).positions[0, -tokens:]
    first = int(positions[0, 0])
    assert positions[:before, 0].tolist() == list(range(first, first + before))
    assert positions[:before, 1].tolist() == [TEXT_BEFORE] * before
    assert positions[:before, 2].tolist() == list(range(-before, 0))
    grid = positions[before:-1]
    assert set(grid[:, 0].tolist()) == {first + before}
    assert grid[:, 1:].tolist() == [[i // columns, i % columns] for i in range(rows * columns)]
    assert positions[-1].tolist() == [first + before + max(rows, columns), TEXT_AFTER, 0]
    assert model.text_start(memory.positions.newest, 3) == int(positions[-1, 0]) + 1


def test_texts_of_different_frames_are_compared_from_the_grid_outwards() -> None:
    model = qwen3_vl(layers=2)
    memory = checks.stream_of(model)
    still = checks.frames_of(0, 1)[0]
    checks.feed(memory, [still] * 12, [float(i) for i in range(12)])
    slots = memory.arena.frame_slots(0)
    kept = make_policy("tar", {"compare_with": "newer"}).select(slots, 60)[0].nonzero()[:, 0]
    text = slots.positions[0, kept, 1] == TEXT_BEFORE
    coordinates = slots.positions[0, kept][text, 2].tolist()
    digits = model.tokenize("<1.0 seconds><|vision_start|>").index(model.tokenize("1")[0]) - 6
    assert digits in coordinates, "the digit that changes stays longer than what every frame repeats"


def test_a_frames_text_never_passes_the_room_planned_for_it() -> None:
    model = qwen3_vl(layers=1)
    for seconds in (0.0, 59.96, 86_399.9, MOST_SECONDS - 0.1, MOST_SECONDS, 3e9):
        before, after = model.frame_text(seconds)
        assert len(before) + len(after) <= model.frame_text_tokens
    assert model.frame_text(0.0)[0] == model.tokenize("<0.0 seconds><|vision_start|>")


def test_a_thinned_frame_keeps_its_text_and_its_patches_positions() -> None:
    model = qwen3_vl(layers=1)
    tokens = model.encode_frames(checks.frames_of(0, 1))[0]
    kept = torch.zeros(tokens.rows * tokens.columns, dtype=torch.bool)
    kept[[1, 4]] = True
    whole, thin = model.complete(tokens, 3.0), model.complete(tokens, 3.0, kept)
    assert thin.coordinates is not None and whole.coordinates is not None
    stays = (whole.coordinates[:, 0] < 0) | kept[(whole.coordinates[:, 0] * tokens.columns + whole.coordinates[:, 1]).clamp_min(0)]
    assert torch.equal(thin.embeddings, whole.embeddings[stays])
    placed = [model.frame_positions(50, tokens.rows, tokens.columns, frame.coordinates) for frame in (whole, thin)]
    assert torch.equal(placed[1], placed[0][stays])
