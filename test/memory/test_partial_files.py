# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from ros_kvstream.memory.partial_files import partial_file, remove_partial_files

GONE, RUNS = 999_999_999, os.getppid()


@pytest.mark.parametrize(("name", "age", "removed"), [
    (f"m.safetensors.{GONE}.part", 100.0, True),
    (f"m.safetensors.{GONE}.part", 1.0, False),
    (f"m.safetensors.{RUNS}.part", 100.0, False),
    (f"m.safetensors.{os.getpid()}.part", 100.0, True),
    ("m.safetensors.part", 100.0, True),
    ("film.mp4.part", 100.0, False),
    ("m.safetensors", 100.0, False),
], ids=["of a process that has ended", "of another machine perhaps", "being written",
        "of an earlier process with this id", "of an earlier version", "of another program", "complete"])  # fmt: skip
def test_stale_partial_files_of_memories_are_removed(tmp_path: Path, name: str, age: float, removed: bool) -> None:
    file = tmp_path / name
    file.write_bytes(b"half")
    at = file.stat().st_mtime - age
    os.utime(file, (at, at))
    assert remove_partial_files(tmp_path) == ([name] if removed else [])
    assert file.exists() == (not removed)


def test_the_file_that_this_process_writes_is_removed_at_its_end(tmp_path: Path) -> None:
    own, other = partial_file(tmp_path / "m.safetensors"), tmp_path / f"m.safetensors.{RUNS}.part"
    for file in (own, other):
        file.write_bytes(b"half")
    assert remove_partial_files(tmp_path, own=True) == [own.name]
    assert other.exists() and remove_partial_files(tmp_path / "no folder") == []
