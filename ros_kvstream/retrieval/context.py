# SPDX-License-Identifier: Apache-2.0
"""Context of one question: the prompt, the retrieved frames in time order, then the frames that the arena shows.

Retrieved frames are written into the reserved slots behind the arena's frames, with their keys rotated to their new
positions, and rolled back with the question.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ros_kvstream.errors import NotCoveredError
from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.archive.records import ArchivedFrame
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.memory.positions import TimestampPositions
from ros_kvstream.memory.stream_clock import StreamClock
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.layout import TEXT_AFTER, TEXT_BEFORE
from ros_kvstream.records import FrameEvidence, Question
from ros_kvstream.retrieval.archive_retrieval import ArchiveRetrieval
from ros_kvstream.retrieval.evidence import retrieved_evidence
from ros_kvstream.retrieval.fusion import RankedFrame
from ros_kvstream.retrieval.internal import question_queries
from ros_kvstream.retrieval.ranking import choose_frames, searched_order
from ros_kvstream.retrieval.token_indices import grid_coordinates

LARGE_ARCHIVE, THIN_ARENA = 4, 8
"""``context: auto`` shows only the newest of the arena's frames where the archive holds many times as many frames as
fit into the arena: eight times for embeddings; four times for keys and values, beyond the range that the model reads
well."""
LONGEST_PAUSE = 3.5
"""Longest time between two retrieved frames as the model sees it, seconds. Without pauses between moments, the tiny
model answered .6 of the questions of order on tuning seeds, with pauses of 1 s .9, from 2 s on all of them."""


class Stream(Protocol):
    """The parts of a stream from which a context is built."""

    model: VideoLanguageModel
    arena: Arena
    frame_index: FrameIndex
    positions: TimestampPositions
    clock: StreamClock
    archive_retrieval: ArchiveRetrieval | None


@dataclass(frozen=True)
class Context:
    """What a question attends to."""

    visible: list[Tensor] | None
    """Per layer bool [kv_heads, slots] over the arena's slots; None shows everything."""
    shown: tuple[int, ...]
    """Ids of the arena's frames that are visible."""
    evidence: tuple[FrameEvidence, ...]
    """The retrieved frames, best first."""
    by_time: bool = False
    """Whether they are ordered by time, since the question asks for the first or the last moment."""


def build_context(stream: Stream, question: Question, start: int, capacity: int) -> Context:
    """Choose what a question attends to, and append the retrieved frames to the arena.

    The caller marks the arena before and rolls it back after the answer, or when this raises.

    :param start: first position of the question; :param capacity: slots for retrieved frames.
    :raises NotCoveredError: when no frame passes the question's filters.
    """
    retrieval = stream.archive_retrieval
    if retrieval is not None:
        retrieval.embed_pending()
        archive = retrieval.searchable
        if archive is not None:
            context = _retrieve(stream, retrieval, archive, question, start, capacity)
            if context.shown or context.evidence:
                return context
    frames = tuple(stream.frame_index.matching(question.scope))
    if not frames:
        raise NotCoveredError(f"no remembered frame matches {question.scope}: widen these limits")
    if not question.scope.limited:
        return Context(None, frames, ())
    return Context(stream.arena.visible(list(frames)), frames, ())


def _retrieve(
    stream: Stream, retrieval: ArchiveRetrieval, archive: Archive, question: Question, start: int, capacity: int
) -> Context:
    """The context of a question with the archive; frames are appended after the archive's lock is given back."""
    arena, table, settings = stream.arena, archive.table, retrieval.settings
    kept = arena.frames_kept()
    matching = [frame for frame in stream.frame_index.matching(question.scope) if frame in kept]
    queries = search_queries(stream, retrieval, question.ids, start) if settings.internal_weight > 0 else {}
    with archive.lock:
        alone = not _newest_only(stream, retrieval, archive)
        shown = tuple(matching) if alone else _newest(stream.frame_index, matching, settings.newest_frames)
        newest = [] if alone else _afresh(archive, shown, capacity)
        held = {frame: min(1.0, kept[frame] / max(stream.frame_index[frame].tokens, 1)) for frame in shown}
        held |= {frame.frame_id: 1.0 for frame in newest}
        if alone and shown and retrieval.content.afresh:
            present, capacity = held, 0
        else:
            present = {frame: share for frame, share in held.items() if share > 1 - 1e-6}
            capacity -= _tokens(newest)
        allowed = table.matching(question.scope)
        chosen = choose_frames(archive, settings, retrieval.encoder, question.text, queries, allowed, present)
        patches = [int(table.frames["patches"][frame.slot]) for frame in chosen]
        added = within_capacity(chosen, patches, capacity, present)
        fetched = archive.fetch([frame.slot for frame in added])
    seen = () if newest else shown
    visible = None if len(seen) == len(kept) else arena.visible(list(seen))
    if fetched or newest:
        _append(stream, retrieval, [*fetched, *newest], seen, start)
    records = {frame: (stream.frame_index[frame], share) for frame, share in present.items()}
    evidence = retrieved_evidence(chosen, fetched, records, stream.frame_index.map)
    return Context(visible, shown, evidence, searched_order(settings, question.text) in ("first", "last"))


def _tokens(frames: Sequence[ArchivedFrame]) -> int:
    return sum(len(frame.coordinates) for frame in frames)


def _afresh(archive: Archive, shown: Sequence[int], capacity: int) -> list[ArchivedFrame]:
    """The visible frames of the arena, to be prefilled afresh in their place; empty when they stay as they are."""
    newest = archive.newest_frames(shown)
    return newest if _tokens(newest) <= capacity and len(newest) == len(shown) else []


