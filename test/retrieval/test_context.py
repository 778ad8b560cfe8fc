# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.arenas import contents, same
from support.tiny_models import cheap_vision, qwen2_5_vl

from ros_kvstream.memory.archive import file as archive_file
from ros_kvstream.models.base import PositionRange
from ros_kvstream.records import Verdict
from ros_kvstream.retrieval import context
from ros_kvstream.retrieval.context import Context, build_context
from ros_kvstream.settings import ArchiveSettings, MemorySettings, RetrievalSettings, StreamSettings
from ros_kvstream.stream.answer import append_text, check_question
from ros_kvstream.stream.memory import VideoMemory

QUESTION = "what colour was the cone ?"


def memory_of(
    retrieval: RetrievalSettings | None = None, archive_mib: float = 0.3, pixels: int = 56 * 56,
    position_limit: int = 0, **archive: object,
) -> VideoMemory:  # fmt: skip
    memory = MemorySettings(
        budget_mib=0.15, policy="sliding_window", max_question_tokens=16, max_answer_tokens=4,
        position_limit=position_limit,
    )  # fmt: skip
    newest = RetrievalSettings(top_k=3, newest_frames=2, temporal_diversity="never", context="newest")
    settings = StreamSettings(
        memory=memory,
        archive=ArchiveSettings(budget_mib=archive_mib, **archive),  # type: ignore[arg-type]
        retrieval=retrieval or newest,
    )
    return VideoMemory(settings, cheap_vision(qwen2_5_vl(layers=2, limit=2048, pixels=pixels)))


def frame(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (56, 56, 3), dtype=np.uint8)


def feed(
    memory: VideoMemory, count: int, cameras: tuple[str, ...] = ("front",), start: int = 0, period: float = 0.5
) -> None:
    for index in range(start, start + count):
        memory.observe(frame(index), 10.0 + index * period, cameras[index % len(cameras)])


def build(memory: VideoMemory, capacity: int | None = None, text: str = QUESTION) -> tuple[Context, int]:
    """The context of a question and the question's first position; the caller rolls the arena back."""
    question, start = check_question(memory.model, memory.settings.memory, text), memory.ingest.text_start
    planned = memory.arena.plan.reserve_slots - len(question.ids) - memory.settings.memory.max_answer_tokens
    return build_context(memory.ingest, question, start, planned if capacity is None else capacity), start


@pytest.mark.parametrize("context", ["newest", "arena"])
@pytest.mark.parametrize("positions", ["consecutive", "original"])
def test_nothing_of_the_retrieved_frames_survives_the_answer(context, positions):
    memory = memory_of(RetrievalSettings(top_k=3, newest_frames=2, context=context, positions=positions))
    feed(memory, 90)
    before, mark = contents(memory.arena), memory.arena.mark()
    first, second = memory.ask(QUESTION), memory.ask(QUESTION)
    assert memory.arena.mark() == mark and same(before, contents(memory.arena))
    assert first.text == second.text and first.evidence == second.evidence
    assert first.latency.retrieval_ms > 0


def test_a_disk_error_in_the_middle_of_a_search_waits_until_it_is_done(tmp_path, monkeypatch):
    memory = memory_of(archive_mib=0.6, path=str(tmp_path), queue_frames=8)
    feed(memory, 1)
    archive = memory.archive_retrieval.archive
    archive.wait()
    failing, released, requested = threading.Event(), threading.Event(), []

    def pwrite(*arguments):
        failing.wait()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def release(slot, whole=archive.table.release):
        whole(slot)
        if archive.table.count == 1:
            released.set()

    def choose(*arguments, whole=context.choose_frames):
        chosen = whole(*arguments)
        failing.set()
        assert not released.wait(0.3)
        return chosen

    def fetch(slots, whole=archive.fetch):
        requested.append((len(slots), len(found := whole(slots))))
        return found

    monkeypatch.setattr(archive_file.os, "pwrite", pwrite)
    monkeypatch.setattr(archive.table, "release", release)
    monkeypatch.setattr(archive, "fetch", fetch)
    monkeypatch.setattr(context, "choose_frames", choose)
    feed(memory, 8, start=1)
    assert archive.table.count == 9
    assert memory.ask(QUESTION).evidence
    archive.wait()
    assert released.is_set() and archive.status().lost == 8
    assert requested[0][0] == requested[0][1] > 0
    memory.close()


