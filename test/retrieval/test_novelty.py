# SPDX-License-Identifier: Apache-2.0
"""Novelty is found per camera, independent of the question and of the chunk size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.archives import SHAPE, make_archive, make_frame

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.retrieval import novelty
from ros_kvstream.retrieval.internal import NEIGHBOURS
from ros_kvstream.retrieval.novelty import novelty_scores
from ros_kvstream.retrieval.ranking import NOVELTY, choose_frames
from ros_kvstream.settings import RetrievalSettings

STRANGE = (5, 100, 150)
"""Frames that differ from all others."""


def archive_of(frames: int, strange: tuple[int, ...] = STRANGE) -> Archive:
    """Two cameras, each in front of its own wall; the first sees something else in the strange frames."""
    archive = make_archive(budget_mib=2.0, keep_ratio=1.0, index_keys=6)
    for index in range(frames):
        archive.add(make_frame(2 * index, stamp=float(index), camera="front", like=index if index in strange else 1000))
        archive.add(make_frame(2 * index + 1, stamp=float(index), camera="rear", like=2000))
    archive.wait()
    assert archive.table.count == 2 * frames
    return archive


def frame_ids(archive: Archive, scores: np.ndarray, count: int) -> list[int]:
    """Ids of the frames with the highest scores."""
    return [int(archive.table.frames["frame_id"][slot]) for slot in np.argsort(-scores, kind="stable")[:count]]


def test_a_frame_unlike_its_neighbours_is_novel_and_another_camera_is_not():
    archive = archive_of(200)
    scores = novelty_scores(archive, archive.table.frames["live"])
    assert sorted(frame_ids(archive, scores, len(STRANGE))) == [2 * index for index in STRANGE]
    rear = archive.table.frames["camera"] == archive.table.frames["camera"][archive.table.slot_of(1)]
    live = archive.table.frames["live"]
    assert np.ptp(scores[live & rear]) < 1e-3


def test_frames_that_may_not_be_looked_at_are_not_scored_and_do_not_count_as_neighbours():
    archive = archive_of(40, strange=(20,))
    frames = archive.table.frames
    allowed = frames["live"] & (frames["stamp"] < 20)
    scores = novelty_scores(archive, allowed)
    assert np.isneginf(scores[~allowed]).all() and np.isfinite(scores[allowed]).all()
    assert np.isneginf(novelty_scores(archive, np.zeros_like(allowed))).all()
    alone = frames["frame_id"] == 40
    assert np.isfinite(novelty_scores(archive, alone & frames["live"])[alone & frames["live"]]).all()


@pytest.mark.parametrize("size", [1, NEIGHBOURS, 1000])
def test_the_size_of_the_chunks_changes_nothing(size, monkeypatch):
    archive = archive_of(60)
    live = archive.table.frames["live"]
    expected = novelty_scores(archive, live)
    monkeypatch.setattr(type(archive.plan), "index_chunk", size)
    monkeypatch.setattr(novelty, "SMALLEST_CHUNK", size)
    np.testing.assert_allclose(novelty_scores(archive, live)[live], expected[live], atol=2e-4)


def test_a_question_of_order_takes_what_was_new_first_or_last():
    archive = archive_of(200)
    live = archive.table.frames["live"]
    queries = {layer: torch.ones(4, SHAPE.head_dim) for layer in SHAPE.index_layers}
    settings = RetrievalSettings(top_k=3)
    first = choose_frames(archive, settings, None, "what did you see first?", queries, live)
    last = choose_frames(archive, settings, None, "what did you see last?", queries, live)
    assert [frame.frame_id for frame in first] == [2 * index for index in STRANGE]
    assert [frame.frame_id for frame in last] == [2 * index for index in reversed(STRANGE)]
    assert all(NOVELTY in frame.ranks for frame in first + last)
