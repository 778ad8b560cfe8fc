# SPDX-License-Identifier: Apache-2.0
"""The training's forward pass is the library's: same vision tokens, same hidden states, question by question."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration

from ros_kvstream.patrol.questions import KINDS
from training.batch import Batch, ChatLayout, training_batch
from training.checkpoint_files import make_config, make_processor, make_tokenizer
from training.forward import answer_states, loss_and_right, normalise, see
from training.settings import Stage


@pytest.fixture(scope="module")
def model() -> Qwen2_5_VLForConditionalGeneration:
    torch.manual_seed(3)
    made = Qwen2_5_VLForConditionalGeneration(make_config(len(make_tokenizer()))).eval()
    for weight in made.parameters():  # biases and norms start as zeros and ones, which would hide mistakes
        if weight.dim() == 1:
            weight.data += 0.1 * torch.randn_like(weight)
    return made


@pytest.fixture(scope="module")
def batch() -> Batch:
    stage = Stage(frames=17, objects=4, streams=2, questions=4)
    return training_batch(ChatLayout(make_tokenizer()), stage, dict.fromkeys(KINDS, 1.0), 0.1, (1, 2))


def processed(batch: Batch, stream: int) -> dict[str, torch.Tensor]:
    """The pictures of a stream as the shipped image processor prepares them."""
    return make_processor()([Image.fromarray(frame.numpy()) for frame in batch.pixels[stream]], return_tensors="pt")


@torch.no_grad()
def test_the_batched_vision_tower_gives_what_the_library_gives(
    model: Qwen2_5_VLForConditionalGeneration, batch: Batch
) -> None:
    for stream in range(2):
        pictures = processed(batch, stream)
        theirs = model.model.visual(pictures["pixel_values"], pictures["image_grid_thw"]).pooler_output
        assert torch.allclose(see(model, normalise(batch.pixels[stream])).flatten(0, 1), theirs, atol=1e-5)


@torch.no_grad()
def test_every_question_sees_the_stream_and_itself_alone(
    model: Qwen2_5_VLForConditionalGeneration, batch: Batch
) -> None:
    (ours, _), text = answer_states(model, batch), model.model.language_model
    for stream in range(2):
        pictures = processed(batch, stream)
        seen = model.model.visual(pictures["pixel_values"], pictures["image_grid_thw"]).pooler_output
        for index, question in enumerate(batch.questions[stream]):
            embedded = torch.cat([text.embed_tokens(batch.prefix), seen, text.embed_tokens(question)])[None]
            own = batch.question_positions[stream].expand(3, 1, -1)
            positions = torch.cat([batch.stream_positions[:, stream : stream + 1], own], dim=-1)
            theirs = text(inputs_embeds=embedded, position_ids=positions, use_cache=False).last_hidden_state[0]
            assert torch.allclose(ours[stream, index], theirs[-len(question) :], atol=1e-4)


def test_frames_that_do_not_teach_change_no_loss_and_give_no_gradient_to_the_vision_tower(
    model: Qwen2_5_VLForConditionalGeneration, batch: Batch
) -> None:
    assert 0 < int(batch.taught.sum()) < batch.taught.numel()
    partly, _, _ = loss_and_right(model, batch)
    with torch.no_grad():
        fully, _, _ = loss_and_right(model, batch)
    assert float(partly.detach()) == pytest.approx(float(fully), abs=1e-5)
    untaught = Batch(**{**vars(batch), "taught": torch.zeros_like(batch.taught)})
    untaught.taught[0, 0] = True
    model.zero_grad()
    loss_and_right(model, untaught)[0].backward()
    small = model.model.visual.merger.mlp[2].weight.grad.norm()
    model.zero_grad()
    loss_and_right(model, batch)[0].backward()
    assert 0 < small < model.model.visual.merger.mlp[2].weight.grad.norm()


def test_labels_are_the_answer_and_its_end(batch: Batch) -> None:
    tokenizer = make_tokenizer()
    for items, labels in zip(batch.asked, batch.labels, strict=True):
        for question, row in zip(items, labels, strict=True):
            words = tokenizer.decode(row[row >= 0])
            assert words == f"{question.answer} <|im_end|>"


def test_the_same_key_gives_the_same_batch_and_another_key_another() -> None:
    layout, stage = ChatLayout(make_tokenizer()), Stage(frames=4, objects=2, streams=2, questions=3)
    one, same, other = (
        training_batch(layout, stage, dict.fromkeys(KINDS, 1.0), 0.0, key) for key in ((1, 7), (1, 7), (1, 8))
    )
    assert torch.equal(one.pixels, same.pixels) and torch.equal(one.questions, same.questions)
    assert not np.array_equal(one.pixels.numpy(), other.pixels.numpy())
