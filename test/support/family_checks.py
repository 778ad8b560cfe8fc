# SPDX-License-Identifier: Apache-2.0
"""What every family must pass: its own test file under test/models/ derives from FamilyChecks (docs/add_a_model.md)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ros_kvstream.memory.budget import MIB, smallest_budget
from ros_kvstream.memory.policies import policy_names
from ros_kvstream.models.attention import NAME
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.transformers_compat import get_attention, set_attention
from ros_kvstream.settings import (
    ArchiveSettings,
    GateSettings,
    MemorySettings,
    RetrievalSettings,
    StreamSettings,
)
from ros_kvstream.stream.answer import append_text, check_question
from ros_kvstream.stream.memory import VideoMemory
from support.arenas import contents, same

QUESTION = "what colour is the cone ?"
SIZE = (60, 90)
"""Height and width of the pictures."""
STAMPS = [100.0, 100.5, 101.5, 101.7, 103.0, 110.0, 110.04]


def frames_of(seed: int, count: int, size: tuple[int, int] = SIZE) -> list[np.ndarray]:
    """Pictures of noise."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 255, (*size, 3), dtype=np.uint8) for _ in range(count)]


def stream_of(model: VideoLanguageModel, budget_mib: float = 4.0, **options: Any) -> VideoMemory:
    """A memory that evicts nothing, unless told otherwise."""
    parts = {name: options.pop(name) for name in ("archive", "retrieval", "quantized") if name in options}
    values: dict[str, Any] = {"policy": "full", "max_question_tokens": 32, "max_answer_tokens": 16}
    memory = MemorySettings(budget_mib=budget_mib, **{**values, **options})
    return VideoMemory(StreamSettings(memory=memory, gate=GateSettings(mode="off"), **parts), model)


def feed(memory: VideoMemory, frames: Sequence[np.ndarray], stamps: Sequence[float]) -> None:
    """Show frames."""
    for frame, stamp in zip(frames, stamps, strict=True):
        memory.observe(frame, stamp)


def question_logits(memory: VideoMemory, question: str = QUESTION) -> torch.Tensor:
    """Logits of the question's last token through the memory, rolled back afterwards."""
    memory.flush()
    start = memory.ingest.text_start
    mark = memory.arena.mark()
    logits = append_text(memory.model, memory.arena, memory.model.suffix_ids(question), start, None)
    memory.arena.roll_back(mark)
    return logits


def plain_network(model: Any) -> Any:
    """The library's network with its own attention, beside the one that writes into an arena."""
    network = copy.deepcopy(model.network)
    for module in network.modules():
        config = getattr(module, "config", None)
        if get_attention(config) == NAME:
            set_attention(config, "eager")
    return network


def full_budget_mib(model: VideoLanguageModel, slots: int, reserve: int) -> float:
    """MiB of a memory with so many frame slots."""
    return smallest_budget(model.shape, len(model.prefix_ids), reserve, slots) / MIB


def _places(memory: VideoMemory) -> list[tuple[torch.Tensor, list[int]]]:
    slots = memory.arena.frame_slots(0)
    return [(frame, place[1:].tolist()) for frame, place in zip(slots.frames[0], slots.positions[0], strict=True)]


