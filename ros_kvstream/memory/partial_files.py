# SPDX-License-Identifier: Apache-2.0
"""Memory files that are being written: their names, and the removal of those that no process will complete."""

from __future__ import annotations

import os
import time
from pathlib import Path

STALE_SECONDS = 60.0
"""A partial file whose process is not found is stale after this time: the process may be in another container."""


def partial_file(path: Path) -> Path:
    """Where the content of ``path`` is written before it is complete; the name holds the process id."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def remove_partial_files(folder: Path, own: bool = False) -> list[str]:
    """Remove stale partial files from a folder, or with ``own`` those of this process; returns the names removed."""
    removed = []
    for file in folder.glob("*.safetensors*.part"):
        try:
            process = file.name.split(".")[-2]
            mine = process == str(os.getpid())  # or of an earlier process with this id, such as in a container
            stale = (mine or not _runs(process)) and time.time() - file.stat().st_mtime > STALE_SECONDS
            if mine if own else stale:
                file.unlink()
                removed.append(file.name)
        except OSError:  # removed by another process, or not ours to remove
            continue
    return removed


def _runs(process: str) -> bool:
    return process.isdigit() and Path(f"/proc/{process}").exists()
