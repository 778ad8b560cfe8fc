# SPDX-License-Identifier: Apache-2.0
"""A saved memory comes back slot for slot, and a file that does not fit is refused without a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.archives import frame_pose
from support.arenas import contents, same
from support.tiny_models import qwen2_5_vl

from ros_kvstream.errors import FrameError, MemoryFileError
from ros_kvstream.models.packed_weights import pack_weights
from ros_kvstream.retrieval.archive_retrieval import model_fingerprint
from ros_kvstream.settings import (
    ArchiveSettings,
    GateSettings,
    MemorySettings,
    QuantizedSettings,
    RetrievalSettings,
    StreamSettings,
)
from ros_kvstream.stream import checkpoint
from ros_kvstream.stream.memory import VideoMemory

MODEL = qwen2_5_vl()
QUESTION = "what colour is the cone ?"


def make(model: Any = MODEL, budget: float = 0.5, block: int = 1, **groups: Any) -> VideoMemory:
    memory = MemorySettings(budget_mib=budget, policy="recent", max_question_tokens=16, max_answer_tokens=8,
                            block_frames=block)  # fmt: skip
    return VideoMemory(StreamSettings(memory=memory, gate=GateSettings(mode="off"), **groups), model)


def watch(memory: VideoMemory, first: int, last: int) -> None:
    """Show it pictures, two cameras in turn, half a second apart."""
    for number in range(first, last):
        pixels = np.random.default_rng(number).integers(0, 256, (56, 84, 3), dtype=np.uint8)
        memory.observe(pixels, 100.0 + number / 2, ("front", "rear")[number % 2], frame_pose(number / 7))


def everything(memory: VideoMemory) -> tuple[Any, ...]:
    answer = memory.ask(QUESTION, max_new_tokens=8)
    return answer.text, answer.evidence, answer.asked_at


def archived(memory: VideoMemory) -> list[tuple[Any, ...]]:
    """All that the archive holds, frame by frame."""
    if memory.archive_retrieval is None or memory.archive_retrieval.archive is None:
        return []
    archive = memory.archive_retrieval.archive
    frames = archive.fetch([int(slot) for slot in np.flatnonzero(archive.table.frames["live"])])
    return sorted((frame.frame_id, frame.stamp, frame.stamp_end, frame.camera, frame.content.sum().item(),
                   archive.thumbnail(frame.frame_id), repr(frame.pose), repr(frame.base_end))
                  for frame in frames)  # fmt: skip


QUANTIZED = {"quantized": QuantizedSettings(mode="on", group=16)}
ARCHIVE = {"archive": ArchiveSettings(budget_mib=0.5)}
SMALL_ARCHIVE = {"archive": ArchiveSettings(budget_mib=0.15, precision="int8", thumbnail_bytes=600),
                 "retrieval": RetrievalSettings(top_k=3)}  # fmt: skip


@pytest.mark.parametrize("groups", [{}, QUANTIZED, ARCHIVE, SMALL_ARCHIVE],
                         ids=["plain", "quantized", "archive", "int8"])  # fmt: skip
@pytest.mark.parametrize("frames", [1, 7, 150], ids=["one", "few", "full"])
def test_a_memory_comes_back_slot_for_slot_and_goes_on_as_if_nothing_had_happened(
        tmp_path: Path, groups: dict[str, Any], frames: int) -> None:
    first, second = make(**groups), make(**groups)
    watch(first, 0, frames)
    saved = first.save(tmp_path / "m")
    watch(second, 200, 200 + min(frames, 30))
    loaded = second.load(tmp_path / "m")
    assert saved == loaded and saved.frames == len(first.arena.frames_kept()) > 0
    assert saved.bytes == (tmp_path / "m").stat().st_size
    for name in ("used_bytes", "slots_used", "frames_remembered", "oldest_stamp", "newest_stamp", "allocated_bytes"):
        assert getattr(first.stats(), name) == getattr(second.stats(), name), name
    one, other = (memory.arena.state_dict()["tensors"] for memory in (first, second))
    assert one.keys() == other.keys() and same(list(one.values()), list(other.values()))
    assert archived(first) == archived(second)
    assert everything(first) == everything(second)
    watch(first, frames, frames + 60)
    watch(second, frames, frames + 60)
    assert archived(first) == archived(second)
    assert everything(first) == everything(second)
    assert same(contents(first.arena), contents(second.arena)) or groups


def test_the_file_holds_of_an_archive_only_what_is_in_use(tmp_path: Path) -> None:
    memory, empty = make(**ARCHIVE), make()
    for one, name in ((memory, "archive"), (empty, "plain")):
        watch(one, 0, 3)
        one.save(tmp_path / name)
    held = (tmp_path / "archive").stat().st_size - (tmp_path / "plain").stat().st_size
    assert memory.archive_retrieval and memory.archive_retrieval.archive
    assert held < memory.archive_retrieval.archive.allocated_bytes / 2


def test_frames_larger_than_the_first_do_not_keep_a_memory_with_an_archive_from_being_loaded(tmp_path: Path) -> None:
    first, second = make(**ARCHIVE), make(**ARCHIVE)
    first.observe(np.zeros((28, 56, 3), np.uint8), 99.0)
    watch(first, 0, 5)
    first.save(tmp_path / "m")
    second.load(tmp_path / "m")
    assert everything(first) == everything(second)


def test_a_damaged_archive_in_the_file_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    memory = make(**ARCHIVE)
    watch(memory, 0, 10)
    memory.save(tmp_path / "m")
    watch(memory, 10, 20)
    before, answer = archived(memory), everything(memory)
    spoil_tensor("archive.patches")(tmp_path / "m")
    with pytest.raises(MemoryFileError, match="archive.patches is not what was written"):
        memory.load(tmp_path / "m")
    assert before == archived(memory) and answer == everything(memory)


# -- an archive in a folder ------------------------------------------------------------------------------------------


def in_folder(folder: Path, name: str = "archive") -> dict[str, Any]:
    return {"archive": ArchiveSettings(budget_mib=1.0, path=str(folder / name), queue_frames=64)}


def test_an_archive_in_a_folder_goes_on_after_a_restart_with_what_came_after_the_save(tmp_path: Path) -> None:
    first = make(**in_folder(tmp_path))
    watch(first, 0, 10)
    first.save(tmp_path / "m")
    watch(first, 10, 20)
    held = archived(first)
    first.close()
    second = make(**in_folder(tmp_path))
    second.load(tmp_path / "m")
    assert archived(second) == held and len(held) == 20 and second.stats().newest_stamp == 104.5
    watch(second, 20, 25)
    assert len(archived(second)) == 25 and second.frame_index.next_id == 25
    assert second.ask(QUESTION).evidence
    second.close()


def test_an_archive_in_a_folder_is_neither_emptied_nor_rewound_by_a_load(tmp_path: Path) -> None:
    memory = make(**in_folder(tmp_path))
    watch(memory, 0, 10)
    memory.save(tmp_path / "m")
    watch(memory, 10, 20)
    held = archived(memory)
    memory.load(tmp_path / "m")
    assert archived(memory) == held
    memory.clear()
    memory.load(tmp_path / "m")
    assert not archived(memory) and memory.stats().frames_remembered == 10
    memory.close()


def test_archived_frames_whose_numbers_the_loaded_memory_gives_to_others_are_forgotten_on_disk_too(
        tmp_path: Path) -> None:
    first = make(**in_folder(tmp_path))
    watch(first, 0, 10)
    first.save(tmp_path / "m")
    first.clear()
    first.close()
    second = make(**in_folder(tmp_path))
    watch(second, 50, 55)  # numbers 0 to 4 once more
    second.load(tmp_path / "m")
    assert not archived(second)
    watch(second, 60, 62)
    assert [frame for frame, *_ in archived(second)] == [10, 11]
    second.close()
    third = make(**in_folder(tmp_path))
    watch(third, 70, 71)
    assert [frame for frame, *_ in archived(third)] == [10, 11, 12]
    third.close()


@pytest.mark.parametrize(("saved_with", "loaded_with", "reason"), [
    ("first", "other", "another one than that in archive.path"),
    ("first", None, "there is none now|saved with other settings"),
    ("first", "memory", "was in a folder, it is in 'memory' now"),
    ("memory", "first", "was in memory, it is in"),
])
def test_a_file_whose_archive_is_elsewhere_is_refused_with_the_reason(
        tmp_path: Path, saved_with: str, loaded_with: str | None, reason: str) -> None:
    def made(place: str | None) -> VideoMemory:
        return make(**({} if place is None else ARCHIVE if place == "memory" else in_folder(tmp_path, place)))

    first, second = made(saved_with), made(loaded_with)
    for memory in (first, second):
        watch(memory, 0, 5)
    first.save(tmp_path / "m")
    before, held = everything(second), archived(second)
    with pytest.raises(MemoryFileError, match=reason):
        second.load(tmp_path / "m")
    assert before == everything(second) and held == archived(second)
    first.close()
    second.close()


def test_a_load_keeps_the_frame_counters_and_computes_the_next_frame_of_every_camera(tmp_path: Path) -> None:
    memory = VideoMemory(StreamSettings(memory=MemorySettings(budget_mib=0.5, max_question_tokens=16)), MODEL)
    still = np.zeros((56, 84, 3), np.uint8)
    assert [memory.observe(still, stamp).kept for stamp in (0.0, 0.1, 0.2)] == [True, False, False]
    memory.save(tmp_path / "m")
    assert not memory.observe(still, 0.3).kept
    memory.load(tmp_path / "m")
    stats = memory.stats()
    assert (stats.frames_seen, stats.frames_kept, stats.frames_gated) == (4, 1, 3)
    assert stats.newest_stamp == 0.2 and memory.observe(still, 0.3).kept


def test_a_half_filled_block_is_saved_too(tmp_path: Path) -> None:
    first, second = make(block=4), make(block=4)
    watch(first, 0, 6)
    assert first.save(tmp_path / "m").frames == 6
    second.load(tmp_path / "m")
    assert everything(first) == everything(second)


def spoil_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 10)


def spoil_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-len(data) // 3] ^= 4
    path.write_bytes(data)


def spoil_tensor(name: str) -> Any:
    def spoil(path: Path) -> None:
        data = bytearray(path.read_bytes())
        size = int.from_bytes(data[:8], "little")
        start, _ = json.loads(data[8 : 8 + size])[name]["data_offsets"]
        data[8 + size + start] ^= 1
        path.write_bytes(data)

    return spoil


def spoil_state(path: Path) -> None:
    """Change one digit of the saved positions."""

    def edit(metadata: dict[str, str]) -> None:
        before = '"newest": '
        start = metadata["state"].index(before) + len(before)
        digit = str((int(metadata["state"][start]) + 1) % 10)
        metadata["state"] = metadata["state"][:start] + digit + metadata["state"][start + 1 :]

    rewrite(path, edit)


def rewrite(path: Path, edit: Callable[[dict[str, str]], None]) -> None:
    """Edit a file's metadata."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    edit(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def change(field: str, value: str) -> Any:
    return lambda path: rewrite(path, lambda metadata: metadata.update({field: value}))


