# SPDX-License-Identifier: Apache-2.0
"""A whole memory in one safetensors file: the state of every part, a format version and a fingerprint of the model.

Every part offers ``state_dict()``, plain values and views of its tensors, and takes them back with
``load_state_dict()``. Three things are not in the file: the block, which is prefilled before a save; the frame filter,
so that the first frame of each camera after a load is computed; and the counters of frames and questions, which belong
to the process.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ros_kvstream.errors import ArchiveError, KvStreamError, MemoryFileError
from ros_kvstream.memory.frame_index import FrameRecord
from ros_kvstream.memory.partial_files import partial_file
from ros_kvstream.retrieval.archive_retrieval import model_fingerprint
from ros_kvstream.stream.ingest import Ingest

FORMAT = "ros_kvstream memory"
VERSION = 5
"""Version of the format; files of any other version are refused."""
PIECE_BYTES = 1 << 24
"""Tensors are read in pieces of about this size, so that no second copy of the memory is made."""
_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.int16: "I16",
           torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.int64: "I64"}  # fmt: skip
"""Names of the types in a safetensors header."""


class Part(Protocol):
    """A stateful part of the memory."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-able values by name, and views of the live storage under "tensors"."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the values; the tensors have been copied."""
        ...


@dataclass(frozen=True)
class SavedMemory:
    """Size and content of a file that was written or read."""

    bytes: int
    frames: int
    """Distinct frames with slots in the arena."""


def save_memory(ingest: Ingest, path: Path) -> SavedMemory:
    """Write the memory to ``path``; an existing file is replaced only once the new one is complete on the disk.

    An archive in memory is part of the file; for one in a folder, the file holds the identity of the archive's file.

    :raises MemoryFileError: when the file cannot be written.
    """
    ingest.flush()
    if ingest.archive_retrieval is not None:
        ingest.archive_retrieval.finish()
    state: dict[str, Any] = {"fingerprint": _fingerprint(ingest), "plan": _plan(ingest.arena.plan), "archive": None}
    tensors: dict[str, Tensor] = {}
    archive = ingest.archive
    states = {name: part.state_dict() for name, part in _parts(ingest).items()}
    for name, values in (states | {"archive": archive.state_dict() if archive is not None else None}).items():
        if values is not None:
            tensors |= {f"{name}.{key}": tensor for key, tensor in values.pop("tensors", {}).items()}
            state[name] = values
    state["tensors"] = {key: [*_header(tensor), zlib.crc32(_bytes(tensor))] for key, tensor in tensors.items()}
    text = json.dumps(state)
    metadata = {"format": FORMAT, "version": str(VERSION), "state": text, "check": str(zlib.crc32(text.encode()))}
    partial = partial_file(path)
    try:
        with open(partial, "wb") as file:
            _write(file, tensors, metadata)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        return SavedMemory(path.stat().st_size, len(ingest.arena.frames_kept()))
    except OSError as error:
        raise MemoryFileError(f"memory file {path.name!r} cannot be written: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)


def load_memory(ingest: Ingest, path: Path) -> SavedMemory:
    """Replace the memory's content by that of a file; everything is checked before the first slot is changed.

    :raises MemoryFileError: when the file is missing, damaged, of another version, model or other settings; the memory
        is unchanged then.
    """
    try:
        with safe_open(path, framework="pt") as file:
            state = _read_state(file.metadata() or {})
            _check_model_and_plan(ingest, state)
            _check_tensors(file, state["tensors"])
            _check_archive(ingest, state)
            _adopt_sizes(ingest, state)
            _restore(ingest, file, state)
        return SavedMemory(path.stat().st_size, len(ingest.arena.frames_kept()))
    except FileNotFoundError as error:
        raise MemoryFileError(f"memory file {path.name!r} does not exist.") from error
    except MemoryFileError as error:
        raise MemoryFileError(f"memory file {path.name!r} {error}") from error
    except (SafetensorError, OSError) as error:
        raise MemoryFileError(f"memory file {path.name!r} is damaged or no memory file: {error}.") from error


# -- parts ----------------------------------------------------------------------------------------------------------


def _parts(ingest: Ingest) -> dict[str, Part]:
    """The parts in the file beside the archive."""
    return {
        "arena": ingest.arena,
        "positions": ingest.positions,
        "clock": ingest.clock,
        "frame_index": ingest.frame_index,
        "frame_sizes": ingest,
    }


def _fingerprint(ingest: Ingest) -> str:
    shape = ingest.model.shape
    return f"{model_fingerprint(ingest.model)} {shape.layers}x{shape.kv_heads}x{shape.head_dim} {shape.dtype}"


def _plan(plan: Any) -> dict[str, Any]:
    """The values of a plan, which decide the shapes of the arena's tensors."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(plan), default=str))
    return values


# -- checks ---------------------------------------------------------------------------------------------------------


