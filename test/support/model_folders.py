# SPDX-License-Identifier: Apache-2.0
"""Tiny models as folders on disk, for tests that load one as a user does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from support.tiny_models import qwen2_5_vl


def save_random_model(folder: Path) -> Path:
    """Write a random Qwen2.5-VL whose answers run to the token limit; returns the folder."""
    model = qwen2_5_vl()
    with torch.no_grad():
        for token in model.eos_ids:  # a logit of 0 never wins against twenty random ones
            model.network.lm_head.weight[token] = 0.0
    return save_model(model, folder)


def save_model(model: Any, folder: Path) -> Path:
    """Write network, tokenizer and image processor; returns the folder."""
    for part in (model.network, model.tokenizer, model.image_processor):
        part.save_pretrained(folder)
    return folder


def folder_without_weights(folder: Path) -> Path:
    """Write a small Qwen2.5-VL without weights; it loads with random ones, untrained."""
    model = qwen2_5_vl()
    for part in (model.network.config, model.tokenizer, model.image_processor):
        part.save_pretrained(folder)
    return folder
