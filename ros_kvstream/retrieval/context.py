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

from ros_kvstream.errors import QuestionError
from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.archive.records import ArchivedFrame
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.memory.positions import TimestampPositions
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.layout import TEXT_AFTER, TEXT_BEFORE
from ros_kvstream.records import FrameEvidence, Question
from ros_kvstream.retrieval.archive_retrieval import ArchiveRetrieval
from ros_kvstream.retrieval.evidence import retrieved_evidence
from ros_kvstream.retrieval.fusion import RankedFrame, filter_slots
from ros_kvstream.retrieval.internal import question_queries
from ros_kvstream.retrieval.ranking import choose_frames
from ros_kvstream.retrieval.token_indices import grid_coordinates

LARGE_ARCHIVE = 4
"""``context: auto`` shows only the newest of the arena's frames if the archive holds this many times as many frames."""


class Stream(Protocol):
    """The parts of a stream from which a context is built."""

    model: VideoLanguageModel
    arena: Arena
    frame_index: FrameIndex
    positions: TimestampPositions
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


def build_context(stream: Stream, question: Question, start: int, capacity: int) -> Context:
    """Choose what a question attends to, and append the retrieved frames to the arena.

    The caller marks the arena before and rolls it back after the answer, or when this raises.

    :param start: first position of the question; :param capacity: slots for retrieved frames.
    :raises QuestionError: when no frame passes the question's filters.
    """
    retrieval = stream.archive_retrieval
    if retrieval is not None:
        retrieval.embed_pending()
        archive = retrieval.searchable
        if archive is not None:
            with archive.lock:
                context = _retrieve(stream, retrieval, archive, question, start, capacity)
            if context.shown or context.evidence or not question.filtered:
                return context
    frames = tuple(stream.frame_index.matching(question.camera, question.since, question.until))
    if not question.filtered:
        return Context(None, frames, ())
    if not frames:
        raise QuestionError(
            f"no remembered frame matches camera = {question.camera!r}, since = {question.since}, "
            f"until = {question.until}: widen the filters"
        )
    return Context(stream.arena.visible(list(frames)), frames, ())


def _retrieve(
    stream: Stream, retrieval: ArchiveRetrieval, archive: Archive, question: Question, start: int, capacity: int
) -> Context:
    arena, table = stream.arena, archive.table
    allowed = filter_slots(table.frames, table.camera_names, question.camera, question.since, question.until)
    shown = _shown(stream, retrieval, archive, question)
    queries = search_queries(stream, retrieval, question.ids, start) if retrieval.settings.internal_weight > 0 else {}
    chosen = choose_frames(archive, retrieval.settings, retrieval.encoder, question.text, queries, allowed)
    patches = [int(table.frames["patches"][frame.slot]) for frame in chosen]
    kept = arena.frames_kept()
    present = [stream.frame_index[frame.frame_id] for frame in chosen if frame.frame_id in shown]
    present = [record for record in present if kept.get(record.frame_id, 0.0) >= record.tokens - 1e-6]
    added = within_capacity(chosen, patches, capacity, {record.frame_id for record in present})
    fetched = archive.fetch([frame.slot for frame in added])
    visible = None if len(shown) == len(kept) else arena.visible(list(shown))
    if fetched:
        _append(stream, retrieval, fetched, shown, start)
    return Context(visible, shown, retrieved_evidence(chosen, fetched, present))


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
    return sorted(added, key=lambda frame: (frame.stamp, frame.frame_id))


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


def _shown(stream: Stream, retrieval: ArchiveRetrieval, archive: Archive, question: Question) -> tuple[int, ...]:
    """The arena's frames that are visible: all that pass the filters, or only the newest of them."""
    settings, positions, held = retrieval.settings, stream.positions, stream.arena.frames_kept()
    matching = stream.frame_index.matching(question.camera, question.since, question.until)
    matching = [frame for frame in matching if frame in held]
    newest_only = settings.context == "newest"
    if settings.context == "auto":
        arena_frames = stream.arena.plan.frame_slots / archive.plan.shape.patches
        long = positions.newest - positions.start >= stream.model.position_range.limit
        newest_only = long and archive.table.count >= LARGE_ARCHIVE * arena_frames
    return _newest(stream.frame_index, matching, settings.newest_frames) if newest_only else tuple(matching)


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
    """Write retrieved frames behind the arena's slots, their keys rotated to their positions."""
    arena, model = stream.arena, stream.model
    coordinates = []
    for frame in fetched:
        indices = frame.coordinates[:, 0].long() * frame.grid[1] + frame.coordinates[:, 1]
        coordinates.append(grid_coordinates(model, indices, *frame.grid))
    if retrieval.settings.positions == "original":
        starts = [stream.positions.locate(frame.stamp) for frame in fetched]
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
    arena.begin(Chunk(positions, frames, torch.zeros(len(frames), dtype=torch.int16)), frames=False)
    for index in range(model.shape.layers):
        keys = torch.cat([frame.keys[index] for frame in fetched], dim=1).to(arena.device)
        values = torch.cat([frame.values[index] for frame in fetched], dim=1).to(arena.device)
        rotated = arena.rotary.rotate(keys, positions.to(arena.device))
        arena.write(index, rotated.to(model.shape.dtype), values.to(model.shape.dtype))
    arena.commit()


def _consecutive_starts(
    stream: Stream, fetched: Sequence[ArchivedFrame], coordinates: Sequence[Tensor], shown: Sequence[int], start: int
) -> list[int]:
    """First position of each frame's grid: without gaps before the oldest visible frame, or before the question."""
    oldest = start
    if shown:
        slots = stream.arena.frame_slots(0)
        visible = torch.isin(slots.frames, torch.tensor(shown, dtype=torch.int32, device=slots.frames.device))
        if visible.any():
            oldest = int(slots.positions[..., 0][visible].min())
    starts = []
    for frame, of_frame in zip(reversed(fetched), reversed(coordinates), strict=True):
        before, after = ((of_frame[:, 0] == side).sum().item() for side in (TEXT_BEFORE, TEXT_AFTER))
        oldest -= int(stream.model.layout.span(*frame.grid) + before + after)
        starts.append(oldest + int(before))
    return starts[::-1]
