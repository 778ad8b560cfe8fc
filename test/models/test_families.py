# SPDX-License-Identifier: Apache-2.0
"""Every family that is listed can be loaded from a folder by the user's settings, and is described without weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny_families, tiny_llava, tiny_models

from ros_kvstream.models.families import FAMILIES
from ros_kvstream.models.loading import describe_model, load_model
from ros_kvstream.settings import ModelSettings

TINY: dict[str, Callable[[], Any]] = {
    "qwen2_vl": tiny_families.qwen2_vl,
    "qwen2_5_vl": tiny_models.qwen2_5_vl,
    "qwen3_vl": tiny_families.qwen3_vl,
    "llava_onevision": tiny_families.llava_onevision,
    "llava_next_video": tiny_llava.llava_next_video,
    "llava_next": tiny_llava.llava_next,
    "smolvlm": tiny_llava.smolvlm2,
}


def save(model: Any, folder: Path) -> Path:
    for part in (model.network, model.tokenizer, model.image_processor):
        part.save_pretrained(folder)
    return folder


def test_each_listed_family_has_a_small_model_for_tests() -> None:
    assert set(TINY) == set(FAMILIES)


@pytest.mark.parametrize("family", sorted(TINY))
def test_a_saved_model_is_loaded_as_it_was(family: str, tmp_path: Path) -> None:
    model = TINY[family]()
    settings = ModelSettings(path=str(save(model, tmp_path)), device="cpu")
    loaded: Any = load_model(settings)
    described = describe_model(settings)
    assert loaded.family == described.family == family
    assert loaded.trained and described.trained
    assert loaded.shape == described.shape == model.shape
    assert loaded.prefix_ids == described.prefix_ids == model.prefix_ids
    assert loaded.suffix_ids("what colour ?") == model.suffix_ids("what colour ?")
    assert loaded.grid(60, 90) == described.grid(60, 90) == model.grid(60, 90)
    assert loaded.frame_text(7.0) == model.frame_text(7.0)
    assert loaded.eos_ids >= model.eos_ids
    ours, theirs = loaded.network.state_dict(), model.network.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    picture = torch.randint(0, 255, (60, 90, 3), dtype=torch.uint8).numpy()
    first, second = (each.encode_frames([picture])[0].embeddings for each in (loaded, model))
    assert torch.allclose(first, second, atol=1e-5)
    assert first.shape[0] == loaded.grid(60, 90)[0] * loaded.grid(60, 90)[1]


@pytest.mark.parametrize("family", sorted(TINY))
def test_half_precision_goes_through_tower_and_language_model(family: str, tmp_path: Path) -> None:
    from support import family_checks as checks

    settings = ModelSettings(path=str(save(TINY[family](), tmp_path)), device="cpu", dtype="bfloat16")
    memory = checks.stream_of(load_model(settings))
    checks.feed(memory, checks.frames_of(0, 3), [0.0, 1.0, 2.0])
    assert memory.arena.frame_slots(0).keys.dtype == torch.bfloat16
    assert memory.ask(checks.QUESTION).latency.answer_tokens >= 0
