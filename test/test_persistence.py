"""A saved memory comes back slot for slot, and a file that does not fit is refused without a trace."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.arenas import contents, same
from support.tiny_models import qwen2_5_vl

from ros_kvstream import persistence
from ros_kvstream.errors import MemoryFileError
from ros_kvstream.settings import ArchiveSettings, GateSettings, LadderSettings, MemorySettings, StreamSettings
from ros_kvstream.stream import VideoMemory

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
        memory.observe(pixels, 100.0 + number / 2, ("front", "rear")[number % 2])


def everything(memory: VideoMemory) -> tuple[Any, ...]:
    answer = memory.ask(QUESTION, max_new_tokens=8)
    return answer.text, answer.evidence, answer.asked_at


LADDER = {"ladder": LadderSettings(mode="on", group=16)}


@pytest.mark.parametrize("groups", [{}, LADDER, {"archive": ArchiveSettings(budget_mib=0.5)}],
                         ids=["plain", "ladder", "archive"])
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
    for one, other in zip(first.arena._layers, second.arena._layers, strict=True):
        assert same(list(one.tensors), list(other.tensors))
    if "archive" not in groups:  # an archive in memory is not part of the file
        assert everything(first) == everything(second)
        watch(first, frames, frames + 60)
        watch(second, frames, frames + 60)
        assert everything(first) == everything(second)
        assert same(contents(first.arena), contents(second.arena)) or groups


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


def change(field: str, value: str) -> Any:
    def spoil(path: Path) -> None:
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        header["__metadata__"][field] = value
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])

    return spoil


@pytest.mark.parametrize(("spoil", "reason"), [
    (spoil_end, "damaged or no memory file"),
    (spoil_bit, "damaged"),
    (lambda path: path.write_bytes(b"hello"), "damaged or no memory file"),
    (lambda path: path.write_bytes(b""), "damaged or no memory file"),
    (lambda path: path.unlink(), "does not exist"),
    (change("format", "pt"), "not written by ros_kvstream"),
    (change("version", str(persistence.VERSION + 1)), "Update ros_kvstream"),
    (change("version", "latest"), "version 'latest'"),
    (change("state", "{"), "damaged"),
], ids=["torn", "bit", "text", "empty", "missing", "foreign", "newer", "version", "state"])  # fmt: skip
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
    (LADDER, "other settings"),
], ids=["model", "budget", "ladder"])
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


def test_a_save_that_fails_leaves_the_file_before_untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = make()
    watch(memory, 0, 5)
    memory.save(tmp_path / "m")
    good = (tmp_path / "m").read_bytes()
    watch(memory, 5, 9)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(persistence, "_write", full)
    with pytest.raises(MemoryFileError, match="No space left"):
        memory.save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == good and list(tmp_path.iterdir()) == [tmp_path / "m"]


def test_a_saved_memory_is_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    memory = make()
    watch(memory, 0, 3)
    memory.save(tmp_path / "m")
    tensors = load_file(tmp_path / "m")
    torch.testing.assert_close(tensors["layer.0.0"], memory.arena._layers[0].keys, rtol=0, atol=0)
