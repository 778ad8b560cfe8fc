# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.arenas import contents, same
from support.tiny_models import cheap_vision, qwen2_5_vl

from ros_kvstream.errors import BudgetError, FrameError, NonFiniteError, QuestionCancelled, QuestionError
from ros_kvstream.memory.policies import policy_names
from ros_kvstream.models.qwen2_5_vl import Qwen25VL
from ros_kvstream.records import Verdict
from ros_kvstream.settings import ArchiveSettings, GateSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.answer import append_text
from ros_kvstream.stream.memory import VideoMemory

QUESTION = "where is the cone ?"
SMALL_MIB = 0.2


def memory_of(model: Qwen25VL | None = None, **options: object) -> VideoMemory:
    values: dict[str, object] = {
        "budget_mib": SMALL_MIB,
        "policy": "sliding_window",
        "max_question_tokens": 16,
        "max_answer_tokens": 8,
    }
    settings = MemorySettings(**{**values, **options})  # type: ignore[arg-type]
    every_frame = StreamSettings(memory=settings, gate=GateSettings(mode="off"))
    return VideoMemory(every_frame, model or cheap_vision(qwen2_5_vl(layers=2, limit=2048)))


def frame(seed: int, height: int = 56, width: int = 56) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)


def feed(memory: VideoMemory, count: int, start: int = 0, rate: float = 2.0) -> None:
    for index in range(start, start + count):
        memory.observe(frame(index), index / rate)


def question_logits(memory: VideoMemory) -> torch.Tensor:
    """Logits of the question's last token, rolled back afterwards."""
    mark = memory.arena.mark()
    ids = memory.model.suffix_ids(QUESTION)
    logits = append_text(memory.model, memory.arena, ids, memory.ingest.text_start, None)
    memory.arena.roll_back(mark)
    return logits


def test_asking_leaves_the_memory_bit_for_bit_as_it_was() -> None:
    memory = memory_of()
    feed(memory, 60)
    before = contents(memory.arena)
    first = memory.ask(QUESTION)
    assert same(before, contents(memory.arena))
    second = memory.ask(QUESTION)
    assert first.text == second.text
    assert [e.score for e in first.evidence] == [e.score for e in second.evidence]


@pytest.mark.parametrize("policy", [name for name in policy_names() if name != "full"])
def test_every_policy_keeps_the_cap_over_a_long_stream(policy: str) -> None:
    memory = memory_of(policy=policy)
    for index in range(150):
        memory.observe(frame(index), index * 0.5)
        stats = memory.stats()
        assert stats.allocated_bytes <= stats.budget_bytes
        assert stats.slots_used <= stats.slots
    memory.ask(QUESTION)
    stats = memory.stats()
    assert stats.compactions > 0
    assert stats.peak_bytes <= stats.budget_bytes
    assert stats.frames_seen == stats.frames_kept == 150
    assert stats.newest_stamp == 149 * 0.5


def test_policy_full_refuses_to_pass_the_cap_and_loses_nothing() -> None:
    memory = memory_of(policy="full")
    with pytest.raises(Exception, match=r"(?i)full") as refused:
        feed(memory, 500)
    assert "memory.budget_mib" in str(refused.value)
    before = contents(memory.arena)
    stats = memory.stats()
    assert stats.frames_seen == stats.frames_kept == stats.frames_remembered
    memory.ask(QUESTION)
    assert same(before, contents(memory.arena))


def test_sliding_window_remembers_the_newest_frames_only() -> None:
    memory = memory_of()
    feed(memory, 200)
    remembered = [memory.frame_index[frame_id].stamp for frame_id in memory.arena.frames_kept()]
    assert remembered == [index / 2 for index in range(200 - len(remembered), 200)]


