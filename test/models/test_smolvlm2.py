# SPDX-License-Identifier: Apache-2.0
"""SmolVLM2: the family's own prompt."""

from __future__ import annotations

import pytest
from support.tiny_families import smolvlm2


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
    assert model.frame_text(6000.0) == model.frame_text(0.0)
