# SPDX-License-Identifier: Apache-2.0
"""A training that was stopped goes on as if it had not been, and what it writes loads by the ordinary ways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from ros_kvstream.models.loading import load_model
from ros_kvstream.settings import ModelSettings
from training import train
from training.batch import ChatLayout, frame_times, positions
from training.checkpoint_files import make_tokenizer
from training.settings import Stage, TrainingSettings

SHORT = replace(TrainingSettings(), steps=6, warm_up=2, sight_steps=2)



@pytest.fixture(autouse=True)
def small_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "STAGES", (Stage(3, 1, 2, 3), Stage(6, 2, 2, 3)))


def steps(trainer: train.Trainer, count: int) -> dict[str, torch.Tensor]:
    for _ in range(count):
        trainer.step()
    return trainer.model.state_dict()


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "halves").mkdir()
    whole = steps(train.Trainer(SHORT, tmp_path / "whole"), 6)
    first = train.Trainer(SHORT, tmp_path / "halves")
    steps(first, 3)
    first.save()
    second = train.Trainer(SHORT, tmp_path / "halves")
    assert second.progress.step == 3
    halves = steps(second, 3)
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_training_writes_a_log_a_checkpoint_and_a_folder_that_loads(tmp_path: Path) -> None:
    folders = ["--run", str(tmp_path / "run"), "--export", str(tmp_path / "tiny")]
    train.main([*folders, "--steps", "50", "--warm-up", "5", "--sight-steps", "2"])
    assert "step 50" in (tmp_path / "run" / "log.txt").read_text()
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    network = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "tiny")
    assert network.lm_head.weight is network.model.language_model.embed_tokens.weight
    assert (tmp_path / "tiny" / "model.safetensors").stat().st_size <= 12 * 2**20
    model = load_model(ModelSettings(path=str(tmp_path / "tiny"), device="cpu"))
    layout = ChatLayout(AutoTokenizer.from_pretrained(tmp_path / "tiny"))
    assert list(model.prefix_ids) == layout.prefix
    assert list(model.suffix_ids("What colour was the cone?")) == layout.suffix("what colour was the cone?")
    assert model.grid(224, 224) == (2, 2)
    times = frame_times(np.array([5.0, 5.6, 9.0]))
    placed, start = positions(times, len(layout.prefix), 0)
    ours = [model.frame_positions(int(placed[0, 3 + 4 * frame]), 2, 2) for frame in range(3)]
    assert torch.equal(torch.cat(ours).long(), torch.from_numpy(placed[:, 3:]).T)
    assert model.layout.after(int(placed[0, -1]), 2) == start


def test_unknown_words_become_one_token_and_spelling_and_case_do_not_matter() -> None:
    layout = ChatLayout(make_tokenizer())
    unknown = layout.tokenizer.unk_token_id
    assert layout.suffix("where was the quux?").count(unknown) == 1
    assert unknown not in layout.suffix("What Color was the KITE?")
