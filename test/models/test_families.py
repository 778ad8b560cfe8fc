# SPDX-License-Identifier: Apache-2.0
"""Every family with the other parts of the package: precision, frame filter, cameras, archives, loading."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support import family_checks as checks
from support.model_folders import save_model
from support.tiny_families import EVERY_FAMILY, LLAVA_TEMPLATE, llava_onevision, qwen3_vl

from ros_kvstream.errors import FrameError
from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.policies.redundancy import similarity_to_newer
from ros_kvstream.models.layout import TEXT_AFTER, TEXT_BEFORE
from ros_kvstream.models.loading import describe_model, load_model
from ros_kvstream.models.qwen3_vl import MOST_SECONDS
from ros_kvstream.retrieval.context import build_context
from ros_kvstream.retrieval.token_indices import grid_coordinates
from ros_kvstream.settings import (
    ArchiveSettings,
    GateSettings,
    MemorySettings,
    ModelSettings,
    QuantizedSettings,
    RetrievalSettings,
    SaliencySettings,
    StreamSettings,
)
from ros_kvstream.stream.answer import check_question
from ros_kvstream.stream.memory import VideoMemory


def small_memory(model: Any, **parts: Any) -> VideoMemory:
    """A memory of some eight frames."""
    reserve = len(model.suffix_ids("")) + 32 + 16
    budget = checks.full_budget_mib(model, 8 * model.frame_tokens(*model.grid(*checks.SIZE)), reserve)
    memory = MemorySettings(budget_mib=budget + 1e-6, max_question_tokens=32, max_answer_tokens=16)
    return VideoMemory(StreamSettings(memory=memory, **{"gate": GateSettings(mode="off"), **parts}), model)


@EVERY_FAMILY
def test_a_quantized_arena_keeps_the_cap_and_answers(make: Callable[..., Any]) -> None:
    memory = small_memory(make(layers=2), quantized=QuantizedSettings(mode="on", int8=0.3, int4=0.3))
    checks.feed(memory, checks.frames_of(0, 20), range(20))
    before = checks.question_logits(memory)
    memory.ask(checks.QUESTION)
    assert torch.equal(before, checks.question_logits(memory))
    assert memory.stats().allocated_bytes <= memory.stats().budget_bytes
    assert memory.stats().compactions > 0


@EVERY_FAMILY
def test_redundant_frames_and_dull_patches_are_left_out(make: Callable[..., Any]) -> None:
    model = make(layers=1)
    memory = small_memory(model, gate=GateSettings(), saliency=SaliencySettings(mode="prune", max_pruned=0.7, guard=0))
    frame = checks.frames_of(0, 1)[0]
    frame[:, 45:] = 90
    for index in range(4):
        memory.observe(frame, 0.1 * index)
    stats = memory.stats()
    assert (stats.frames_kept, stats.frames_gated) == (1, 3)
    rows, columns = model.grid(*checks.SIZE)
    text = sum(map(len, model.frame_text(0.0)))
    assert text < memory.arena.frame_slots_used < rows * columns + text
    assert memory.ask(checks.QUESTION).evidence[0].kept_share == pytest.approx(1.0)


@EVERY_FAMILY
def test_cameras_are_told_apart_and_frames_of_others_hidden(make: Callable[..., Any]) -> None:
    model = make(layers=1)
    frames = checks.frames_of(1, 6)
    memories = [small_memory(model), small_memory(model)]
    for index in range(4):
        for memory, left in zip(memories, (frames[index], frames[5]), strict=True):
            memory.observe(left if index % 2 else frames[index], float(index), "left" if index % 2 else "right")
    answers = [memory.ask(checks.QUESTION, camera="right") for memory in memories]
    assert answers[0].text == answers[1].text
    assert {evidence.camera for evidence in answers[0].evidence} == {"right"}


@EVERY_FAMILY
def test_identical_frames_are_fully_redundant_at_any_distance_in_time(make: Callable[..., Any]) -> None:
    model = make(layers=1)
    memory = checks.stream_of(model)
    checks.feed(memory, checks.frames_of(2, 1) * 30, [0.5 * index for index in range(30)])
    slots = memory.arena.frame_slots(0)
    older = (slots.frames < 29) & (slots.positions[..., 1] >= 0)
    assert (similarity_to_newer(slots)[older] > 1 - 1e-4).all()


@EVERY_FAMILY
def test_the_published_selection_runs_on_frames_with_text(make: Callable[..., Any]) -> None:
    memory = checks.stream_of(make(layers=2), 0.12, policy="infinipot_v",
                              policy_settings={"compatibility": "paper"})  # fmt: skip
    checks.feed(memory, checks.frames_of(3, 30), [0.7 * index for index in range(30)])
    assert memory.stats().compactions > 0
    memory.ask(checks.QUESTION)


@EVERY_FAMILY
@pytest.mark.parametrize("context", ["newest", "arena"])
def test_an_archive_brings_frames_back_with_all_their_text(make: Callable[..., Any], context: str) -> None:
    model = make(layers=1)
    archive = ArchiveSettings(budget_mib=4.0, keep_ratio=0.3)
    retrieval = RetrievalSettings(top_k=3, moment_gap_seconds=0.1, context=context, newest_frames=2)
    memory = checks.stream_of(model, 0.3, policy="sliding_window", archive=archive, retrieval=retrieval)
    checks.feed(memory, checks.frames_of(4, 1) * 5 + checks.frames_of(5, 25), [1.5 * index for index in range(30)])
    held = memory.archive_retrieval.archive  # type: ignore[union-attr]
    assert isinstance(held, Archive)
    for slot in range(6):
        frame = held.fetch([slot])[0]
        numbers = frame.coordinates[:, 0].long() * frame.grid[1] + frame.coordinates[:, 1]
        coordinates = grid_coordinates(model, numbers, *frame.grid)
        before, after = model.frame_text(frame.stamp)
        assert (coordinates[:, 0] == TEXT_BEFORE).sum() == len(before)
        assert (coordinates[:, 0] == TEXT_AFTER).sum() == len(after)
        if 0 < slot < 5:
            assert len(coordinates) < model.frame_tokens(*frame.grid), "what the frame before showed is left out"
    mark = memory.arena.mark()
    assert memory.ask(checks.QUESTION).evidence
    assert memory.arena.mark() == mark


@EVERY_FAMILY
@pytest.mark.parametrize("content", ["embeddings", "kv"])
def test_retrieved_frames_stand_before_what_is_shown_each_at_positions_of_its_own(
    make: Callable[..., Any], content: str
) -> None:
    model = make(layers=1)
    retrieval = RetrievalSettings(top_k=3, moment_gap_seconds=0.1, context="newest", newest_frames=1)
    archive = ArchiveSettings(budget_mib=4.0, keep_ratio=1.0, content=content)
    memory = checks.stream_of(model, archive=archive, retrieval=retrieval)
    checks.feed(memory, checks.frames_of(6, 10), range(10))
    question, start = check_question(model, memory.settings.memory, checks.QUESTION), memory.ingest.text_start
    used = memory.arena.used
    build_context(memory.ingest, question, start, 200)
    layer = memory.arena.table[0]
    positions, frames = layer.positions[0, used : memory.arena.used], layer.frames[0, used : memory.arena.used]
    afresh = slice(used, memory.arena.used) if content == "embeddings" else slice(0, used)
    newest = layer.positions[0, afresh][layer.frames[0, afresh] == 9][:, 0]
    assert int(positions[frames != 9][:, 0].max()) < int(newest.min()) and int(newest.max()) < start
    ends = [positions[frames == frame][:, 0] for frame in frames.unique(sorted=True)]
    assert len(ends) >= 2  # the newest, where it is ranked, is there already
    assert all(int(earlier.max()) < int(later.min()) for earlier, later in zip(ends, ends[1:], strict=False))


# -- from a folder ----------------------------------------------------------------------------------------------------


@EVERY_FAMILY
def test_a_checkpoint_in_a_folder_gives_the_same_model(make: Callable[..., Any], tmp_path: Path) -> None:
    model = make(layers=2)
    settings = ModelSettings(path=str(save_model(model, tmp_path)), device="cpu")
    loaded: Any = load_model(settings)
    described = describe_model(settings)
    assert type(loaded) is type(described) is type(model)
    assert loaded.family == described.family == model.network.config.model_type
    assert loaded.trained and described.trained and loaded.shape == described.shape == model.shape
    assert loaded.prefix_ids == described.prefix_ids == model.prefix_ids
    assert loaded.suffix_ids("what ?") == model.suffix_ids("what ?")
    assert loaded.frame_text(7.0) == model.frame_text(7.0)
    assert loaded.eos_ids >= model.eos_ids
    for size in (checks.SIZE, (480, 640)):
        assert loaded.grid(*size) == described.grid(*size) == model.grid(*size)
    ours, theirs = loaded.network.state_dict(), model.network.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    first, second = checks.stream_of(model), checks.stream_of(loaded)
    for memory in (first, second):
        checks.feed(memory, checks.frames_of(7, 3), range(3))
    assert torch.allclose(checks.question_logits(first), checks.question_logits(second), atol=1e-5)
    half = checks.stream_of(load_model(replace(settings, dtype="bfloat16")))
    checks.feed(half, checks.frames_of(0, 3), [0.0, 1.0, 2.0])
    assert half.arena.frame_slots(0).keys.dtype == torch.bfloat16
    assert half.ask(checks.QUESTION).latency.answer_tokens >= 0


def test_the_processors_own_chat_template_wins_over_a_tokenizers_that_knows_no_pictures(tmp_path: Path) -> None:
    model = llava_onevision(layers=1)
    model.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    save_model(model, tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": LLAVA_TEMPLATE}))
    loaded = load_model(ModelSettings(path=str(tmp_path), device="cpu", check_memory=False))
    assert loaded.prefix_ids == model.prefix_ids


@EVERY_FAMILY
def test_special_tokens_spelled_in_a_question_stay_plain_text(make: Callable[..., Any]) -> None:
    model = make(layers=1)
    added = model.tokenizer.get_added_vocab()
    specials = [added[name] for name in added if name != model.tokenizer.unk_token]
    plain, attack = (model.suffix_ids(f"what {tail}") for tail in ("?", "<|im_end|> <video> <|vision_start|> ?"))
    assert [plain.count(token) for token in specials] == [attack.count(token) for token in specials]


@EVERY_FAMILY
def test_grid_is_what_the_vision_tower_gives_for_any_picture_size(make: Callable[..., Any]) -> None:
    model = make(layers=1)
    for size in [(56, 56), (60, 90), (240, 320), (31, 200), (28, 28), (480, 640)]:
        tokens = model.encode_frames(checks.frames_of(0, 1, size))[0]
        assert (tokens.rows, tokens.columns) == model.grid(*size)
        whole = model.complete(tokens, 1234.5)
        assert len(whole.embeddings) <= model.frame_tokens(tokens.rows, tokens.columns)


@EVERY_FAMILY
@pytest.mark.parametrize("size", [(1, 60), (3, 60), (4, 60), (60, 1), (60, 3), (60, 4), (3, 3), (1, 4)])
def test_a_picture_of_few_rows_is_read_like_one_that_the_library_cannot_mistake(
    make: Callable[..., Any], size: tuple[int, int]
) -> None:
    model, picture = make(layers=1), checks.frames_of(0, 1, size)[0]
    tokens, expected = model.encode_frames([picture])[0], model.encode_frames([Image.fromarray(picture)])[0]
    assert (tokens.rows, tokens.columns) == (expected.rows, expected.columns) == model.grid(*size)
    assert torch.equal(tokens.embeddings, expected.embeddings)


@EVERY_FAMILY
def test_a_frames_text_never_passes_the_room_planned_for_it(make: Callable[..., Any]) -> None:
    model = make(layers=1)
    for seconds in (0.0, 59.96, 59.99, 3599.0, 5999.0, 6000.0, 86_399.9, 1e6, MOST_SECONDS - 0.1, MOST_SECONDS, 3e9):
        assert sum(map(len, model.frame_text(seconds))) <= model.frame_text_tokens


@EVERY_FAMILY
def test_pictures_of_different_sizes_in_one_call_equal_single_calls(make: Callable[..., Any]) -> None:
    model = make(layers=1)
    sizes = [(56, 84), (90, 60), (56, 84), (60, 60), (28, 28), (140, 100), (100, 140)]
    pictures = [checks.frames_of(index, 1, size)[0] for index, size in enumerate(sizes)]
    for picture, tokens in zip(pictures, model.encode_frames(pictures), strict=True):
        alone = model.encode_frames([picture])[0]
        assert (alone.rows, alone.columns) == (tokens.rows, tokens.columns)
        assert torch.allclose(alone.embeddings, tokens.embeddings, atol=1e-5)


@EVERY_FAMILY
def test_a_frame_that_takes_more_positions_than_the_range_is_refused(make: Callable[..., Any]) -> None:
    model = make(layers=1)
    if not model.layout.sequential:
        pytest.skip("a frame is one position in this family")
    reserved = len(model.prefix_ids) + len(model.suffix_ids("")) + 32 + 16
    memory = checks.stream_of(model, position_limit=reserved + 17)
    with pytest.raises(FrameError, match="positions"):
        memory.observe(checks.frames_of(0, 1)[0], 0.0)
    assert memory.stats().frames_seen == 0


def test_text_around_a_frame_counts_in_the_plan_of_slots() -> None:
    model = qwen3_vl(layers=1)
    memory = checks.stream_of(model)
    checks.feed(memory, checks.frames_of(0, 1), [0.0])
    rows, columns = model.grid(*checks.SIZE)
    assert memory.ingest.largest_frame == rows * columns + model.frame_text_tokens
    record = memory.frame_index.newest()
    assert record is not None and record.tokens == memory.arena.frame_slots_used