def _read_state(metadata: Mapping[str, str]) -> dict[str, Any]:
    if metadata.get("format") != FORMAT:
        raise MemoryFileError("was not written by ros_kvstream.")
    version = metadata.get("version", "")
    if version.isdigit() and int(version) < VERSION:
        raise MemoryFileError(
            f"was saved with an older version of this package (format {version}; this one reads {VERSION}) and cannot "
            "be converted: start a new memory."
        )
    if version != str(VERSION):
        raise MemoryFileError(f"is of format version {version!r}; this package reads {VERSION}. Update ros_kvstream.")
    text = metadata.get("state", "")
    if metadata.get("check") != str(zlib.crc32(text.encode())):
        raise MemoryFileError("is damaged: its state is not what was written.")
    state: dict[str, Any] = json.loads(text)
    return state


def _check_model_and_plan(ingest: Ingest, state: dict[str, Any]) -> None:
    """Refuse a file of another model, or of settings that lead to another plan of the arena."""
    if state["fingerprint"] != _fingerprint(ingest):
        raise MemoryFileError(f"is of another model ({state['fingerprint']}); this one is {_fingerprint(ingest)}.")
    saved, sizes = state["plan"], state["frame_sizes"]
    remedy = (f"Set memory.budget_mib to {saved['budget_bytes'] / 2**20:g} and memory.*, quantized.* and retrieval.* "
              "as they were.")  # fmt: skip
    try:
        now = _plan(ingest.plan_for_frames(sizes["first_frame"], sizes["largest_frame"]))
    except KvStreamError as error:
        raise MemoryFileError(f"was saved with other settings: {error} {remedy}") from error
    names = [name for name in saved | now if saved.get(name) != now.get(name) and name != "budget_bytes"]
    if names:
        differing = ", ".join(f"{name} {saved.get(name)} (now {now.get(name)})" for name in names)
        raise MemoryFileError(f"was saved with other settings: {differing}. {remedy}")


def _check_tensors(file: Any, saved: dict[str, list[Any]]) -> None:
    """Read every tensor once and compare it with its checksum, so that a damaged file is never loaded in part."""
    for name, (dtype, shape, check) in saved.items():
        try:
            found, crc = file.get_slice(name), 0
            intact = [found.get_dtype(), found.get_shape()] == [dtype, shape]
            for _, piece in _pieces(found) if intact else ():
                crc = zlib.crc32(_bytes(piece), crc)
        except SafetensorError as error:
            raise MemoryFileError(f"is damaged: {error}.") from error
        if not intact or crc != check:
            raise MemoryFileError(f"is damaged: {name} is not what was written.")


def _check_archive(ingest: Ingest, state: dict[str, Any]) -> None:
    """Refuse a file whose archive does not fit; an archive that is not allocated yet is prepared for the check."""
    saved = state["archive"]
    if ingest.archive_retrieval is not None:
        ingest.archive_retrieval.prepare(state["frame_sizes"]["first_frame"])
    archive = ingest.archive
    if saved is None:
        return
    if archive is None:
        raise MemoryFileError("does not fit: it was saved with an archive, and there is none now. "
                              "Set archive.* and retrieval.* as they were when it was saved.")  # fmt: skip
    try:
        archive.check_state(saved)
    except ArchiveError as error:
        raise MemoryFileError(f"does not fit: {error}") from error


def _adopt_sizes(ingest: Ingest, state: dict[str, Any]) -> None:
    """Resize the arena for the saved frames where that is due, and compare its tensors with those of the file."""
    sizes = state["frame_sizes"]
    if sizes["largest_frame"] > ingest.largest_frame:
        ingest.adopt_frame_sizes(sizes["first_frame"], sizes["largest_frame"])
    for name, tensor in ingest.arena.state_dict()["tensors"].items():
        if state["tensors"].get(f"arena.{name}", [])[:2] != [*_header(tensor)]:
            raise MemoryFileError(f"is damaged: arena.{name} has another type or shape.")


# -- reading and writing --------------------------------------------------------------------------------------------


def _restore(ingest: Ingest, file: Any, state: dict[str, Any]) -> None:
    """Empty the memory, copy the tensors into its own, and hand every part its values."""
    saved = state["archive"]
    records = [FrameRecord.from_dict(record) for record in state["frame_index"]["records"]]
    ingest.frame_index.clear()
    if ingest.archive_retrieval is not None:
        ingest.archive_retrieval.empty_for(records)
    ingest.restart()
    for name, part in _parts(ingest).items():
        _copy(file, name, part.state_dict().get("tensors", {}))
        part.load_state_dict(state[name])
    archive = ingest.archive
    if archive is not None and saved is not None:
        _copy(file, "archive", archive.state_tensors(saved))
        archive.load_state_dict(saved)


def _copy(file: Any, part: str, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        for rows, piece in _pieces(file.get_slice(f"{part}.{name}")):
            tensor[rows].copy_(piece)


def _pieces(found: Any) -> Iterator[tuple[slice, Tensor]]:
    """A tensor of the file piece by piece, along its first axis."""
    count = found.get_shape()[0]
    row_bytes = found[:1].numel() * found[:1].element_size() if count else 1
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        yield rows, found[rows]


def _header(tensor: Tensor) -> tuple[str, list[int]]:
    return _DTYPES[tensor.dtype], list(tensor.shape)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _write(file: Any, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file tensor by tensor, so that no second copy of the memory is made."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype, shape = _header(tensor)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor in tensors.values():
        file.write(_bytes(tensor))