def test_memory_tensors_do_not_grow_over_twenty_thousand_frames() -> None:
    model = qwen2_5_vl(layers=1, heads=1, kv_heads=1, head_dim=8, sections=(2, 1, 1), pixels=28 * 28)
    memory = memory_of(cheap_vision(model), block_frames=20)
    still = frame(0, 28, 28)
    allocated, records = memory.arena.allocated_bytes, 0
    for index in range(20_000):
        memory.observe(still, index * 0.4)
        records = max(records, len(memory.frame_index))
    assert memory.arena.allocated_bytes == allocated
    assert records <= memory.arena.plan.frame_slots + 20
    assert memory.stats().frames_kept == 20_000
    assert memory.stats().rebases > 0


@pytest.mark.parametrize("block_frames", [1, 4])
def test_positions_stay_in_range_and_in_order_whatever_the_clock_does(block_frames: int) -> None:
    memory, stamp = memory_of(block_frames=block_frames, policy="tar", position_limit=120), 1.7e9
    for index in range(160):
        stamp += (0.001, 0.5, 3600.0, 365 * 86400.0, -86400.0, 9.0)[index // 20 % 6]
        memory.observe(frame(index), stamp)
        slots = memory.arena.frame_slots(0)
        for frames, times in zip(slots.frames, slots.positions[..., 0], strict=True):
            assert bool((times[frames.argsort()].diff() >= 0).all())
            assert bool(((times >= memory.positions.start) & (times < 120)).all())
    assert memory.stats().rebases > 10 and memory.stats().position_limit == memory.positions.limit < 120


@pytest.mark.parametrize("block_frames", [1, 4])
def test_a_question_flushes_a_half_filled_block_so_that_now_is_now(block_frames: int) -> None:
    memory = memory_of(block_frames=block_frames, budget_mib=0.5)
    feed(memory, 6)
    answer = memory.ask(QUESTION)
    assert answer.asked_at == 2.5
    assert memory.arena.frame_slots_used == 6 * 4
    assert 5 in memory.arena.frames_kept()


def test_blocks_of_frames_give_the_same_memory_as_single_frames() -> None:
    model = qwen2_5_vl(layers=2)
    single, block = memory_of(model), memory_of(model, block_frames=5)
    feed(single, 12)
    feed(block, 12)
    block.ask(QUESTION)
    for ours, theirs in zip(contents(single.arena), contents(block.arena), strict=True):
        assert torch.allclose(ours.float(), theirs.float(), atol=1e-4)


def test_frames_of_changing_size_and_several_cameras_work_through_compactions() -> None:
    memory = memory_of(cheap_vision(qwen2_5_vl(layers=2, pixels=112 * 112)), policy="infinipot_v", budget_mib=0.5)
    sizes = [(56, 56), (120, 40), (100, 100), (30, 30)]
    for index in range(120):
        memory.observe(frame(index, *sizes[index % 4]), index * 0.3, camera=f"camera{index % 3}")
    answer = memory.ask(QUESTION, camera="camera1")
    assert {evidence.camera for evidence in answer.evidence} == {"camera1"}
    assert memory.stats().compactions > 0


def test_hidden_frames_change_nothing_for_an_answer_limited_to_the_others() -> None:
    model = cheap_vision(qwen2_5_vl(layers=1))
    memory, other = memory_of(model), memory_of(model)
    for index in range(8):
        memory.observe(frame(index), float(index), camera="left" if index < 4 else "right")
        other.observe(frame(100 + index if index < 4 else index), float(index), "left" if index < 4 else "right")
    limited, same_limited = memory.ask(QUESTION, camera="right"), other.ask(QUESTION, camera="right")
    assert limited.text == same_limited.text
    scores = [[evidence.frame_id for evidence in answer.evidence] for answer in (limited, same_limited)]
    assert set(scores[0]) == set(scores[1]) == {4, 5, 6, 7}


def test_time_filter_limits_the_evidence() -> None:
    memory = memory_of(budget_mib=0.5)
    feed(memory, 30, rate=1.0)
    answer = memory.ask(QUESTION, since=10.0, until=12.0)
    assert {evidence.stamp for evidence in answer.evidence} == {10.0, 11.0, 12.0}
    assert memory.ask(QUESTION, since=1000.0).verdict is Verdict.NOT_COVERED


def drop_what_the_other_lacks(memory: VideoMemory, other: VideoMemory, frame_of: dict[int, int]) -> None:
    """Evict the patches of half-evicted frames here too; ``frame_of``: frame id here -> frame id there."""
    theirs = other.arena.frame_slots(0)
    held = {(int(f), *p[1:].tolist()) for f, p in zip(theirs.frames[0], theirs.positions[0], strict=True)}
    ours = memory.arena.frame_slots(0)
    table = zip(ours.frames[0], ours.positions[0], strict=True)
    memory.arena.keep([torch.tensor([[(frame_of[int(f)], *p[1:].tolist()) in held for f, p in table]] * 2)])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.02)])
