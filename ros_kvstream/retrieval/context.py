"""One question's context: the prompt, the retrieved moments in time order, then what the arena shows beside them.

Retrieved frames are written into the room planned behind the arena's frames, turned to their positions once from
un-rotated keys, and rolled back with the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.archive.records import ArchivedFrame
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.memory.positions import TimestampPositions
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.layout import TEXT_AFTER, TEXT_BEFORE
from ros_kvstream.records import FrameEvidence
from ros_kvstream.retrieval.archive_retrieval import ArchiveRetrieval
from ros_kvstream.retrieval.fusion import RankedFrame, filter_slots
from ros_kvstream.retrieval.internal import question_queries
from ros_kvstream.retrieval.now_gate import within_room
from ros_kvstream.retrieval.token_indices import grid_coordinates

LARGE_ARCHIVE = 4
"""From this many times the arena's frames on an archive alone tells the story better than it does with what the arena
still holds, once that reaches far back; a smaller one forgets what the arena may still know."""
TRUSTED_SHARE = 0.375
"""Share of the trained positions over which a model reads its arena well; measured on the tiny model: 1,300 of 4,000
seconds were read as well as 100, 1,700 worse than retrieved moments at consecutive positions."""


@dataclass(frozen=True)
class Filters:
    """Which frames may be looked at."""

    camera: str = ""
    """'' = all."""
    since: float = 0.0
    """Seconds; 0 = unbounded."""
    until: float = 0.0


@dataclass(frozen=True)
class Context:
    """What a question sees."""

    visible: list[Tensor] | None
    """Per layer bool [kv_heads, slots] over the first slots; None shows everything."""
    shown: tuple[int, ...]
    """Frame ids of the arena's own frames that are seen."""
    evidence: tuple[FrameEvidence, ...]
    """The retrieved frames, best first."""


