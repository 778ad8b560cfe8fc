"""A small random model on disk, made once for all node tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Qwen2.5-VL: real architecture, no training, answers that run to the token limit."""
    from support.tiny_models import qwen2_5_vl

    folder = tmp_path_factory.mktemp("model")
    model = qwen2_5_vl()
    with torch.no_grad():
        for token in model.eos_ids:  # a logit of 0 never wins against twenty random ones
            model.network.lm_head.weight[token] = 0.0
    model.network.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    model.image_processor.save_pretrained(folder)
    return folder