def test_a_stream_past_the_trained_range_answers_like_the_same_frames_seen_early(
    dtype: torch.dtype, tolerance: float
) -> None:
    """One layer, so that keys and values depend on their own frame alone and evicted ones leave no trace.

    The tolerance is relative to the largest logit: float32 rounding, and the bfloat16 rounding of one re-basing.
    """
    model = cheap_vision(qwen2_5_vl(layers=1, limit=400, dtype=dtype))
    late, early = memory_of(model, budget_mib=0.06), memory_of(model, budget_mib=0.06)
    for index in range(900):
        late.observe(frame(index), 50 + index * 0.5)
    assert late.stats().rebases >= 3
    assert late.positions.newest < 400
    kept = sorted(late.arena.frames_kept())
    early.positions.newest = int(late.arena.frame_slots(0).positions[..., 0].min())
    for frame_id in kept:
        early.observe(frame(frame_id), late.frame_index[frame_id].stamp)
    drop_what_the_other_lacks(early, late, dict(enumerate(kept)))
    assert early.positions.newest == late.positions.newest
    ours, theirs = question_logits(late), question_logits(early)
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
    assert late.ask(QUESTION).text == early.ask(QUESTION).text


def test_lowering_the_budget_keeps_what_the_policy_rates_highest_and_raising_keeps_all() -> None:
    memory = memory_of(budget_mib=0.5)
    feed(memory, 70)
    memory.set_budget(0.2)
    stats = memory.stats()
    assert stats.allocated_bytes <= stats.budget_bytes == int(0.2 * 2**20)
    remembered = sorted(memory.arena.frames_kept())
    assert remembered[-1] == 69
    memory.set_budget(0.6)
    assert sorted(memory.arena.frames_kept()) == remembered
    feed(memory, 50, start=70)
    memory.ask(QUESTION)
    with pytest.raises(BudgetError, match="at least"):
        memory.set_budget(0.02)
    assert memory.stats().budget_bytes == int(0.6 * 2**20)