@pytest.mark.parametrize(("spoil", "reason"), [
    (spoil_end, "damaged or no memory file"),
    (spoil_bit, "damaged"),
    (lambda path: path.write_bytes(b"hello"), "damaged or no memory file"),
    (lambda path: path.write_bytes(b""), "damaged or no memory file"),
    (lambda path: path.unlink(), "does not exist"),
    (change("format", "pt"), "not written by ros_kvstream"),
    (change("version", str(checkpoint.VERSION + 1)), "Update ros_kvstream"),
    (change("version", "latest"), "version 'latest'"),
    (change("version", "1"), "older version of this package.*start a new memory"),
    (change("version", "2"), "older version of this package.*start a new memory"),
    (change("state", "{"), "damaged"),
    (spoil_state, "damaged"),
], ids="torn bit text empty missing foreign newer version 1 2 state digit".split())  # fmt: skip
def test_a_file_that_is_not_whole_or_not_ours_is_refused_and_nothing_changes(
        tmp_path: Path, spoil: Any, reason: str) -> None:
    memory = make()
    watch(memory, 0, 10)
    memory.save(tmp_path / "m")
    watch(memory, 10, 20)
    before, answer = contents(memory.arena), everything(memory)
    spoil(tmp_path / "m")
    with pytest.raises(MemoryFileError, match=reason):
        memory.load(tmp_path / "m")
    assert same(before, contents(memory.arena)) and answer == everything(memory)


