# SPDX-License-Identifier: Apache-2.0
"""A copy of the sources for the tests that build them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.packaging import NOT_SOURCE, ROOT


@pytest.fixture
def source_copy(tmp_path: Path) -> Path:
    """Return a copy of what the package is built from, without anything generated."""
    copy = tmp_path / "source" / "ros_kvstream"
    shutil.copytree(ROOT, copy, ignore=NOT_SOURCE)
    for folder in ("action", "msg", "srv"):
        shutil.rmtree(copy / "ros_kvstream" / folder, ignore_errors=True)
    return copy