def test_evidence_holds_stamp_camera_ranks_scores_and_the_fused_score():
    retrieval = RetrievalSettings(
        top_k=3, newest_frames=2, external="tiny", pending_pictures=2, temporal_diversity="never", context="newest"
    )
    memory = memory_of(retrieval)
    feed(memory, 60, ("front", "rear"))
    evidence = memory.ask(QUESTION).evidence
    retrieved = [frame for frame in evidence if frame.ranks]
    assert len(retrieved) == 3
    for found in retrieved:
        assert set(found.ranks) == set(found.scores) == {"internal", "external"}
        assert found.stamp == 10.0 + found.frame_id / 2
        assert found.camera == ("front", "rear")[found.frame_id % 2]
        by_hand = sum(1 / (60 + rank) for rank in found.ranks.values())
        assert found.score == pytest.approx(by_hand)
    scores = [found.score for found in build(memory)[0].evidence]
    assert scores == sorted((frame.score for frame in retrieved), reverse=True)


@pytest.mark.parametrize(("question", "diversity", "by_time"), [
    ("what was first ?", "auto", True), ("what was last ?", "auto", True), ("what was before ?", "auto", False),
    ("where did you last see the cone ?", "auto", False), (QUESTION, "auto", False),
    ("what was first ?", "never", False), ("what was first ?", "always", False),
])  # fmt: skip
def test_frames_are_ordered_by_time_where_a_question_of_first_or_last_is_searched_as_one(question, diversity, by_time):
    memory = memory_of(RetrievalSettings(top_k=3, newest_frames=2, temporal_diversity=diversity, context="newest"))
    feed(memory, 30)
    context, _ = build(memory, text=question)
    assert context.by_time is by_time and context.evidence


