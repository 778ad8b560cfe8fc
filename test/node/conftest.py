# SPDX-License-Identifier: Apache-2.0
"""A small random model on disk, made once for all node tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Qwen2.5-VL: real architecture, no training, answers that run to the token limit."""
    from support.model_folders import save_random_model

    return save_random_model(tmp_path_factory.mktemp("model"))