@pytest.mark.parametrize(("other", "reason"), [
    ({"model": qwen2_5_vl(seed=1)}, "another model"),
    ({"budget": 0.75}, "memory.budget_mib to 0.5"),
    (QUANTIZED, "other settings"),
    (ARCHIVE, "other settings"),
], ids=["model", "budget", "quantized", "archive"])
def test_a_file_of_another_model_or_other_settings_is_refused_with_what_differs(
        tmp_path: Path, other: dict[str, Any], reason: str) -> None:
    first, second = make(), make(**other)
    watch(first, 0, 10)
    first.save(tmp_path / "m")
    watch(second, 0, 5)
    before = everything(second)
    with pytest.raises(MemoryFileError, match=reason):
        second.load(tmp_path / "m")
    assert before == everything(second)


def test_a_file_whose_archive_was_of_other_settings_is_refused_with_what_differs(tmp_path: Path) -> None:
    first = make(**ARCHIVE)
    second = make(archive=ArchiveSettings(budget_mib=0.5, precision="int4"))
    for memory in (first, second):
        watch(memory, 0, 5)
    first.save(tmp_path / "m")
    before = archived(second)
    with pytest.raises(MemoryFileError, match="archive.precision fp16 .now int4."):
        second.load(tmp_path / "m")
    assert before == archived(second)


