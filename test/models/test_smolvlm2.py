# SPDX-License-Identifier: Apache-2.0
"""SmolVLM2: the oracle with the family's own prompt, and what every family must pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import family_checks as checks
from support.tiny_llava import smolvlm2

from ros_kvstream.models.smolvlm2 import SmolVLM2


def one_shot(model: SmolVLM2, frames: list[np.ndarray], stamps: list[float], question: str) -> torch.Tensor:
    """Logits of the library's own forward over one prompt of text and placeholders."""
    edge = {"longest_edge": 48}
    pixels = model.image_processor(
        images=[frames], size=edge, max_image_size=edge, do_image_splitting=False, return_tensors="pt"
    )["pixel_values"]
    text = "<|im_start|>User: You are provided the following series of frames from a video.\n"
    for stamp in stamps:
        second = int(stamp - stamps[0])
        text += f"\nFrame from 00:{second:02d}:<fake_token_around_image><global-img>"
        text += "<image>" * 9 + "<fake_token_around_image>"
    text += f"\n\n{question}<end_of_utterance>\nAssistant:"
    ids = model.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return checks.plain_network(model)(input_ids=ids, pixel_values=pixels, use_cache=False).logits[0]


class TestSmolVLM2(checks.FamilyChecks):
    make = staticmethod(smolvlm2)
    one_shot = staticmethod(one_shot)
    far_limit = 400


def test_the_prompt_is_the_one_that_the_librarys_processor_writes() -> None:
    try:
        from transformers.models.smolvlm import processing_smolvlm as library
    except ImportError as error:  # transformers 4.57 imports torchvision with it
        pytest.skip(str(error))
    model = smolvlm2(layers=1)
    picture = library._prompt_single_image(9, "<fake_token_around_image>", "<image>", "<global-img>")
    theirs = library.FRAME_TIMESTAMP_MESSAGE.format(timestamp="01:05") + picture
    before, after = model.frame_text(65.9)
    image = model.tokenizer.convert_tokens_to_ids("<image>")
    assert [*before, *[image] * 9, *after] == model.tokenize(theirs)
    assert model.suffix_ids("what")[:2] == model.tokenize(library.DEFAULT_MEDIA_OUTTRO)


def test_a_frames_text_never_takes_more_room_than_was_planned() -> None:
    model = smolvlm2(layers=1)
    for seconds in (0.0, 59.99, 3599.0, 5999.0, 6000.0, 1e6, 3e7):
        before, after = model.frame_text(seconds)
        assert len(before) + len(after) <= model.frame_text_tokens
    assert model.frame_text(6000.0) == model.frame_text(0.0)
