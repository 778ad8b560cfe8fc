# SPDX-License-Identifier: Apache-2.0
"""A model folder, made once for all tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_folders import folder_without_weights


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model without weights: random values from its seed."""
    return folder_without_weights(tmp_path_factory.mktemp("model"))