def test_a_save_that_fails_leaves_the_file_before_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = make()
    watch(memory, 0, 5)
    memory.save(tmp_path / "m")
    good = (tmp_path / "m").read_bytes()
    watch(memory, 5, 9)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MemoryFileError, match="No space left"):
        memory.save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == good and list(tmp_path.iterdir()) == [tmp_path / "m"]


def test_a_saved_memory_is_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    memory = make()
    watch(memory, 0, 3)
    memory.save(tmp_path / "m")
    tensors = load_file(tmp_path / "m")
    saved = memory.arena.state_dict()["tensors"]["layers.0.keys"]
    torch.testing.assert_close(tensors["arena.layers.0.keys"], saved, rtol=0, atol=0)


def louder(names: tuple[str, ...]) -> Any:
    """The model with other weights: those of these layers times 1.1."""
    model = qwen2_5_vl()
    with torch.no_grad():
        for name, weight in model.network.named_parameters():
            if any(part in name for part in names):
                weight.mul_(1.1)
    return model


@pytest.mark.parametrize("names", [("k_proj", "v_proj"), ("layers.2.mlp.down_proj",), ("layers.0.input_layernorm",),
                                   ("visual.blocks.1.attn",)])  # fmt: skip
def test_a_memory_of_other_weights_is_refused_from_a_file_and_from_a_folder(
        tmp_path: Path, names: tuple[str, ...]) -> None:
    first = make(**in_folder(tmp_path))
    watch(first, 0, 5)
    first.save(tmp_path / "m")
    first.close()
    second = make(louder(names), **in_folder(tmp_path, "other"))
    watch(second, 0, 2)
    before = everything(second)
    with pytest.raises(MemoryFileError, match="another model"):
        second.load(tmp_path / "m")
    assert before == everything(second)
    second.close()
    with pytest.raises(FrameError, match="fingerprint"):
        watch(make(louder(names), **in_folder(tmp_path)), 0, 1)


def test_the_fingerprint_is_that_of_the_weights_alone() -> None:
    model = qwen2_5_vl(dtype=torch.bfloat16)
    expected = model_fingerprint(model)
    assert model_fingerprint(qwen2_5_vl(seed=1, dtype=torch.bfloat16)) != expected
    model.network.float()
    assert model_fingerprint(model) == expected
    assert pack_weights(model.network, least=1) > 0
    assert model_fingerprint(model) == expected