class ContextBuilder:
    """Brings the right moments back for one question."""

    def __init__(self, model: VideoLanguageModel, arena: Arena, frame_index: FrameIndex, positions: TimestampPositions, archive_retrieval: ArchiveRetrieval):
        self.model = model
        self.arena = arena
        self.frame_index = frame_index
        self.positions = positions
        self.archive_retrieval = archive_retrieval

    def build(self, question: str, ids: Sequence[int], start: int, filters: Filters, room: int) -> Context | None:
        """Retrieve, and append what was retrieved to the arena; None when there is nothing to retrieve from.

        The caller marked the arena before and rolls it back after the answer, or when this raises.

        :param ids: the question's tokens; :param start: its first position; :param room: slots for retrieved frames.
        """
        self.archive_retrieval.embed_pending()
        retriever = self.archive_retrieval.retriever
        if retriever is None:
            return None
        table, settings = retriever.archive.table, self.archive_retrieval.settings
        allowed = filter_slots(table.frames, table.camera_names, filters.camera, filters.since, filters.until)
        shown = self._shown(filters)
        queries = self.queries(ids, start) if settings.internal_weight > 0 else {}
        chosen = retriever.choose(question, queries, allowed)
        patches = [int(table.frames["patches"][frame.slot]) for frame in chosen]
        present = self._whole(set(shown).intersection(frame.frame_id for frame in chosen))
        added = within_room(chosen, patches, room, present)
        fetched = retriever.archive.fetch([frame.slot for frame in added])
        everything = len(shown) == len(self.arena.frames_kept())
        visible = None if everything else self.arena.visible(list(shown))
        if fetched:
            coordinates = self._places(fetched)
            self._append(fetched, coordinates, self._times(fetched, coordinates, shown, start))
        return Context(visible, shown, self._evidence(chosen, fetched, present))

    def _shown(self, filters: Filters) -> tuple[int, ...]:
        """The arena's own frames that are seen: all that pass the filters, or the newest, every camera's too."""
        held = self.arena.frames_kept()
        matching = self.frame_index.matching(filters.camera, filters.since, filters.until)
        if not self._newest_only():
            return tuple(frame for frame in matching if frame in held)
        return self._newest(frame for frame in reversed(matching) if frame in held)

    def _newest(self, newest_first: Iterable[int]) -> tuple[int, ...]:
        """The newest frames, and those of cameras that are not among them; looks no further back than it must."""
        wanted = self.archive_retrieval.settings.newest_frames
        chosen: list[int] = []
        cameras: set[str] = set()
        for frame in newest_first if wanted else ():
            camera = self.frame_index[frame].camera
            if len(chosen) < wanted or camera not in cameras:
                chosen.append(frame)
                cameras.add(camera)
            elif len(cameras) == len(self.frame_index.cameras):
                break
        return tuple(sorted(chosen))

    def _newest_only(self) -> bool:
        """Whether only the newest of the arena's frames are shown beside the retrieved ones."""
        archive = self.archive_retrieval.archive
        if self.archive_retrieval.settings.context != "auto" or archive is None:
            return self.archive_retrieval.settings.context == "newest"
        if self.positions.newest - self.positions.start < TRUSTED_SHARE * self.model.position_limit:
            return False
        arena_frames = self.arena.plan.frame_slots / archive.plan.shape.patches
        return archive.table.count >= LARGE_ARCHIVE * arena_frames

    def _whole(self, shown: Iterable[int]) -> set[int]:
        """Of these frames, those that the arena still holds whole: they need not be brought back."""
        kept = self.arena.frames_kept()
        return {frame for frame in shown if kept.get(frame, 0.0) >= self.frame_index[frame].tokens - 1e-6}

    def queries(self, ids: Sequence[int], start: int) -> dict[int, Tensor]:
        """The question's queries before it has seen any frame; the arena is as before afterwards."""
        mark = self.arena.mark()
        positions = self.model.text_positions(start, len(ids))
        self.arena.begin(Chunk.of_text(positions), frames=False)
        try:
            with self.model.capture_queries(self.archive_retrieval.layers) as queries:
                self.model.forward(
                    self.arena, self.model.embed(ids), positions, logits=False, visible=self.arena.visible([])
                )
        finally:
            self.arena.roll_back(mark)
        return question_queries(queries, self.archive_retrieval.settings.query)

    def _times(
        self, fetched: Sequence[ArchivedFrame], coordinates: Sequence[Tensor], shown: Sequence[int], start: int
    ) -> list[int]:
        """First position of each retrieved frame's grid, oldest first.

        Consecutive: right before the oldest moment that the arena shows (before the question, when it shows none).
        """
        if self.archive_retrieval.settings.positions == "original":
            return [self.positions.locate(frame.stamp) for frame in fetched]
        oldest = start
        if shown:
            slots = self.arena.frame_slots(0)
            wanted = torch.isin(slots.frames, torch.tensor(shown, dtype=torch.int32, device=slots.frames.device))
            if wanted.any():
                oldest = int(slots.positions[..., 0][wanted].min())
        starts = []
        for frame, of_frame in zip(reversed(fetched), reversed(coordinates), strict=True):
            before, after = ((of_frame[:, 0] == side).sum().item() for side in (TEXT_BEFORE, TEXT_AFTER))
            oldest -= int(self.model.layout.span(*frame.grid) + before + after)
            starts.append(oldest + int(before))
        return starts[::-1]

    def _places(self, fetched: Sequence[ArchivedFrame]) -> list[Tensor]:
        """Places of each retrieved frame's tokens, int32 [tokens, 2]."""
        numbers = [frame.coordinates[:, 0].long() * frame.grid[1] + frame.coordinates[:, 1] for frame in fetched]
        return [grid_coordinates(self.model, found, *frame.grid) for found, frame in zip(numbers, fetched, strict=True)]

    def _append(
        self, fetched: Sequence[ArchivedFrame], coordinates: Sequence[Tensor], starts: Sequence[int]
    ) -> None:
        """Write retrieved frames behind the arena's slots, keys turned to their positions."""
        positions = torch.cat(
            [
                self.model.frame_positions(start, *frame.grid, of_frame)
                for frame, start, of_frame in zip(fetched, starts, coordinates, strict=True)
            ]
        )
        counts = torch.tensor([len(frame.coordinates) for frame in fetched])
        frames = torch.tensor([frame.frame_id for frame in fetched], dtype=torch.int32).repeat_interleave(counts)
        self.arena.begin(Chunk(positions, frames, torch.zeros(len(frames), dtype=torch.int16)), frames=False)
        for index in range(self.model.shape.layers):
            keys = torch.cat([frame.keys[index] for frame in fetched], dim=1).to(self.arena.device)
            values = torch.cat([frame.values[index] for frame in fetched], dim=1).to(self.arena.device)
            turned = self.arena.rotary.rotate(keys, positions.to(self.arena.device))
            self.arena.write(index, turned.to(self.model.shape.dtype), values.to(self.model.shape.dtype))
        self.arena.commit()

    def _evidence(
        self, chosen: Sequence[RankedFrame], fetched: Sequence[ArchivedFrame], present: set[int]
    ) -> tuple[FrameEvidence, ...]:
        """The chosen frames that are in the context, retrieved or shown by the arena anyway, best first."""
        found = {frame.frame_id: frame for frame in fetched}
        evidence = []
        for ranked in chosen:
            frame = found.get(ranked.frame_id)
            if frame is None and ranked.frame_id in self.frame_index and ranked.frame_id in present:
                record = self.frame_index[ranked.frame_id]
                stamps = (record.stamp, record.stamp_end, record.camera)
                evidence.append(_evidence_of(ranked, *stamps, 1.0))
            if frame is None:
                continue
            share = min(1.0, len(frame.coordinates) / (frame.grid[0] * frame.grid[1]))
            evidence.append(_evidence_of(ranked, frame.stamp, frame.stamp_end, frame.camera, share))
        return tuple(evidence)


def _evidence_of(ranked: RankedFrame, stamp: float, stamp_end: float, camera: str, share: float) -> FrameEvidence:
    return FrameEvidence(
        ranked.frame_id,
        stamp,
        stamp_end,
        camera,
        ranked.fused,
        kept_share=share,
        ranks=dict(ranked.ranks),
        scores=dict(ranked.scores),
    )
