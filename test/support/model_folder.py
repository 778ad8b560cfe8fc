# SPDX-License-Identifier: Apache-2.0
"""A random tiny model as a folder on disk, for nodes that load one."""

from __future__ import annotations

from pathlib import Path

import torch

from support.tiny_models import qwen2_5_vl


def save_random_model(folder: Path) -> Path:
    """Write a random Qwen2.5-VL whose answers run to the token limit; returns the folder."""
    model = qwen2_5_vl()
    with torch.no_grad():
        for token in model.eos_ids:  # a logit of 0 never wins against twenty random ones
            model.network.lm_head.weight[token] = 0.0
    model.network.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    model.image_processor.save_pretrained(folder)
    return folder
