# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from support.archives import SHAPE, make_archive, make_frame

from ros_kvstream.errors import ModelError
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.retrieval.external import external_scores, make_encoder
from ros_kvstream.retrieval.internal import internal_scores, question_queries, score_layer, without_drift
from ros_kvstream.retrieval.ranking import choose_frames, expert_scores
from ros_kvstream.settings import RetrievalSettings

HEADS = 4


@pytest.mark.parametrize("patch_pooling", ["max", "mean"])
@pytest.mark.parametrize("head_pooling", ["max", "mean"])
@pytest.mark.parametrize("mean_key", [True, False])
def test_scores_are_the_pooled_dot_products_of_query_and_keys(patch_pooling, head_pooling, mean_key):
    archive = make_archive(keep_ratio=1.0, index_keys=6, mean_key=mean_key)
    frames = [make_frame(i) for i in range(5)]
    for frame in frames:
        archive.add(frame)
    query = torch.randn(HEADS, SHAPE.head_dim, generator=torch.Generator().manual_seed(1))
    scores = score_layer(
        archive.table.index_keys[1], torch.from_numpy(archive.table.frames["index_count"].astype("int64")), query,
        mean_key=mean_key, patch_pooling=patch_pooling, head_pooling=head_pooling, chunk=2,
    )  # fmt: skip
    for frame in frames:
        keys = frame.keys[1].repeat_interleave(HEADS // SHAPE.kv_heads, 0)
        if patch_pooling == "mean" and mean_key:
            keys = keys.mean(1, keepdim=True)
        products = torch.einsum("hd,hpd->hp", query, keys) * SHAPE.head_dim**-0.5
        per_patch = products.amax(0) if head_pooling == "max" else products.mean(0)
        by_hand = per_patch.amax() if patch_pooling == "max" else per_patch.mean()
        found = scores[archive.table.slot_of(frame.frame_id)]
        torch.testing.assert_close(found, by_hand, atol=5e-3, rtol=1e-2)


def test_slots_without_a_frame_are_never_ranked():
    archive = make_archive()
    archive.add(make_frame(3))
    queries = {layer: torch.randn(HEADS, SHAPE.head_dim) for layer in SHAPE.index_layers}
    scores = internal_scores(archive, queries, RetrievalSettings())
    assert scores.isfinite().sum() == 1
    ranked = choose_frames(archive, RetrievalSettings(), None, "?", queries, np.ones_like(archive.table.frames["live"]))
    assert [frame.frame_id for frame in ranked] == [3]


def test_scores_that_drift_with_time_lose_the_drift_and_keep_what_stands_out():
    by_time = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    drifting = torch.empty(200)
    drifting[by_time] = torch.linspace(0, 50, 200)
    drifting[by_time[20]] += 5
    level = without_drift(drifting, by_time)
    assert int(drifting.argmax()) == int(by_time[199])
    assert level[by_time[16:20]].abs().max() < 1 and level[by_time[40:180]].abs().max() < 1e-3
    assert level[by_time[20]] > 4.5


def test_last_and_mean_queries():
    queries = {0: torch.arange(24.0).view(2, 3, 4)}
    assert question_queries(queries, "last")[0].equal(queries[0][:, 2])
    assert question_queries(queries, "mean")[0].equal(queries[0].mean(1))


def test_frames_whose_embedding_is_not_known_yet_are_left_to_the_other_experts():
    archive = make_archive()
    for i in range(3):
        archive.add(make_frame(i))
    archive.complete(1, embedding=np.array([1, 0, 0, 0], np.float32))
    archive.complete(2, embedding=np.array([0, 1, 0, 0], np.float32))
    scores = external_scores(archive, np.array([1, 0, 0, 0], np.float32))
    by_frame = [scores[archive.table.slot_of(i)] for i in range(3)]
    assert by_frame == [-np.inf, 1.0, 0.0]


def test_the_tiny_encoder_finds_the_frame_that_a_question_asks_for():
    encoder = make_encoder("tiny")
    right, asked = 0, 0
    for seed in range(900_000, 900_010):
        world = PatrolWorld(PatrolSettings(seed=seed, frames=48))
        pictures = np.stack([encoder.embed_image(frame.picture) for frame in world])
        for question in world.questions(6, kinds=("colour", "where", "room")):
            if question.evidence:
                best = int((pictures @ encoder.embed_text(question.text)).argmax())
                right += world.stamp(best) in question.evidence
                asked += 1
    assert asked > 30 and right / asked > 0.9


def test_a_question_without_a_known_word_ranks_nothing_by_likeness():
    assert not make_encoder("tiny").embed_text("zxqv 123 ?").any()
    archive = make_archive()
    archive.add(make_frame(0))
    encoder = make_encoder("tiny")
    assert expert_scores(archive, RetrievalSettings(), encoder, "zxqv", {}) == {}


def test_an_encoder_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(ModelError, match="retrieval.external"):
        make_encoder(str(tmp_path))
    assert make_encoder("") is None


def test_a_clip_from_a_local_folder_ranks_pictures(tmp_path):
    from PIL import Image
    from support.tiny_models import small_tokenizer
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "max_position_embeddings": 32}  # fmt: skip
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 32, "patch_size": 16}  # fmt: skip
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)).save_pretrained(tmp_path)
    small_tokenizer().save_pretrained(tmp_path)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    encoder = make_encoder(str(tmp_path))
    picture = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    assert encoder.size == 24 and encoder.picture_side == 32
    for vector in (encoder.embed_image(picture), encoder.embed_text("what colour is the cone ?")):
        assert vector.shape == (24,) and abs(float(np.linalg.norm(vector)) - 1) < 1e-5
    low = picture[:3]  # read like a picture that the library cannot mistake for channels-first
    assert np.array_equal(encoder.embed_image(low), encoder.embed_image(Image.fromarray(low)))


def test_the_imagenet_encoder_names_the_package_that_is_missing(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install efficientnet-lite-pytorch"):
        make_encoder("imagenet")
