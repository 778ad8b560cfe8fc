# SPDX-License-Identifier: Apache-2.0
"""The side lessons: nothing to learn where heads look where they should, much where they look elsewhere."""

from __future__ import annotations

import torch

from ros_kvstream.patrol.questions import KINDS
from training.batch import IGNORE, Batch, ChatLayout, training_batch
from training.checkpoint_files import make_tokenizer
from training.lessons import POINTERS, following_loss, pointing_loss
from training.settings import Stage


def made_batch() -> Batch:
    stage = Stage(frames=24, objects=5, streams=2, questions=12)
    return training_batch(ChatLayout(make_tokenizer()), stage, dict.fromkeys(KINDS, 1.0), 0.0, (3, 4))


def test_each_pointer_is_content_with_attention_where_it_points_and_with_no_other() -> None:
    batch = made_batch()
    streams, asked, longest = batch.questions.shape
    tokens = batch.pointed.shape[-1]
    for pointer in POINTERS:
        good = torch.zeros(streams, 1, asked, longest, tokens + longest)
        bad = good.clone()
        bad[..., 0] = 1.0
        for stream in range(streams):
            for index in range(asked):
                noun = int(batch.nouns[stream, index])
                target = {"noun": None, "named": batch.named, "answer": batch.pointed}[pointer.target]
                if target is None:
                    good[stream, 0, index, :, tokens + noun] = 1.0
                elif target[stream, index].any():
                    mask = target[stream, index].float()
                    good[stream, 0, index, :, :tokens] = mask / mask.sum()
        assert float(pointing_loss(good.flatten(2, 3), batch, pointer)) < 1e-3
        assert float(pointing_loss(bad.flatten(2, 3), batch, pointer)) > 5.0


def test_nouns_and_what_they_name_belong_together() -> None:
    batch, tokenizer = made_batch(), make_tokenizer()
    for items, nouns, named, told in zip(batch.asked, batch.nouns, batch.named, batch.told, strict=True):
        for index, question in enumerate(items):
            if named[index].any():
                word = tokenizer.decode([int(batch.questions[batch.asked.index(items), index, nouns[index]])])
                assert word in question.text
                assert int(told[index, 2]) != IGNORE


def test_following_counts_the_attention_paid_to_the_sighting_before() -> None:
    followed = torch.tensor([[0, 1, 0, 2, 0]])
    query = torch.zeros(1, 1, 5, 4)
    key = torch.zeros(1, 1, 5, 4)
    uniform = float(following_loss(query, key, followed))
    query[0, 0, 3, 0], key[0, 0, 1, 0] = 20.0, 20.0
    assert float(following_loss(query, key, followed)) < 1e-3 < uniform