def within_capacity(
    ranked: Sequence[RankedFrame], patches: Sequence[int], capacity: int, present: Collection[int]
) -> list[RankedFrame]:
    """The ranked frames that are added to the context, oldest first: retrieved frames never displace the newest ones.

    :param ranked: chosen frames, best first; :param patches: tokens of each; :param capacity: tokens for all of them;
    :param present: ids of frames that are in the context anyway.
    """
    added: list[RankedFrame] = []
    for frame, tokens in zip(ranked, patches, strict=True):
        if frame.frame_id not in present and tokens <= capacity:
            added.append(frame)
            capacity -= tokens
    return sorted(added, key=lambda frame: frame.frame_id)


def search_queries(stream: Stream, retrieval: ArchiveRetrieval, ids: Sequence[int], start: int) -> dict[int, Tensor]:
    """Queries of a question that attends to no frame, layer -> float32 [heads, head_dim]; the arena is unchanged."""
    arena, model = stream.arena, stream.model
    mark = arena.mark()
    positions = model.layout.text(start, len(ids))
    arena.begin(Chunk.of_text(positions), frames=False)
    try:
        with model.capture_queries(retrieval.layers) as queries:
            model.forward(arena, model.embed(ids), positions, logits=False, visible=arena.visible([]))
    finally:
        arena.roll_back(mark)
    return question_queries(queries, retrieval.settings.query)


# -- frames of the arena ------------------------------------------------------------------------------------------


def _newest_only(stream: Stream, retrieval: ArchiveRetrieval, archive: Archive) -> bool:
    """Whether only the newest of the arena's frames are visible beside the retrieved ones, or else all of the arena.

    Frames that are prefilled afresh do not attend to the arena. A question sees either them or all of the arena, which
    serves a stream of which it holds a good part.
    """
    if retrieval.settings.context != "auto":
        return retrieval.settings.context == "newest"
    ratio = archive.table.count * archive.plan.shape.patches / stream.arena.plan.frame_slots
    if retrieval.content.afresh:
        return ratio >= THIN_ARENA
    long = stream.positions.newest - stream.positions.start >= stream.model.position_range.limit
    return long and ratio >= LARGE_ARCHIVE


def _newest(frame_index: FrameIndex, frames: Sequence[int], count: int) -> tuple[int, ...]:
    """The newest ``count`` of the frames, and the newest of every camera that is not among them."""
    chosen: list[int] = []
    cameras: set[str] = set()
    for frame in reversed(frames) if count else ():
        camera = frame_index[frame].camera
        if len(chosen) < count or camera not in cameras:
            chosen.append(frame)
            cameras.add(camera)
        elif len(cameras) == len(frame_index.cameras):
            break
    return tuple(sorted(chosen))


# -- frames of the archive ----------------------------------------------------------------------------------------


def _append(
    stream: Stream, retrieval: ArchiveRetrieval, fetched: Sequence[ArchivedFrame], shown: Sequence[int], start: int
) -> None:
    """Append retrieved frames behind the arena's slots."""
    arena, model = stream.arena, stream.model
    coordinates = []
    for frame in fetched:
        indices = frame.coordinates[:, 0].long() * frame.grid[1] + frame.coordinates[:, 1]
        coordinates.append(grid_coordinates(model, indices, *frame.grid))
    if retrieval.settings.positions == "original":
        starts = [stream.positions.locate(stream.clock.past(frame.stamp, frame.camera)) for frame in fetched]
    else:
        starts = _consecutive_starts(stream, fetched, coordinates, shown, start)
    positions = torch.cat(
        [
            model.frame_positions(first, *frame.grid, of_frame)
            for frame, first, of_frame in zip(fetched, starts, coordinates, strict=True)
        ]
    )
    counts = torch.tensor([len(frame.coordinates) for frame in fetched])
    frames = torch.tensor([frame.frame_id for frame in fetched], dtype=torch.int32).repeat_interleave(counts)
    retrieval.content.read(arena, fetched, Chunk(positions, frames, torch.zeros(len(frames), dtype=torch.int16)))


def _consecutive_starts(
    stream: Stream, fetched: Sequence[ArchivedFrame], coordinates: Sequence[Tensor], shown: Sequence[int], start: int
) -> list[int]:
    """First position of each frame's grid, before the oldest visible frame or before the question.

    Frames are as far apart as they were in time, up to LONGEST_PAUSE, or less where there is no room for it.
    """
    model, oldest, stamp = stream.model, start, fetched[-1].stamp
    if shown:
        slots = stream.arena.frame_slots(0)
        visible = torch.isin(slots.frames, torch.tensor(shown, dtype=torch.int32, device=slots.frames.device))
        if visible.any():
            oldest = int(slots.positions[..., 0][visible].min())
            stamp = min(stream.frame_index[frame].stamp for frame in shown)
    texts = [[int((part[:, 0] == side).sum()) for side in (TEXT_BEFORE, TEXT_AFTER)] for part in coordinates]
    spans = [model.layout.span(*frame.grid) + sum(text) for frame, text in zip(fetched, texts, strict=True)]
    pauses = []
    for frame, span, later in zip(fetched, spans, [*(frame.stamp for frame in fetched[1:]), stamp], strict=True):
        pause = min(max(later - frame.stamp, 0.0), LONGEST_PAUSE) * model.tokens_per_second
        pauses.append(max(0.0, pause - span))
    room = oldest - stream.positions.start - sum(spans)
    share = min(1.0, max(0.0, room / max(sum(pauses), 1.0)))
    starts = []
    for span, pause, (before, _) in zip(reversed(spans), reversed(pauses), reversed(texts), strict=True):
        oldest -= span + round(share * pause)
        starts.append(oldest + before)
    return starts[::-1]
