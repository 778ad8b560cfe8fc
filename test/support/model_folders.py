# SPDX-License-Identifier: Apache-2.0
"""Model folders on disk for tests that start the package as a user does."""

from __future__ import annotations

from pathlib import Path

from support.tiny_models import qwen2_5_vl


def folder_without_weights(folder: Path) -> Path:
    """Configuration, tokenizer and image processor of a small Qwen2.5-VL; loads with random weights, untrained."""
    model = qwen2_5_vl()
    model.network.config.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    model.image_processor.save_pretrained(folder)
    return folder
