"""A whole memory in one file: arena, slot table, archive, frames and clock, as safetensors, written atomically."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ros_kvstream.errors import ArchiveError, MemoryFileError
from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.archive.snapshot import (
    check_snapshot,
    restore_state,
    snapshot_state,
    snapshot_tensors,
)
from ros_kvstream.memory.frame_index import FrameRecord

if TYPE_CHECKING:
    from ros_kvstream.stream.memory import VideoMemory

FORMAT = "ros_kvstream memory"
VERSION = 2
"""Written into each file; a file of a higher version is refused. 1 had no archive in it."""
PIECE_BYTES = 1 << 24
"""Tensors are read back in pieces of about this size, so that no second copy of an archive is made."""
_OWN = ("_first_frame", "_largest_frame", "_largest_side", "_newest_of")
"""What the stream itself remembers of its frames; all else follows from settings."""
_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.int16: "I16",
           torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.int64: "I64"}  # fmt: skip
"""Names of the types in a safetensors header."""


@dataclass(frozen=True)
class SavedMemory:
    """What was written or read."""

    bytes: int
    frames: int
    """Distinct frames with slots in the arena."""


def save_memory(memory: VideoMemory, path: Path) -> SavedMemory:
    """Write the memory to ``path``; a file of that name is replaced only once the new one is complete on the disk.

    An archive in memory is part of the file; one in a folder is referred to (see memory/archive_snapshot.py).

    :raises MemoryFileError: when the file cannot be written.
    """
    memory._flush()
    if memory.archive_retrieval is not None:
        memory.archive_retrieval.finish()
    state = _state(memory)
    tensors = dict(_tensors(memory, state))
    state |= {"checks": {name: _check(tensor) for name, tensor in tensors.items()}}
    partial = path.with_name(path.name + ".part")
    try:
        with open(partial, "wb") as file:
            _write(file, tensors, {"format": FORMAT, "version": str(VERSION), "state": json.dumps(state)})
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        return SavedMemory(path.stat().st_size, len(memory.arena.frames_kept()))
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise MemoryFileError(f"memory file {path.name!r} cannot be written: {error.strerror}.") from error


def load_memory(memory: VideoMemory, path: Path) -> SavedMemory:
    """Replace the memory's content by that of a file; everything is checked before the first slot is touched.

    :raises MemoryFileError: when the file is missing, torn, foreign, newer, or of another model or other settings; the
        memory is unchanged then.
    """
    try:
        with safe_open(path, framework="pt") as file:
            state = _checked_state(file.metadata() or {}, path.name)
            _plan_as_saved(memory, state)
            _check_fit(memory, state, path.name)
            _check_tensors(memory, file, state, path.name)
            _restore(memory, file, state)
        return SavedMemory(path.stat().st_size, len(memory.arena.frames_kept()))
    except FileNotFoundError as error:
        raise MemoryFileError(f"memory file {path.name!r} does not exist.") from error
    except (SafetensorError, OSError) as error:
        raise MemoryFileError(f"memory file {path.name!r} is damaged or no memory file: {error}.") from error


# -- what a memory is made of ---------------------------------------------------------------------------------------


def _tensors(memory: VideoMemory, state: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """All tensors that the content lies in, by name: the arena's whole, the archive's as far as they are in use."""
    yield from memory.arena.state_dict()["tensors"].items()
    yield from snapshot_tensors(_archive(memory), state.get("archive"))


def _archive(memory: VideoMemory) -> Archive | None:
    return memory.archive_retrieval.archive if memory.archive_retrieval is not None else None


def _plain(thing: object) -> dict[str, Any]:
    """The plain values among an object's attributes: counters, positions, flags and dictionaries of them."""
    return {name: value for name, value in vars(thing).items()
            if value is None or isinstance(value, (bool, int, float))
            or (isinstance(value, dict) and all(isinstance(item, (int, float)) for item in value.values()))}


def _state(memory: VideoMemory) -> dict[str, Any]:
    """Everything beside the tensors, as JSON can hold it."""
    archive = _archive(memory)
    return {
        "archive": snapshot_state(archive) if archive is not None else None,
        "fingerprint": _fingerprint(memory),
        "plan": _plain(memory.arena.plan),
        "policy": memory.settings.memory.policy,
        "arena": {name: value for name, value in memory.arena.state_dict().items() if name != "tensors"},
        "positions": memory.positions.state_dict(),
        "memory": {name: getattr(memory, name) for name in _OWN},
        "frame_index": memory.frame_index.state_dict(),
    }


def _fingerprint(memory: VideoMemory) -> str:
    """The model and its weights, told by its shape and by what it makes of its own prompt."""
    model = memory.model
    vectors = model.embed(model.prefix_ids).float().cpu().contiguous()
    shape = model.shape
    return (f"{model.family} {shape.layers}x{shape.kv_heads}x{shape.head_dim} {shape.dtype} "
            f"{zlib.crc32(vectors.numpy().tobytes()):08x}")


# -- checking -------------------------------------------------------------------------------------------------------