@pytest.mark.parametrize("stage", ["vision", "prefill", "decode", "question"])
def test_a_failure_anywhere_leaves_the_memory_as_it_was(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of()
    feed(memory, 20)
    before, stats = contents(memory.arena), memory.stats()
    calls = {"forward": 0}
    forward = memory.model.forward

    def broken_forward(*args, **kwargs):  # type: ignore[no-untyped-def]
        calls["forward"] += 1
        result = forward(*args, **kwargs)
        if stage != "decode" or calls["forward"] > 2:
            raise RuntimeError("out of memory")
        return result

    def broken_vision(frames):  # type: ignore[no-untyped-def]
        raise RuntimeError("out of memory")

    monkeypatch.setattr(memory.model, "eos_ids", frozenset())
    if stage == "vision":
        monkeypatch.setattr(memory.model, "encode_frames", broken_vision)
    else:
        monkeypatch.setattr(memory.model, "forward", broken_forward)
    with pytest.raises(RuntimeError):
        if stage in ("vision", "prefill"):
            memory.observe(frame(20), 10.0)
        else:
            memory.ask(QUESTION)
    monkeypatch.undo()
    assert same(before, contents(memory.arena))
    assert memory.stats().frames_seen == stats.frames_seen
    memory.observe(frame(21), 10.5)
    memory.ask(QUESTION)


def test_cancelling_stops_at_a_token_and_rolls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of()
    feed(memory, 5)
    monkeypatch.setattr(memory.model, "eos_ids", frozenset())
    before = contents(memory.arena)
    pieces: list[str] = []
    with pytest.raises(QuestionCancelled, match="after 3 answer tokens"):
        memory.ask(QUESTION, should_stop=lambda: len(pieces) >= 3, on_token=pieces.append)
    assert same(before, contents(memory.arena))


def test_an_answer_never_passes_its_token_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of()
    feed(memory, 5)
    monkeypatch.setattr(memory.model, "eos_ids", frozenset())
    answer = memory.ask(QUESTION, max_new_tokens=3)
    assert answer.latency.answer_tokens == 3
    assert answer.finish_reason == "length"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": ""}, "empty"),
        ({"question": "  \n"}, "empty"),
        ({"question": "cone " * 17}, r"17 tokens: the limit is 16"),
        ({"question": "cone", "max_new_tokens": 0}, r"must be 1 to 8"),
        ({"question": "cone", "max_new_tokens": -5}, r"must be 1 to 8"),
        ({"question": "cone", "max_new_tokens": 10**9}, r"must be 1 to 8"),
        ({"question": "cone", "since": float("nan")}, "since"),
        ({"question": "cone", "since": 5.0, "until": 3.0}, "swap"),
        ({"question": "cone", "since": 5.0, "until": -5.0}, r"until = -5.0: must be a stamp in seconds, or 0"),
        ({"question": "cone", "min_confidence": 1.5}, "must be 0 to 1"),
        ({"question": "cone", "min_confidence": float("nan")}, "must be 0 to 1"),
    ],
)
def test_bad_questions_are_refused_with_the_limit(arguments: dict, message: str) -> None:
    memory = memory_of()
    feed(memory, 2)
    with pytest.raises(QuestionError, match=message):
        memory.ask(**arguments)


def test_a_question_before_the_first_frame_is_answered_without_the_model() -> None:
    answer = memory_of().ask(QUESTION)
    assert (answer.verdict, answer.finish_reason) == (Verdict.NOT_COVERED, "not_covered")
    assert answer.text == "I have not seen anything yet." and answer.covered_share == 0.0


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((56, 56), np.uint8),
        np.zeros((56, 56, 4), np.uint8),
        np.zeros((56, 56, 3), np.float32),
        np.zeros((0, 56, 3), np.uint8),
        np.zeros((2, 900, 3), np.uint8),
    ],
)
def test_bad_frames_are_refused_and_counted_as_never_seen(bad: np.ndarray) -> None:
    memory = memory_of()
    with pytest.raises(FrameError):
        memory.observe(bad, 0.0)
    with pytest.raises(FrameError, match="finite"):
        memory.observe(frame(0), float("inf"))
    assert memory.stats().frames_seen == 0


def test_a_frame_too_large_for_the_budget_is_refused_with_the_smallest_that_works() -> None:
    memory = memory_of(qwen2_5_vl(layers=2, pixels=28 * 28 * 400))
    memory.observe(frame(0), 0.0)
    with pytest.raises(FrameError, match=r"takes 400 slots.*at least"):
        memory.observe(frame(1, 560, 560), 0.5)
    memory.observe(frame(2), 1.0)
    assert memory.stats().frames_seen == 2


