"""An archive as part of a saved memory: one in host memory is written whole, one in a folder is referred to.

A file in a folder already is what survives, may be larger than is copied while a robot waits, and goes on growing after
the memory was saved. So its reference is the file's own identity: what was archived since then stays in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.errors import ArchiveError
from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.frame_index import FrameRecord

_TABLE = ("evicted", "_next_sequence", "_slots_free", "_rows_free")
_SELECTOR = ("_seen", "_grids", "_owners", "_turn", "_history_length")


def snapshot_state(archive: Archive) -> dict[str, Any] | None:
    """Everything beside the tensors, as JSON can hold it; None for a folder that has failed and holds nothing."""
    table, plan = archive.table, archive.plan
    if plan.on_disk:
        return {"kind": "folder", "identity": archive.identity} if archive.identity else None
    live = np.flatnonzero(table.frames["live"])
    used = [table.rows[slot, : int(table.frames["patches"][slot])].max() for slot in live]
    return {
        "kind": "memory",
        "plan": _layout(archive),
        "frames_end": int(live.max()) + 1 if live.size else 0,
        "rows_end": int(max(used)) + 1 if used else 0,
        "camera_names": table.camera_names,
        "table": {name: getattr(table, name) for name in _TABLE},
        "selector": {name: getattr(archive._selector, name) for name in _SELECTOR},
    }


def snapshot_tensors(archive: Archive | None, state: dict[str, Any] | None) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a state belongs to, by name: views of the archive's own, up to the last frame and patch held."""
    if archive is None or state is None or state["kind"] != "memory":
        return
    table, selector = archive.table, archive._selector
    frames, rows = slice(0, state["frames_end"]), slice(0, state["rows_end"])
    yield "archive.frames", _bytes_of(table.frames)[frames]
    yield "archive.rows", torch.from_numpy(table.rows)[frames]
    for index, plane in enumerate(table.index_keys):
        yield f"archive.index_keys.{index}", plane[frames]
    yield "archive.embeddings", table.embeddings[frames]
    yield "archive.patches", archive._patches[rows]
    yield "archive.thumbnails", torch.from_numpy(archive._thumbnails)[frames]
    yield "archive.free_slots", torch.from_numpy(table._free_slots)
    yield "archive.free_rows", torch.from_numpy(table._free_rows)
    yield "archive.before", selector._before
    yield "archive.history", selector._history


def check_snapshot(archive: Archive | None, state: dict[str, Any] | None) -> None:
    """Raise ArchiveError when a saved archive does not fit to this one."""
    if state is None:
        return
    settings = "Set archive.* and retrieval.* as they were when it was saved"
    if archive is None or archive.plan.on_disk != (state["kind"] == "folder"):
        now = "there is none now" if archive is None else f"it is in {archive.plan.settings.path!r} now"
        raise ArchiveError(f"its archive was in {'a folder' if state['kind'] == 'folder' else 'memory'}, {now}. "
                           f"{settings}.")
    if state["kind"] == "folder":
        if archive.identity and state["identity"] != archive.identity:  # one that has failed is reported elsewhere
            raise ArchiveError(f"its archive is another one than that in archive.path = "
                               f"{archive.plan.settings.path!r}. {settings}.")
        return
    differing = [f"{name} {state['plan'].get(name)} (now {value})" for name, value in _layout(archive).items()
                 if state["plan"].get(name) != value]
    if differing:
        raise ArchiveError(f"its archive was of other settings: {', '.join(differing)}. {settings}.")


def empty_for(archive: Archive, records: Iterable[FrameRecord]) -> None:
    """Make an archive ready for a memory that is loaded: one in host memory is emptied, one in a folder is not.

    In a folder only frames go whose numbers the loaded memory gives to other frames (``records``).
    """
    if not archive.plan.on_disk:
        archive.clear()
        return
    wrong = []
    for record in records:
        slot = archive.table.slot_of(record.frame_id)
        if slot is not None and float(archive.table.frames["stamp"][slot]) != record.stamp:
            wrong.append(record.frame_id)
    archive.forget(wrong)


def restore_state(archive: Archive, state: dict[str, Any]) -> None:
    """Take over a state of kind "memory", after its tensors were copied."""
    for target, part in ((archive.table, "table"), (archive._selector, "selector")):
        for name, value in state[part].items():
            setattr(target, name, value)
    archive.table.camera_names = list(state["camera_names"])
    archive._selector._grids = [(rows, columns) for rows, columns in state["selector"]["_grids"]]


def _layout(archive: Archive) -> dict[str, Any]:
    """What two archives must have in common, so that one can take over the other's tensors."""
    plan = archive.plan
    return {
        "frames": plan.frames, "patches": plan.rows, "patch bytes": plan.codec.row_bytes,
        "archive.precision": plan.settings.precision, "retrieval.layers": list(plan.shape.index_layers),
        "archive.frame_patches": plan.shape.patches, "look-up keys": plan.index_count,
        "archive.mean_key": plan.settings.mean_key, "archive.compare_frames": plan.settings.compare_frames,
        "archive.thumbnail_bytes": plan.settings.thumbnail_bytes, "external embedding": plan.shape.embedding,
    }  # fmt: skip


def _bytes_of(records: NDArray[np.void]) -> Tensor:
    """A view of records as uint8 [records, bytes]."""
    return torch.from_numpy(records.view(np.uint8).reshape(len(records), records.dtype.itemsize))