def _checked_state(metadata: dict[str, str], name: str) -> dict[str, Any]:
    if metadata.get("format") != FORMAT:
        raise MemoryFileError(f"memory file {name!r} was not written by ros_kvstream.")
    version = metadata.get("version", "")
    if not version.isdigit() or int(version) > VERSION:
        raise MemoryFileError(f"memory file {name!r} is of version {version!r}; this package reads up to {VERSION}. "
                              "Update ros_kvstream.")
    try:
        state: dict[str, Any] = json.loads(metadata["state"])
    except (KeyError, ValueError) as error:
        raise MemoryFileError(f"memory file {name!r} is damaged: {error}.") from error
    return state


def _check_fit(memory: VideoMemory, state: dict[str, Any], name: str) -> None:
    """Refuse a file of another model, or one that was saved under settings which give other tensors."""
    if state["fingerprint"] != _fingerprint(memory):
        raise MemoryFileError(f"memory file {name!r} is of another model ({state['fingerprint']}); this one is "
                              f"{_fingerprint(memory)}.")
    plan = _plain(memory.arena.plan)
    # What a file of an older version does not name is as by default.
    saved = {key: state["plan"].get(key, getattr(type(memory.arena.plan), key, None)) for key in plan}
    differing = [f"{key} {saved[key]} (now {value})" for key, value in plan.items()
                 if saved[key] != value and key != "budget_bytes"]
    if differing:
        raise MemoryFileError(
            f"memory file {name!r} was saved with other settings: {', '.join(differing)}. Set memory.budget_mib to "
            f"{state['plan']['budget_bytes'] / 2**20:g} and memory.*, ladder.* and retrieval.* as they were.")
    try:
        check_snapshot(_archive(memory), state.get("archive"))
    except ArchiveError as error:
        raise MemoryFileError(f"memory file {name!r} does not fit: {error}") from error


def _plan_as_saved(memory: VideoMemory, state: dict[str, Any]) -> None:
    """Let an empty memory plan for frames of the saved size, which decides how much room retrieved frames get."""
    largest = state["memory"]["_largest_frame"]
    for tokens in (state["memory"].get("_first_frame", largest), largest):  # the first one decides
        if tokens > memory._largest_frame:
            memory._plan_room(tokens)
            memory._largest_frame = tokens


def _check_tensors(memory: VideoMemory, file: Any, state: dict[str, Any], name: str) -> None:
    """Read every tensor once and compare it with its check sum: a damaged file must not be half loaded."""
    for key, tensor in _tensors(memory, state):
        try:
            found, check = file.get_slice(key), 0
            fits = (found.get_shape(), found.get_dtype()) == (list(tensor.shape), _DTYPES[tensor.dtype])
            for _, piece in _pieces(found, tensor) if fits else ():
                check = zlib.crc32(_bytes(piece), check)
        except SafetensorError as error:
            raise MemoryFileError(f"memory file {name!r} is damaged: {error}.") from error
        if not fits or check != state["checks"].get(key):
            raise MemoryFileError(f"memory file {name!r} is damaged: {key} is not what was written.")


def _pieces(found: Any, tensor: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """A tensor of the file piece by piece, along its first axis."""
    rows = max(1, PIECE_BYTES // max(1, tensor[:1].numel() * tensor.element_size()))
    for start in range(0, len(tensor), rows):
        piece = slice(start, min(start + rows, len(tensor)))
        yield piece, found[piece]


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _check(tensor: Tensor) -> int:
    return zlib.crc32(_bytes(tensor))


# -- moving ---------------------------------------------------------------------------------------------------------


def _write(file: Any, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file tensor by tensor, so that no second copy of the memory is made."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor in tensors.values():
        file.write(_bytes(tensor))


def _restore(memory: VideoMemory, file: Any, state: dict[str, Any]) -> None:
    records = {record["frame_id"]: FrameRecord(**record) for record in state["frame_index"]["records"]}
    memory.frame_index.clear()
    if memory.archive_retrieval is not None:
        memory.archive_retrieval.empty(records.values())
    memory._start()
    for name, tensor in _tensors(memory, state):
        found = file.get_slice(name)
        for piece, values in _pieces(found, tensor):
            tensor[piece].copy_(values)
    archive, archived = _archive(memory), state.get("archive")
    if archive is not None and archived is not None and archived["kind"] == "memory":
        restore_state(archive, archived)
    memory.arena.load_state_dict(state["arena"])
    memory.positions.load_state_dict(state["positions"])
    memory.frame_index.load_state_dict(state["frame_index"])
    _set_plain(memory, state["memory"])


def _set_plain(target: object, values: dict[str, Any]) -> None:
    """Set those attributes that are there and do not follow from settings, with number keys as numbers again."""
    for name, value in values.items():
        if name not in vars(target):
            continue
        now = vars(target)[name]
        if isinstance(value, dict) and isinstance(now, dict) and now and all(isinstance(key, int) for key in now):
            value = {int(key): item for key, item in value.items()}
        setattr(target, name, value)