def test_frames_that_left_the_arena_are_brought_back_as_they_were():
    memory = memory_of(keep_ratio=1.0, content="kv")
    feed(memory, 90)
    held = set(memory.arena.frames_kept())
    mark = memory.arena.mark()
    context, start = build(memory)
    back = [found for found in context.evidence if found.frame_id not in held]
    assert back
    appended = slice(mark.used, memory.arena.used)
    layer, (keys, values) = memory.arena.table[1], memory.arena.layer(1)
    times = layer.positions[0, appended, 0]
    assert times.tolist() == sorted(times.tolist())
    newest = memory.arena.frame_slots(0)
    shown = torch.isin(newest.frames, torch.tensor(context.shown, dtype=torch.int32))
    later = int(newest.positions[..., 0][shown].min())
    assert later - 7 <= int(times.max()) < later, "seconds apart, up to a limit"
    for found in back:
        rows = layer.frames[0, appended] == found.frame_id
        slot = memory.archive_retrieval.archive.table.slot_of(found.frame_id)
        archived = memory.archive_retrieval.archive.fetch([slot])[0]
        raw = memory.arena.rotary.unrotate(keys[:, appended][:, rows], layer.positions[:, appended][:, rows])
        stored = archived.content.view(len(archived.content), 2, 2, 2, -1)  # [patches, keys | values, layer, head, dim]
        torch.testing.assert_close(raw, stored[:, 0, 1].transpose(0, 1), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(values[:, appended][:, rows], stored[:, 1, 1].transpose(0, 1))
    memory.arena.roll_back(mark)


@pytest.mark.parametrize("content", ["embeddings", "kv"])
def test_a_frame_still_in_the_arena_gives_the_same_logits_from_the_archive_at_its_original_position(content):
    plain = memory_of()
    feed(plain, 6)
    retrieval = RetrievalSettings(
        top_k=8, newest_frames=0, positions="original", moment_frames=8, context="newest", temporal_diversity="never"
    )
    shown = memory_of(retrieval, keep_ratio=1.0, content=content)
    feed(shown, 6)

    def logits(memory: VideoMemory, visible: list[torch.Tensor] | None) -> torch.Tensor:
        ids = memory.model.suffix_ids(QUESTION)
        return append_text(memory.model, memory.arena, ids, memory.ingest.text_start, visible)

    context, _ = build(shown)
    assert len(context.evidence) == 6 and context.shown == ()
    torch.testing.assert_close(logits(shown, context.visible), logits(plain, None), atol=2e-2, rtol=2e-2)


def test_keys_are_archived_as_they_were_before_rotation():
    """In the first layer they depend on the picture alone: the same bits whenever it is seen."""
    keys: list[torch.Tensor] = []
    for stamp in (0.0, 700.0):
        memory = memory_of(keep_ratio=1.0, precision="fp16", content="kv")
        memory.observe(frame(1), 0.0)
        memory.observe(frame(0), 0.5 + stamp)
        archive = memory.archive_retrieval.archive
        keys.append(archive.fetch([archive.table.slot_of(1)])[0].content[:, :2])
    assert len(keys[0]) and torch.equal(*keys)


def test_nothing_is_captured_without_an_archive(monkeypatch):
    memory = VideoMemory(replace(memory_of().settings, archive=ArchiveSettings()), memory_of().model)
    monkeypatch.setattr(memory.model, "capture_keys_values", lambda layers: 1 / 0)
    feed(memory, 2)
    assert memory.stats().frames_kept == 2


def test_an_archive_that_is_off_changes_nothing():
    on = memory_of(RetrievalSettings(top_k=0))
    off = VideoMemory(replace(on.settings, archive=ArchiveSettings()), on.model)
    assert off.archive_retrieval is None
    for memory in (on, off):
        feed(memory, 40)
    assert same(contents(on.arena), contents(off.arena))
    assert on.ask(QUESTION).text == off.ask(QUESTION).text
    assert off.stats().archive_budget_bytes == 0 and off.stats().archive_frames == 0
    assert on.stats().archive_frames > 0


def test_time_and_camera_filters_hold_for_retrieved_frames():
    memory = memory_of()
    feed(memory, 90, ("front", "rear"))
    for filters in ({"camera": "rear"}, {"until": 20.0}, {"since": 15.0, "until": 16.0, "camera": "front"}):
        answer = memory.ask(QUESTION, **filters)
        assert answer.evidence
        for found in answer.evidence:
            assert filters.get("camera") in (None, found.camera)
            assert found.stamp <= filters.get("until", np.inf) and found.stamp_end >= filters.get("since", 0)
    assert 20.0 < memory.stats().oldest_stamp, "the arena had evicted what the filter asks for"
    assert memory.ask(QUESTION, since=500.0).verdict is Verdict.NOT_COVERED


def test_the_newest_frames_are_always_visible_and_retrieved_ones_keep_to_their_capacity():
    retrieval = RetrievalSettings(top_k=50, newest_frames=3, capacity_tokens=10, context="newest")
    memory = memory_of(retrieval, keep_ratio=1.0)
    feed(memory, 60)
    mark = memory.arena.mark()
    context, _ = build(memory)
    assert context.shown == (57, 58, 59)
    memory.arena.roll_back(mark)
    build(memory, capacity=10)
    assert memory.arena.used - mark.used <= 10
    memory.arena.roll_back(mark)


@pytest.mark.parametrize(("count", "period", "newest_only"), [(20, 0.5, False), (200, 0.5, False), (20, 80.0, False),
                                                               (200, 2.0, True), (200, 8.0, True)])  # fmt: skip
def test_only_a_large_archive_of_a_stream_beyond_the_range_stands_alone(count, period, newest_only):
    newest = RetrievalSettings(top_k=2, newest_frames=2)
    memory = memory_of(newest, archive_mib=1.0, position_limit=2048, content="kv")
    memory.model.position_range = PositionRange(700, "test")
    feed(memory, count, period=period)
    large = memory.archive_retrieval.archive.table.count >= 4 * memory.arena.plan.frame_slots / 4
    assert (large, memory.positions.rebases > 0) == (count == 200, period > 2)
    shown = build(memory)[0].shown
    assert shown == ((count - 2, count - 1) if newest_only else tuple(sorted(memory.arena.frames_kept())))


@pytest.mark.parametrize(("count", "period", "newest_only"), [(20, 0.5, False), (20, 80.0, False), (400, 0.5, True)])
def test_moments_afresh_replace_an_arena_that_holds_little_of_the_archive(count, period, newest_only):
    memory = memory_of(RetrievalSettings(top_k=2, newest_frames=2), archive_mib=1.0)
    feed(memory, count, period=period)
    mark = memory.arena.mark()
    context, _ = build(memory)
    assert context.shown == ((count - 2, count - 1) if newest_only else tuple(sorted(memory.arena.frames_kept())))
    assert (memory.arena.used > mark.used) == newest_only
    retrieved = {found.frame_id for found in context.evidence}
    assert retrieved and (newest_only or retrieved <= set(context.shown)), "only what the question sees"


def test_newest_frames_are_prefilled_afresh_behind_the_moments_and_the_arena_is_hidden():
    memory = memory_of(keep_ratio=1.0)
    feed(memory, 90)
    mark = memory.arena.mark()
    context, start = build(memory)
    appended = slice(mark.used, memory.arena.used)
    frames, times = memory.arena.table[0].frames[0, appended], memory.arena.table[0].positions[0, appended, 0]
    assert frames[-8:].tolist() == [88] * 4 + [89] * 4 and times[-8:].tolist() == [start - 2] * 4 + [start - 1] * 4
    assert context.visible is not None
    assert all(mask[:, : memory.arena.pinned].all() and not mask[:, memory.arena.pinned :].any()
               for mask in context.visible)  # fmt: skip
    memory.arena.roll_back(mark)
    few, _ = build(memory, capacity=7)
    assert few.visible is not None and few.visible[0][:, memory.arena.pinned :].any(), "as stored: they do not fit"
    memory.arena.roll_back(mark)


def test_an_answer_from_embeddings_does_not_depend_on_the_arenas_policy_or_size():
    retrieval = RetrievalSettings(
        top_k=3, newest_frames=2, temporal_diversity="never", context="newest", internal_weight=0.0, external="tiny",
        pending_pictures=2,
    )
    logits = []
    for policy, budget in (("sliding_window", 0.15), ("infinipot_v", 0.3)):
        memory = memory_of(retrieval, keep_ratio=1.0)
        settings = replace(memory.settings, memory=replace(memory.settings.memory, policy=policy, budget_mib=budget))
        memory = VideoMemory(settings, memory.model)
        feed(memory, 90)
        context, start = build(memory)
        assert len(context.evidence) == 3
        ids = memory.model.suffix_ids(QUESTION)
        logits.append(append_text(memory.model, memory.arena, ids, start, context.visible))
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


def test_a_question_of_the_longest_kind_still_fits_beside_all_retrieved_frames():
    memory = memory_of(RetrievalSettings(top_k=6, newest_frames=2), keep_ratio=1.0)
    feed(memory, 60)
    longest = " ".join(["cone"] * memory.settings.memory.max_question_tokens)
    answer = memory.ask(longest)
    assert answer.latency.answer_tokens <= 4
    assert check_question(memory.model, memory.settings.memory, longest).max_tokens == 4


def test_a_restart_with_a_folder_remembers_and_numbers_on(tmp_path):
    memory = memory_of(path=str(tmp_path))
    feed(memory, 60)
    memory.close()
    again = memory_of(path=str(tmp_path))
    feed(again, 2, start=200)
    assert {record for record in again.arena.frames_kept()} == {60, 61}
    answer = again.ask(QUESTION, until=39.0)
    assert answer.evidence and all(found.stamp <= 39.0 for found in answer.evidence)
    again.close()


def test_a_larger_frame_than_planned_for_is_reported_and_the_stream_goes_on():
    memory = memory_of(pixels=112 * 112)
    feed(memory, 3)
    memory.observe(np.zeros((56, 84, 3), np.uint8), 100.0)
    status = memory.archive_retrieval.status()
    assert status.frames == 3 and status.state == "degraded" and "archive.frame_patches" in status.message
    memory.observe(frame(7), 101.0)
    assert memory.archive_retrieval.status().frames == 4
    assert memory.ask(QUESTION).evidence


def test_clear_empties_the_archive_too():
    memory = memory_of()
    feed(memory, 30)
    memory.clear()
    assert memory.stats().archive_frames == 0
    feed(memory, 2, start=100)
    assert {found.frame_id for found in memory.ask(QUESTION).evidence} <= {30, 31}


def test_an_archive_budget_too_small_for_the_frames_is_reported_and_answers_go_on():
    memory = memory_of(archive_mib=0.017)
    feed(memory, 5)
    assert memory.ask(QUESTION).evidence
    status = memory.archive_retrieval.status()
    assert status.state == "failed" and "archive.budget_mib" in status.message
