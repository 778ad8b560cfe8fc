# SPDX-License-Identifier: Apache-2.0
"""What the memory must do with every family: equal its own forward, keep the cap, retrieve, rebase, save and load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.arenas import contents, same
from support.family_checks import QUESTION, SIZE, feed, frames_of, full_budget_mib, question_logits, stream_of
from support.oracles import ORACLES
from support.tiny_families import EVERY_FAMILY, TINY

from ros_kvstream.memory.policies import policy_names
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.families import FAMILIES
from ros_kvstream.retrieval.context import build_context
from ros_kvstream.settings import ArchiveSettings, RetrievalSettings
from ros_kvstream.stream.answer import append_text, check_question
from ros_kvstream.stream.memory import VideoMemory

STAMPS = [100.0, 100.5, 101.5, 101.7, 103.0, 110.0, 110.04]
FAR = [
    ("qwen2_vl", 120, 100), ("qwen2_5_vl", 120, 100), ("qwen3_vl", 500, 70), ("llava_onevision", 300, 80),
    ("llava_next_video", 300, 80), ("llava_next", 300, 80), ("smolvlm", 400, 80),
]  # fmt: skip
"""A trained range, and a number of frames that leave it twice."""


def coordinates_kept(memory: VideoMemory) -> list[tuple[torch.Tensor, list[int]]]:
    """Frame and grid coordinates of each slot of the first layer and head."""
    slots = memory.arena.frame_slots(0)
    return [(frame, place[1:].tolist()) for frame, place in zip(slots.frames[0], slots.positions[0], strict=True)]


def stamps_of(model: VideoLanguageModel, start: float, frames: int) -> list[float]:
    """Stamps at which each frame takes one position more than the one before, where positions are times."""
    return [start + index / (model.tokens_per_second or 1.0) for index in range(frames)]


def test_each_listed_family_has_a_small_model_and_an_oracle() -> None:
    assert set(TINY) == set(ORACLES) == set(FAMILIES) == {family for family, *_ in FAR}


@pytest.mark.parametrize("block_frames", [1, 3])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("family", sorted(TINY))
def test_streamed_memory_equals_the_familys_own_forward(family: str, block_frames: int, seed: int) -> None:
    model = TINY[family](seed=seed)
    frames = frames_of(seed, len(STAMPS))
    memory = stream_of(model, block_frames=block_frames)
    feed(memory, frames, STAMPS)
    ours, theirs = question_logits(memory), ORACLES[family](model, frames, STAMPS, QUESTION)[-1]
    assert (ours - theirs).abs().max() < 1e-4
    assert theirs.std() > 0.01, "logits that hardly differ would prove nothing"
    other = stream_of(model, block_frames=block_frames)
    feed(other, [frames[2], *frames[1:]], STAMPS)
    assert (ours - question_logits(other)).abs().max() > 1e-3, "the first frame must matter"


@EVERY_FAMILY
def test_keys_can_be_unrotated(make: Callable[..., Any]) -> None:
    """unrotate(rotate(k)) = k, where k are the keys that the attention computes."""
    model = make()
    memory = stream_of(model)
    feed(memory, frames_of(2, 3), [0.0, 1.0, 2.5])
    projections: list[torch.Tensor] = []
    attention = model.language_model.layers[0].self_attn
    last = getattr(attention, "k_norm", None) or attention.k_proj
    hook = last.register_forward_hook(lambda module, inputs, output: projections.append(output[0]))
    try:
        memory.observe(frames_of(3, 1)[0], 4.0)
    finally:
        hook.remove()
    slots, made = memory.arena.frame_slots(0), projections[0]
    raw = made.view(made.shape[0], -1, model.shape.head_dim).transpose(0, 1)
    tokens = raw.shape[1]
    assert torch.allclose(slots.unrotated_keys[:, -tokens:], raw, atol=1e-5)
    rotated = model.rotary.rotate(raw, slots.positions[:, -tokens:])
    assert torch.allclose(rotated, slots.keys[:, -tokens:], atol=1e-5)


@EVERY_FAMILY
def test_every_policy_keeps_its_cap_at_a_quarter_of_the_full_cache(make: Callable[..., Any]) -> None:
    model, frames = make(), 24
    pictures = frames_of(4, frames)
    full = stream_of(model, 16.0)
    feed(full, pictures, range(frames))
    reserve = len(model.suffix_ids("")) + 32 + 16
    budget = full_budget_mib(model, full.arena.frame_slots_used // 4, reserve)
    for policy in (name for name in policy_names() if name != "full"):
        memory = stream_of(model, budget + 1e-6, policy=policy)
        for index, picture in enumerate(pictures):
            memory.observe(picture, float(index))
            assert memory.arena.frame_slots_used <= full.arena.frame_slots_used // 4 + 1
        answer = memory.ask(QUESTION)
        stats = memory.stats()
        assert stats.peak_bytes <= stats.allocated_bytes <= stats.budget_bytes
        assert stats.compactions > 0
        assert answer.evidence


@EVERY_FAMILY
def test_frames_come_back_from_an_archive_and_leave_no_trace(make: Callable[..., Any]) -> None:
    model = make()
    frames = 16
    archive = ArchiveSettings(budget_mib=8.0, keep_ratio=1.0)
    retrieval = RetrievalSettings(top_k=3, moment_gap_seconds=0.1, context="newest", newest_frames=2)
    reserve = len(model.suffix_ids("")) + 32 + 16
    size = model.frame_tokens(*model.grid(*SIZE))
    budget = full_budget_mib(model, 5 * size, reserve + 3 * size)
    memory = stream_of(model, budget + 1e-6, policy="sliding_window", archive=archive, retrieval=retrieval)
    feed(memory, frames_of(5, frames), range(frames))
    before = contents(memory.arena)
    answer = memory.ask(QUESTION)
    assert same(before, contents(memory.arena))
    assert any(evidence.ranks for evidence in answer.evidence)
    early = memory.ask(QUESTION, until=frames - 8.0).evidence
    assert early and all(evidence.ranks and evidence.stamp <= frames - 8 for evidence in early)
    assert memory.ask(QUESTION).text == answer.text


@EVERY_FAMILY
@pytest.mark.parametrize("content", ["embeddings", "kv"])
def test_retrieved_frames_answer_like_kept_ones(make: Callable[..., Any], content: str) -> None:
    """Logits over frames brought back = logits over the same frames still in the arena, to float16.

    Both at the same distance from the question; the model has one layer, so a frame's keys depend on itself alone.
    """
    model = make(layers=1)
    frames, size = frames_of(6, 4), model.frame_tokens(*model.grid(*SIZE))
    archive = ArchiveSettings(budget_mib=8.0, keep_ratio=1.0, content=content)
    retrieval = RetrievalSettings(
        top_k=4, moment_gap_seconds=0.1, moment_frames=4, context="newest", newest_frames=0, temporal_diversity="never"
    )
    memory = stream_of(model, 4.0, archive=archive, retrieval=retrieval, block_frames=1)
    feed(memory, frames, stamps_of(model, 0.0, len(frames)))
    expected = question_logits(memory)
    assert memory.archive_retrieval is not None
    question, start = check_question(model, memory.settings.memory, QUESTION), memory.ingest.text_start
    mark = memory.arena.mark()
    context = build_context(memory.ingest, question, start, 4 * size)
    assert len(context.evidence) == len(frames)
    found = append_text(model, memory.arena, question.ids, start, context.visible)
    memory.arena.roll_back(mark)
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize(("family", "limit", "frames"), FAR)
def test_a_stream_past_the_trained_range_answers_like_a_short_one(family: str, limit: int, frames: int) -> None:
    """A stream past the trained range answers like the newest of its frames seen early.

    One layer: keys and values depend on their own frame alone, and evicted ones leave no trace.
    """
    model = TINY[family](layers=1, limit=limit)
    pictures = frames_of(7, frames)
    reserve = len(model.suffix_ids("")) + 32 + 16
    budget = full_budget_mib(model, 3 * model.frame_tokens(*model.grid(*SIZE)), reserve) + 1e-6
    late = stream_of(model, budget, policy="recent")
    feed(late, pictures, stamps_of(model, 50.0, frames))
    assert late.stats().rebases >= 2
    assert late.positions.newest < model.position_limit
    kept = sorted(late.arena.frames_kept())
    probe, early = (stream_of(model, budget, policy="recent") for _ in range(2))
    for memory in (probe, early):
        memory.ingest.clock.time(50.0, "camera")  # times in text count from the first frame of ``late``
    feed(probe, [pictures[frame] for frame in kept], [late.frame_index[frame].stamp for frame in kept])
    early.positions.newest += late.positions.newest - probe.positions.newest
    feed(early, [pictures[frame] for frame in kept], [late.frame_index[frame].stamp for frame in kept])
    assert early.stats().rebases == 0
    held = {(kept.index(int(f)), *p) for f, p in coordinates_kept(late)}
    stays = [(int(f), *p) in held for f, p in coordinates_kept(early)]
    early.arena.keep([torch.tensor([stays] * model.shape.kv_heads)])
    assert early.positions.newest == late.positions.newest
    ours, theirs = question_logits(late), question_logits(early)
    assert (ours - theirs).abs().max() < 1e-4


@EVERY_FAMILY
def test_a_saved_memory_goes_on(make: Callable[..., Any], tmp_path: Path) -> None:
    model, path = make(layers=2), tmp_path / "memory"
    frames = frames_of(8, 12)
    memory, other = (stream_of(model, 0.6, policy="infinipot_v") for _ in range(2))
    feed(memory, frames[:8], range(8))
    memory.save(path)
    other.load(path)
    for each in (memory, other):
        feed(each, frames[8:], range(8, 12))
    assert torch.equal(question_logits(memory), question_logits(other))
    assert same(contents(memory.arena), contents(other.arena))