def test_a_compaction_comes_at_the_high_water_mark_and_keeps_the_keep_ratio() -> None:
    memory = memory_of(high_water=0.5, keep_ratio=0.3)
    slots = memory.arena.plan.frame_slots
    fills = []
    for index in range(slots // 2):
        memory.observe(frame(index), index * 0.5)
        fills.append(memory.arena.frame_slots_used)
    after = [fill for before, fill in zip(fills, fills[1:], strict=False) if fill < before]
    assert slots * 0.5 - 4 < max(fills) <= slots * 0.5
    assert set(after) == {int(slots * 0.3) + 4}


def test_clear_removes_every_frame_and_starts_again() -> None:
    memory = memory_of()
    feed(memory, 30)
    memory.clear()
    assert memory.ask(QUESTION).verdict is Verdict.NOT_COVERED
    fresh = memory_of(memory.model)
    feed(memory, 5)
    feed(fresh, 5)
    assert memory.ask(QUESTION).text == fresh.ask(QUESTION).text
    for ours, theirs in zip(contents(memory.arena), contents(fresh.arena), strict=True):
        if ours.dtype != torch.int32:
            assert torch.equal(ours, theirs)


def test_thousands_of_identical_frames_leave_one_picture_many_times() -> None:
    memory = memory_of(policy="infinipot_v", block_frames=16, budget_mib=0.5)
    still = frame(0)
    for index in range(3_000):
        memory.observe(still, index / 30)
    memory.ask(QUESTION)
    assert memory.stats().frames_kept == 3_000


def test_a_looping_clock_starts_a_new_segment_and_keeps_the_old_frames() -> None:
    memory = memory_of(budget_mib=0.5)
    feed(memory, 10)
    memory.observe(frame(50), 0.0)
    assert memory.ingest.clock.segment == 1
    assert memory.frame_index.newest().segment == 1  # type: ignore[union-attr]
    assert memory.stats().frames_remembered == 11
    assert memory.ask(QUESTION).asked_at == 0.0


def broken_tower(model: Any, bad: int) -> None:
    """Let the vision tower compute one NaN for the frame whose first pixel has this value."""
    encode = model.encode_frames

    def encode_frames(frames: Any) -> Any:
        encoded = encode(frames)
        for frame, tokens in zip(frames, encoded, strict=True):
            if frame[0, 0, 0] == bad:
                tokens.embeddings[1, 2] = float("nan")
        return encoded

    model.encode_frames = encode_frames


def numbered(number: int) -> np.ndarray:
    pixels = np.random.default_rng(number).integers(0, 256, (56, 56, 3), dtype=np.uint8)
    pixels[0, 0, 0] = number
    return pixels


@pytest.mark.parametrize("archive", [0.0, 0.5])
def test_a_frame_whose_tower_output_is_not_finite_leaves_nothing(archive: float) -> None:
    answers = []
    for bad in (255, 5):
        model = cheap_vision(qwen2_5_vl(layers=2))
        memory = VideoMemory(StreamSettings(archive=ArchiveSettings(budget_mib=archive), gate=GateSettings(mode="off"),
                             memory=MemorySettings(budget_mib=0.5, max_question_tokens=16, max_answer_tokens=4)), model)
        broken_tower(model, bad)
        for number in range(12):
            if number == 5:
                before = contents(memory.arena), memory.stats()
                if bad == 5:
                    with pytest.raises(NonFiniteError, match="vision tower of random .* dtype = float32"):
                        memory.observe(numbered(5), 5.0)
                assert same(before[0], contents(memory.arena)) and memory.stats() == before[1]
                continue
            memory.observe(numbered(number), float(number))
        answer = memory.ask("what colour is the cone ?")
        assert memory.stats().frames_seen == memory.stats().frames_kept == 11
        answers.append((answer.text, [(frame.stamp, frame.score) for frame in answer.evidence]))
    assert answers[0] == answers[1]


def test_an_answer_of_values_that_are_not_finite_is_refused_and_the_next_one_is_not() -> None:
    model = cheap_vision(qwen2_5_vl(layers=2))
    memory = VideoMemory(StreamSettings(gate=GateSettings(mode="off"), memory=MemorySettings(
        budget_mib=0.5, max_question_tokens=16, max_answer_tokens=4)), model)
    for number in range(4):
        memory.observe(numbered(number), float(number))
    before, expected = contents(memory.arena), memory.ask("what colour is the cone ?").text
    for weights in (model.language_model.layers[1].mlp.down_proj.weight, model.network.lm_head.weight):
        whole = weights.detach().clone()
        with torch.no_grad():
            weights.mul_(1e38).mul_(1e38)
        with pytest.raises(NonFiniteError, match="language model of random .* dtype = float32"):
            memory.ask("what colour is the cone ?")
        with torch.no_grad():
            weights.copy_(whole)
        assert same(before, contents(memory.arena))
        assert memory.ask("what colour is the cone ?").text == expected
