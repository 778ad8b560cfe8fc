# SPDX-License-Identifier: Apache-2.0
"""Qwen3-VL: text between grids, DeepStack features, and how its slots are laid out."""

from __future__ import annotations

from dataclasses import replace

import torch
from support import family_checks as checks
from support.tiny_families import qwen3_vl

from ros_kvstream.memory.policies import make_policy
from ros_kvstream.models.layout import TEXT_AFTER, TEXT_BEFORE


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
    assert model.frame_text(0.0)[0] == model.tokenize("<0.0 seconds><|vision_start|>")
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
    assert model.layout.after(memory.positions.newest, 3) == int(positions[-1, 0]) + 1


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


def test_a_thinned_frame_keeps_its_text_and_its_patches_positions() -> None:
    model = qwen3_vl(layers=1)
    tokens = model.encode_frames(checks.frames_of(0, 1))[0]
    kept = torch.zeros(tokens.rows * tokens.columns, dtype=torch.bool)
    kept[[1, 4]] = True
    whole, thin = model.complete(tokens, 3.0), model.complete(tokens, 3.0, kept)
    assert thin.coordinates is not None and whole.coordinates is not None
    patch = whole.coordinates[:, 0] * tokens.columns + whole.coordinates[:, 1]
    stays = (whole.coordinates[:, 0] < 0) | kept[patch.clamp_min(0)]
    assert torch.equal(thin.embeddings, whole.embeddings[stays])
    placed = [model.frame_positions(50, tokens.rows, tokens.columns, frame.coordinates) for frame in (whole, thin)]
    assert torch.equal(placed[1], placed[0][stays])