class FamilyChecks:
    """Derive from it in a family's own test file, with these set."""

    make: Callable[..., Any]
    """(seed=, layers=, limit=) -> a random tiny model."""
    one_shot: Callable[..., torch.Tensor]
    """(model, frames, stamps, question) -> logits [tokens, vocabulary] of the family's own one-shot forward."""
    far_limit: int = 300
    """Trained range of the model whose stream leaves it twice ..."""
    far_frames: int = 80
    """... in so many frames."""

    @pytest.mark.parametrize("block_frames", [1, 3])
    @pytest.mark.parametrize("seed", [1, 2])
    def test_streamed_memory_equals_the_familys_own_forward(self, block_frames: int, seed: int) -> None:
        """Streamed through the memory = the family's own one-shot forward."""
        model = self.make(seed=seed)
        frames = frames_of(seed, len(STAMPS))
        memory = stream_of(model, block_frames=block_frames)
        feed(memory, frames, STAMPS)
        ours, theirs = question_logits(memory), self.one_shot(model, frames, STAMPS, QUESTION)[-1]
        assert (ours - theirs).abs().max() < 1e-4
        assert theirs.std() > 0.01, "logits that hardly differ would prove nothing"

    def test_every_frame_matters(self) -> None:
        """Another first frame gives other logits: the oracle is no agreement of two constants."""
        model = self.make()
        frames = frames_of(1, 3)
        first, second = stream_of(model), stream_of(model)
        feed(first, frames, [0.0, 1.0, 2.0])
        feed(second, [frames[2], *frames[1:]], [0.0, 1.0, 2.0])
        assert (question_logits(first) - question_logits(second)).abs().max() > 1e-3

    def test_keys_can_be_turned_back(self) -> None:
        """Un-rotate(rotate(k)) = k, and ours are the keys that the attention itself makes."""
        model = self.make()
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
        turned = model.rotary.rotate(raw, slots.positions[:, -tokens:])
        assert torch.allclose(turned, slots.keys[:, -tokens:], atol=1e-5)

    def test_every_policy_keeps_its_cap_at_a_quarter_of_the_full_cache(self) -> None:
        """Every policy at 25 % of the full cache keeps its cap, and answers."""
        model, frames = self.make(), 24
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

    def test_frames_come_back_from_an_archive_and_leave_no_trace(self) -> None:
        """Frames come back from an archive exactly as they went in, and leave no trace."""
        model = self.make()
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

    def test_retrieved_frames_answer_like_kept_ones(self) -> None:
        """Logits over frames brought back = logits over the same frames still in the arena, to float16.

        Both at the same distance from the question; the model has one layer, so a frame's keys depend on itself alone.
        """
        model = self.make(layers=1)
        from ros_kvstream.retrieval.context import build_context

        frames, size = frames_of(6, 4), model.frame_tokens(*model.grid(*SIZE))
        archive = ArchiveSettings(budget_mib=8.0, keep_ratio=1.0)
        retrieval = RetrievalSettings(top_k=4, moment_gap_seconds=0.1, context="newest", newest_frames=0)
        memory = stream_of(model, 4.0, archive=archive, retrieval=retrieval, block_frames=1)
        feed(memory, frames, range(len(frames)))
        expected = question_logits(memory)
        assert memory.archive_retrieval is not None
        question, start = check_question(model, memory.settings.memory, QUESTION), memory.ingest.text_start
        mark = memory.arena.mark()
        context = build_context(memory.ingest, question, start, 4 * size)
        assert len(context.evidence) == len(frames)
        found = append_text(model, memory.arena, question.ids, start, context.visible)
        memory.arena.roll_back(mark)
        assert (found - expected).abs().max() < 0.02 * expected.abs().max()

    def test_a_stream_past_the_trained_range_answers_like_a_short_one(self) -> None:
        """A stream past the trained range answers like the newest of its frames seen early.

        One layer: keys and values depend on their own frame alone, and evicted ones leave no trace.
        """
        model, frames = self.make(layers=1, limit=self.far_limit), self.far_frames
        pictures = frames_of(7, frames)
        reserve = len(model.suffix_ids("")) + 32 + 16
        budget = full_budget_mib(model, 3 * model.frame_tokens(*model.grid(*SIZE)), reserve) + 1e-6
        late = stream_of(model, budget, policy="recent")
        feed(late, pictures, [50.0 + index for index in range(frames)])
        assert late.stats().rebases >= 2
        assert late.positions.newest < model.position_limit
        kept = sorted(late.arena.frames_kept())
        probe, early = (stream_of(model, budget, policy="recent") for _ in range(2))
        for memory in (probe, early):
            memory.positions._zero_stamp = late.positions._zero_stamp
        feed(probe, [pictures[frame] for frame in kept], [late.frame_index[frame].stamp for frame in kept])
        early.positions.newest = late.positions.newest - (probe.positions.newest - len(model.prefix_ids) + 1)
        feed(early, [pictures[frame] for frame in kept], [late.frame_index[frame].stamp for frame in kept])
        assert early.stats().rebases == 0
        held = {(kept.index(int(f)), *p) for f, p in _places(late)}
        early.arena.keep([torch.tensor([[(int(f), *p) in held for f, p in _places(early)]] * model.shape.kv_heads)])
        assert early.positions.newest == late.positions.newest
        ours, theirs = question_logits(late), question_logits(early)
        assert (ours - theirs).abs().max() < 1e-4

    def test_a_saved_memory_goes_on(self, tmp_path: Path) -> None:
        """A memory in a file answers as it did, and goes on as it would have."""
        model, path = self.make(layers=2), tmp_path / "memory"
        frames = frames_of(8, 12)
        memory, other = (stream_of(model, 0.6, policy="infinipot_v") for _ in range(2))
        feed(memory, frames[:8], range(8))
        memory.save(path)
        other.load(path)
        for each in (memory, other):
            feed(each, frames[8:], range(8, 12))
        assert torch.equal(question_logits(memory), question_logits(other))
        assert same(contents(memory.arena), contents(other.arena))
