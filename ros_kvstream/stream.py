"""VideoMemory: observe frames, ask questions - all that a Python user needs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch

from ros_kvstream.answering import Answerer, AnswerLimits
from ros_kvstream.errors import FrameError, KvStreamError, QuestionError
from ros_kvstream.memory.archive_records import ArchiveStatus
from ros_kvstream.memory.arena import NO_FRAME, Arena, Chunk
from ros_kvstream.memory.budget import MIB, BudgetPlan, plan_budget
from ros_kvstream.memory.frame_log import FrameLog, FrameRecord
from ros_kvstream.memory.positions import PositionClock
from ros_kvstream.memory.selection import make_policy
from ros_kvstream.models.base import Frame, FrameTokens, VideoLanguageModel
from ros_kvstream.models.loading import load_model
from ros_kvstream.records import Answer, MemoryStats, Observation
from ros_kvstream.retrieval.context import ContextBuilder
from ros_kvstream.retrieval.recall import Recall
from ros_kvstream.settings import StreamSettings

MAX_FRAME_SIDE = 16384
"""Longest side of a frame in pixels; larger ones are taken for a mistake."""


class VideoMemory:
    """A visual memory of fixed size over one endless stream. Not thread-safe: one thread owns it."""

    def __init__(self, settings: StreamSettings | None = None, model: VideoLanguageModel | None = None) -> None:
        """Load the model, plan the budget, allocate everything, prefill the prompt.

        :raises ModelError, BudgetError, SettingsError: with what to change.
        """
        self.settings = settings or StreamSettings()
        memory = self.settings.memory
        self.model = model or load_model(self.settings.model, self.settings.seed)
        self.policy = make_policy(memory.policy, memory.policy_options)
        self._limit = min(memory.position_limit or self.model.position_limit, self.model.position_limit)
        self._overhead = len(self.model.suffix_ids(""))
        self.recall: Recall | None = None
        if self.settings.archive.enabled:
            self.recall = Recall(self.settings.archive, self.settings.retrieval, self.model)
        self._text_room = self._overhead + memory.max_question_tokens + memory.max_answer_tokens
        self._reserve = self._text_room + (self.recall.room(0) if self.recall else 0)
        self._largest_frame = 1
        self.log = FrameLog(self.recall.first_frame_id if self.recall else 0)
        self.arena = Arena(self._plan(memory.budget_mib, 1), self.model.rotary, self.model.device)
        self._budget_mib = memory.budget_mib
        self._counters = {"seen": 0, "kept": 0, "gated": 0, "questions": 0}
        self._start()

    def _plan(self, budget_mib: float, frame_tokens: int) -> BudgetPlan:
        return plan_budget(
            self.model.shape,
            int(budget_mib * MIB),
            pinned=len(self.model.prefix_ids),
            reserve=self._reserve,
            frame_tokens=frame_tokens * self.settings.memory.block_frames,
        )

    def _start(self) -> None:
        """An empty stream: positions from the prompt's end, the prompt prefilled and pinned."""
        start, rate = len(self.model.prefix_ids), self.model.tokens_per_second
        self.clock = PositionClock(start, rate, self._limit, room=self._text_room)
        self._block: list[tuple[Frame, FrameRecord]] = []
        self._largest_side = 1
        self.arena.clear()
        ids = self.model.prefix_ids
        self._append(self.model.embed(ids), self.model.text_positions(0, len(ids)), None, None)
        self.arena.pin()

    # -- frames ---------------------------------------------------------------------------------------------------

    def observe(self, frame: Frame, stamp: float, camera: str = "camera") -> Observation:
        """Take one frame into the memory; a full block is prefilled at once, a compaction makes room before it.

        :param frame: RGB uint8 [height, width, 3]; :param stamp: seconds of the header stamp.
        :raises FrameError: for a frame that cannot be taken; the memory is unchanged.
        """
        self._check_frame(frame, stamp)
        rows, columns = self.model.grid(frame.shape[0], frame.shape[1])
        self._check_room(rows * columns, frame)
        self._counters["seen"] += 1
        record = self.log.add(stamp, camera, rows * columns)
        self._block.append((frame, record))
        timings = (0.0, 0.0, 0.0)
        if len(self._block) >= self.settings.memory.block_frames:
            timings = self._flush()
        return Observation(record.frame_id, True, rows * columns, *timings)

    @staticmethod
    def _check_frame(frame: Frame, stamp: float) -> None:
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            found = f"shape {getattr(frame, 'shape', None)}, type {getattr(frame, 'dtype', type(frame).__name__)}"
            raise FrameError(f"frame of {found}: must be RGB uint8 [height, width, 3]")
        height, width = frame.shape[:2]
        if not (1 <= height <= MAX_FRAME_SIDE and 1 <= width <= MAX_FRAME_SIDE):
            raise FrameError(f"frame of {width} x {height} pixels: each side must be 1 to {MAX_FRAME_SIDE}")
        if max(height, width) > 200 * min(height, width):
            raise FrameError(f"frame of {width} x {height} pixels: sides may differ by a factor of 200 at most")
        if not math.isfinite(stamp):
            raise FrameError(f"stamp {stamp}: need a finite number of seconds")

    def _check_room(self, tokens: int, frame: Frame) -> None:
        """A larger frame than any before must still leave a compaction something to choose from."""
        if tokens > self._largest_frame:
            try:
                self._plan_room(tokens)
            except KvStreamError as error:
                size = f"{frame.shape[1]} x {frame.shape[0]}"
                raise FrameError(f"frame of {size} pixels takes {tokens} slots: {error}") from error
            self._largest_frame = tokens

    def _plan_room(self, tokens: int) -> None:
        """Check that frames of this size fit; the first one also tells how much room retrieved frames need."""
        if self.recall is not None and self._largest_frame == 1:
            before, self._reserve = self._reserve, self._text_room + self.recall.room(tokens)
            try:
                plan = self._plan(self._budget_mib, tokens)
            except KvStreamError:
                self._reserve = before
                raise
            self.arena.resize(plan)
            self.recall.prepare(tokens)
            self.log = FrameLog(self.recall.first_frame_id)
        self._plan(self._budget_mib, tokens)

    def _flush(self) -> tuple[float, float, float]:
        """Prefill the waiting block; returns milliseconds of vision tower, prefill and compaction.

        A block whose prefill fails is taken back whole: its frames count as never seen, the rest is untouched.
        """
        if not self._block:
            return 0.0, 0.0, 0.0
        try:
            started = time.perf_counter()
            encoded = self.model.encode_frames([frame for frame, _ in self._block])
            seen = time.perf_counter()
            self._make_room(sum(len(tokens.embeddings) for tokens in encoded))
            ready = time.perf_counter()
            self._prefill(encoded, [record for _, record in self._block])
            done = time.perf_counter()
            if self.recall is not None:
                self.recall.remember(self.arena, [frame for frame, _ in self._block], encoded,
                                     [record for _, record in self._block])  # fmt: skip
        except BaseException:
            self._counters["seen"] -= len(self._block)
            self.log.forget(record.frame_id for _, record in self._block)
            raise
        else:
            self._counters["kept"] += len(self._block)
        finally:
            self._block = []
        return 1e3 * (seen - started), 1e3 * (done - ready), 1e3 * (ready - seen)

    def _prefill(self, encoded: list[FrameTokens], records: list[FrameRecord]) -> None:
        times = self._advance(records)
        positions, frames, cameras = [], [], []
        for tokens, record, t in zip(encoded, records, times.tolist(), strict=True):
            self._largest_side = max(self._largest_side, tokens.rows, tokens.columns)
            positions.append(self.model.frame_positions(t, tokens.rows, tokens.columns))
            count = len(tokens.embeddings)
            frames.append(torch.full((count,), record.frame_id, dtype=torch.int32))
            cameras.append(torch.full((count,), self.log.camera_id(record.camera), dtype=torch.int16))
        embeddings = torch.cat([tokens.embeddings for tokens in encoded])
        self._append(embeddings, torch.cat(positions), torch.cat(frames), torch.cat(cameras))

    def _advance(self, records: list[FrameRecord]) -> torch.Tensor:
        """Temporal positions of a block's frames, all positions in use re-based where they need it."""
        times = torch.zeros(0, dtype=torch.int32)
        for record in records:
            change = self.clock.rebase(record.stamp)
            if change is not None:
                self.arena.replace_positions(change)
                times = change(times)
            times = torch.cat([times, torch.tensor([self.clock.advance(record.stamp)], dtype=torch.int32)])
            self.log.set_segment(record.frame_id, self.clock.segment)
        return times

    def _append(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        frames: torch.Tensor | None,
        cameras: torch.Tensor | None,
    ) -> None:
        """One forward into the arena; nothing of it stays when it fails."""
        count = len(embeddings)
        chunk = Chunk(
            positions,
            torch.full((count,), NO_FRAME, dtype=torch.int32) if frames is None else frames,
            torch.zeros(count, dtype=torch.int16) if cameras is None else cameras,
        )
        self.arena.begin(chunk, frames=frames is not None)
        try:
            self.model.forward(self.arena, embeddings, positions, logits=False)
        except BaseException:
            self.arena.abort()
            raise
        self.arena.commit()

    def _make_room(self, tokens: int) -> None:
        """Compact where the next tokens would not fit."""
        if self.arena.frame_slots_free < tokens:
            plan = self.arena.plan
            keep = min(int(plan.frame_slots * self.settings.memory.keep_ratio), plan.frame_slots - tokens)
            self.policy.check(self.arena.frame_slots_used, tokens, keep)
            self._compact(keep)

    def _compact(self, keep: int) -> None:
        """Select for every layer first (may fail, changes nothing), then move (cannot fail half way)."""
        kept = [self.policy.select(self.arena.frame_slots(i), keep) for i in range(self.model.shape.layers)]
        self.arena.keep(kept)
        waiting = [record.frame_id for _, record in self._block]
        self.log.retain([*self.arena.frames_kept(), *waiting])

    # -- questions ------------------------------------------------------------------------------------------------

    def ask(
        self,
        question: str,
        *,
        camera: str = "",
        since: float = 0.0,
        until: float = 0.0,
        max_new_tokens: int | None = None,
        should_stop: Callable[[], bool] | None = None,
        on_token: Callable[[str], None] | None = None,
    ) -> Answer:
        """Answer a question about the stream; the memory afterwards is what it was before, bit for bit.

        :param camera: only frames of this camera ('' = all); :param since, until: only frames in this span of stamps,
            seconds (0 = unbounded); :param max_new_tokens: at most ``memory.max_answer_tokens`` (None = that).
        :param should_stop: asked before every token; True raises QuestionCancelled.
        :param on_token: gets each new piece of the answer's text.
        :raises QuestionError: when the question or a limit is not acceptable, or there is no frame to ask about.
        """
        limits = AnswerLimits(camera, since, until, max_new_tokens, self.settings.memory)
        ids = self._question_ids(question)
        started = time.perf_counter()
        self._flush()
        flush_ms = 1e3 * (time.perf_counter() - started)
        newest = self.log.newest()
        if newest is None:
            raise QuestionError("there is no frame yet: wait until the camera has been seen")
        builder = None
        if self.recall is not None:
            builder = ContextBuilder(self.model, self.arena, self.log, self.clock, self.recall)
        answerer = Answerer(self.model, self.arena, self.log, builder)
        start = self.model.text_start(self.clock.newest, self._largest_side)
        text, evidence, latency, reason = answerer.answer(question, ids, start, limits, flush_ms, should_stop, on_token)
        self._counters["questions"] += 1
        return Answer(question, text, evidence, latency, self.stats(), newest.stamp, reason)

    def _question_ids(self, question: str) -> list[int]:
        if not question or not question.strip():
            raise QuestionError("the question is empty")
        ids = self.model.suffix_ids(question.strip())
        limit = self.settings.memory.max_question_tokens
        if len(ids) - self._overhead > limit:
            raise QuestionError(
                f"the question has {len(ids) - self._overhead} tokens: the limit is {limit}. "
                "Shorten it or raise memory.max_question_tokens."
            )
        return ids

    # -- the rest -------------------------------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        """Name of the loaded model."""
        return self.model.name

    def stats(self) -> MemoryStats:
        """The memory's figures now."""
        kept = self.arena.frames_kept()
        records = [self.log[frame] for frame in kept if frame in self.log]
        newest = self.log.newest()
        archive = self.recall.status() if self.recall else ArchiveStatus("ok")
        return MemoryStats(
            budget_bytes=int(self._budget_mib * MIB),
            allocated_bytes=self.arena.allocated_bytes,
            used_bytes=self.arena.used_bytes,
            peak_bytes=self.arena.peak_bytes,
            slots=self.arena.plan.frame_slots,
            slots_used=self.arena.frame_slots_used,
            frames_seen=self._counters["seen"],
            frames_kept=self._counters["kept"] + len(self._block),
            frames_gated=self._counters["gated"],
            frames_remembered=len(kept),
            oldest_stamp=min((record.stamp for record in records), default=0.0),
            newest_stamp=newest.stamp if newest else 0.0,
            compactions=self.arena.compactions,
            rebases=self.clock.rebases,
            questions=self._counters["questions"],
            archive_budget_bytes=archive.budget_bytes,
            archive_bytes=archive.used_bytes,
            archive_frames=archive.frames,
        )

    def check_budget(self, budget_mib: float) -> None:
        """Raise BudgetError when a cap is too small for this stream; changes nothing, may be called from any thread."""
        self._plan(budget_mib, self._largest_frame)

    def set_budget(self, budget_mib: float) -> None:
        """Lower or raise the cap on the live stream; lowering keeps what the policy rates highest.

        :raises BudgetError: when it is too small; the memory is unchanged then.
        """
        plan = self._plan(budget_mib, self._largest_frame)
        self._flush()
        if self.arena.frame_slots_used > plan.frame_slots:
            self._compact(plan.frame_slots)
        self.arena.resize(plan)
        self._budget_mib = budget_mib

    def clear(self) -> None:
        """Forget every frame; the budget, the model and the counters stay."""
        self.log.clear()
        if self.recall is not None:
            self.recall.clear()
        self._start()

    def close(self) -> None:
        """Forget everything; the object is of no use afterwards."""
        self._block = []
        if self.recall is not None:
            self.recall.close()
        self.log.clear()
        self.arena.clear()

    def idle(self) -> bool:
        """Do a little of what can wait (pictures for the external expert); False when nothing waits."""
        return self.recall.idle() if self.recall is not None else False
