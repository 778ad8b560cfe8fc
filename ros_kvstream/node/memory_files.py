# SPDX-License-Identifier: Apache-2.0
"""Names of saved memories: plain names inside one folder, because any peer on the network can call the services."""

from __future__ import annotations

import re
from pathlib import Path

from ros_kvstream.errors import MemoryFileError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ENDING = ".safetensors"


def memory_file(directory: str, name: str) -> Path:
    """Path of a saved memory inside the folder ``memory.directory``.

    :raises MemoryFileError: when there is no such folder, or the name is none that stays inside it.
    """
    if not directory:
        raise MemoryFileError("memory.directory is not set: name the folder that memories are saved to, and configure.")
    folder = Path(directory).expanduser()
    if not folder.is_dir():
        raise MemoryFileError(f"memory.directory = {directory!r}: there is no such folder.")
    if not _NAME.fullmatch(name):
        raise MemoryFileError(f"name = {name[:100]!r}: must be letters, digits, '.', '_' and '-', at most 100.")
    path = folder / (name if name.endswith(ENDING) else name + ENDING)
    if path.resolve().parent != folder.resolve():
        raise MemoryFileError(f"name = {name!r}: leads out of memory.directory.")
    return path
