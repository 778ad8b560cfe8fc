# SPDX-License-Identifier: Apache-2.0
"""Names of saved memories never lead out of their folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.errors import MemoryFileError
from ros_kvstream.node.session import memory_file


def test_a_plain_name_is_a_file_in_the_folder(tmp_path: Path) -> None:
    assert memory_file(str(tmp_path), "tour-1.b") == tmp_path / "tour-1.b.safetensors"
    assert memory_file(str(tmp_path), "tour.safetensors") == tmp_path / "tour.safetensors"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/x", ".hidden", "a b", "a\0", "a\n", "ä", "x" * 101,
                                  "~"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MemoryFileError, match="name = "):
        memory_file(str(tmp_path), name)


@pytest.mark.parametrize(("directory", "reason"), [("", "not set"), ("/nowhere/at/all", "no such folder")])
def test_a_missing_folder_is_named(directory: str, reason: str) -> None:
    with pytest.raises(MemoryFileError, match=reason):
        memory_file(directory, "tour")


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "tour.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(MemoryFileError, match="leads out"):
        memory_file(str(tmp_path / "inside"), "tour")


@settings(deadline=None)
@given(st.text(max_size=20))
def test_no_name_whatever_gives_a_path_elsewhere(name: str) -> None:
    try:
        path = memory_file("/tmp", name)
    except MemoryFileError:
        return
    assert path.parent == Path("/tmp") and path.name not in ("", ".", "..")
