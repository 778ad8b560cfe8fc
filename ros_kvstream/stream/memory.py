"""VideoMemory: observe frames, ask questions - all that a Python user needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ros_kvstream.errors import FrameError, KvStreamError, QuestionError
from ros_kvstream.memory.arena import NO_FRAME, Arena, Chunk
from ros_kvstream.memory.budget import MIB, BudgetPlan, plan_budget
from ros_kvstream.memory.frame_index import FrameIndex, FrameRecord
from ros_kvstream.memory.policies import make_policy
from ros_kvstream.memory.policies.camera_shares import CameraShares, camera_weights
from ros_kvstream.memory.positions import make_positions
from ros_kvstream.models.base import Frame, FrameTokens, VideoLanguageModel
from ros_kvstream.models.loading import load_model
from ros_kvstream.records import Answer, MemoryStats, Observation
from ros_kvstream.retrieval.archive_retrieval import ArchiveRetrieval
from ros_kvstream.retrieval.context import ContextBuilder
from ros_kvstream.settings import StreamSettings
from ros_kvstream.stream.answer import Answerer, AnswerLimits
from ros_kvstream.stream.checkpoint import SavedMemory, load_memory, save_memory
from ros_kvstream.stream.frame_block import FrameBlock, PendingGrid, check_grids
from ros_kvstream.stream.live_settings import check_settings, reconfigure
from ros_kvstream.stream.memory_figures import memory_stats
from ros_kvstream.vision.frame_check import check_frame
from ros_kvstream.vision.frame_filter import FrameFilter


class VideoMemory:
    """A visual memory of fixed size over one endless stream. Not thread-safe: one thread owns it."""

    def __init__(self, settings: StreamSettings | None = None, model: VideoLanguageModel | None = None) -> None:
        """Load the model, plan the budget, allocate everything, prefill the prompt.

        :raises ModelError, BudgetError, SettingsError: with what to change.
        """
        self.settings = settings or StreamSettings()
        memory = self.settings.memory
        beside = int(memory.budget_mib * MIB)
        self.model = model or load_model(self.settings.model, self.settings.seed, beside=beside)
        check_grids(self.model, memory.frames_per_grid)
        self.policy = make_policy(memory.policy, memory.policy_settings)
        self._limit = min(memory.position_limit or self.model.position_limit, self.model.position_limit)
        self._overhead = len(self.model.suffix_ids(""))
        self.archive_retrieval: ArchiveRetrieval | None = None
        if self.settings.archive.enabled:
            self.archive_retrieval = ArchiveRetrieval(self.settings.archive, self.settings.retrieval, self.model)
        self._text_room = self._overhead + memory.max_question_tokens + memory.max_answer_tokens
        self._reserve = self._text_room + (self.archive_retrieval.slots_needed(0) if self.archive_retrieval else 0)
        self._first_frame = self._largest_frame = 1
        self.frame_index = FrameIndex(self.archive_retrieval.first_frame_id if self.archive_retrieval else 0)
        plan = self._plan(memory.budget_mib, 1)
        self.arena = Arena(plan, self.model.rotary, self.model.device, self.settings.quantized.order)
        self.frame_filter = FrameFilter(self.settings.gate, self.settings.saliency)
        self._budget_mib = memory.budget_mib
        self._counters = {"seen": 0, "kept": 0, "gated": 0, "questions": 0}
        self._start()

    def _plan(self, budget_mib: float, frame_tokens: int) -> BudgetPlan:
        budget, room = int(budget_mib * MIB), {
            "pinned": len(self.model.prefix_ids),
            "reserve": self._reserve,
            "frame_tokens": frame_tokens * self.settings.memory.block_frames,
        }
        return plan_budget(self.model.shape, budget, self.settings.quantized, **room)

    def _start(self) -> None:
        """An empty stream: positions from the prompt's end, the prompt prefilled and pinned."""
        self._start_clock()
        memory = self.settings.memory
        self._block = FrameBlock(memory.block_frames, memory.frames_per_grid)
        self._newest_of: dict[str, int] = {}
        self.frame_filter.reset()
        self._largest_side = 1
        self.arena.clear()
        ids = self.model.prefix_ids
        self._append(self.model.embed(ids), Chunk.of_text(self.model.text_positions(0, len(ids))), frames=False)
        self.arena.pin()

    def _start_clock(self) -> None:
        """Positions from the prompt's end on; where frames take as many as they have tokens, retrieved ones do too."""
        room = self._reserve if self.model.layout.sequential else self._text_room
        self.positions = make_positions(len(self.model.prefix_ids), self.model.tokens_per_second, self._limit, room)

    # -- frames ---------------------------------------------------------------------------------------------------

    def observe(self, frame: Frame, stamp: float, camera: str = "camera") -> Observation:
        """Take one frame into the memory; a full block is prefilled at once, a compaction makes room before it.

        :param frame: RGB uint8 [height, width, 3]; :param stamp: seconds of the header stamp.
        :raises FrameError: for a frame that cannot be taken; the memory is unchanged.
        """
        check_frame(frame, stamp)
        rows, columns = self.model.grid(frame.shape[0], frame.shape[1])
        self._check_room(rows, columns, frame)
        redundant = self._gate(frame, stamp, camera)
        if redundant is not None:
            return redundant
        resized = rows * self.model.patch_side, columns * self.model.patch_side
        salient = self.frame_filter.patches(frame, stamp, camera, (rows, columns), resized)
        kept = None if salient is None else torch.from_numpy(salient)
        tokens = rows * columns if kept is None else int(kept.sum())
        seconds = self.positions.seconds(stamp)
        waiting, timings = self._block.partner(camera, (rows, columns), stamp), (0.0, 0.0, 0.0)
        if waiting is not None:
            waiting.join(frame, seconds, kept)
            self.frame_index.extend(waiting.frame_id, stamp)
        else:
            if self._block.crowded:
                self._newest_of.pop(camera, None)  # were the block lost, the gate would compare with this frame
                timings = self._flush()
            record = self.frame_index.add(stamp, camera, tokens)
            waiting = PendingGrid(record.frame_id, camera, (rows, columns), stamp, (frame,), (seconds,), kept)
            self._block.add(waiting)
            self._newest_of[camera] = record.frame_id
        self._counters["seen"] += 1
        if self._block.full:
            timings = self._flush()
        return Observation(waiting.frame_id, True, tokens if len(waiting.frames) == 1 else 0, *timings)

    def _gate(self, frame: Frame, stamp: float, camera: str) -> Observation | None:
        """Fold a redundant frame into the newest kept one of its camera; None where it is to be computed."""
        newest = self._newest_of.get(camera, NO_FRAME)
        if newest not in self.frame_index:
            self.frame_filter.forget(camera)  # what it would be folded into has been evicted
        if self.frame_filter.decide(frame, stamp, camera).kept:
            return None
        self._counters["seen"] += 1
        self._counters["gated"] += 1
        self.frame_index.extend(newest, stamp)
        if self.archive_retrieval is not None:
            self.archive_retrieval.extend(newest, stamp)
        return Observation(newest, False, 0)

    def _check_room(self, rows: int, columns: int, frame: Frame) -> None:
        """A larger frame than any before must still leave a compaction something to choose from."""
        tokens = self.model.frame_tokens(rows, columns)
        if tokens > self._largest_frame:
            size = f"{frame.shape[1]} x {frame.shape[0]}"
            try:
                self._plan_room(tokens)
            except KvStreamError as error:
                raise FrameError(f"frame of {size} pixels takes {tokens} slots: {error}") from error
            span = self.model.layout.span(rows, columns) + self.model.frame_text_tokens
            if span > self.positions.largest_span:
                raise FrameError(f"frame of {size} pixels takes {span} positions, {self.positions.largest_span} at most")
            self._largest_frame = tokens

    def _plan_room(self, tokens: int) -> None:
        """Check that frames of this size fit; the first one also tells how much room retrieved frames need."""
        if self._largest_frame == 1:
            self._first_frame = tokens
        if self.archive_retrieval is not None and self._largest_frame == 1:
            before, self._reserve = self._reserve, self._text_room + self.archive_retrieval.slots_needed(tokens)
            try:
                plan = self._plan(self._budget_mib, tokens)
                self._start_clock()
            except KvStreamError:
                self._reserve = before
                raise
            self.arena.resize(plan)
            self.archive_retrieval.prepare(tokens)
            self.frame_index = FrameIndex(self.archive_retrieval.first_frame_id)
        plan = self._plan(self._budget_mib, tokens)
        if plan.quantized:  # a larger block needs a larger native part
            self._move_to(plan)

    def _move_to(self, plan: BudgetPlan) -> None:
        """Give the arena another plan, with a compaction where what it holds does not fit."""
        if self.arena.frame_slots_used > plan.frame_slots:
            self._compact(plan.frame_slots)
        self.arena.resize(plan)

    def _flush(self) -> tuple[float, float, float]:
        """Prefill the waiting block; returns milliseconds of vision tower, prefill and compaction.

        A block whose prefill fails is taken back whole: its frames count as never seen, the rest is untouched.
        """
        if not self._block:
            return 0.0, 0.0, 0.0
        frames, records = self._block.frames, [self.frame_index[waiting.frame_id] for waiting in self._block]
        try:
            started = time.perf_counter()
            encoded = [
                self.model.complete(tokens, waiting.mean_seconds, waiting.kept)
                for tokens, waiting in zip(
                    self.model.encode_grids([waiting.frames for waiting in self._block]), self._block, strict=True
                )
            ]
            seen = time.perf_counter()
            self._make_room(sum(len(tokens.embeddings) for tokens in encoded))
            ready = time.perf_counter()
            self._prefill(encoded, records)
            done = time.perf_counter()
            if self.archive_retrieval is not None:
                self.archive_retrieval.remember(self.arena, [waiting.frames[0] for waiting in self._block], encoded, records)
        except BaseException:
            self._counters["seen"] -= frames
            self.frame_index.remove(record.frame_id for record in records)
            raise
        else:
            self._counters["kept"] += frames
        finally:
            self._block.clear()
        return 1e3 * (seen - started), 1e3 * (done - ready), 1e3 * (ready - seen)

    def _prefill(self, encoded: list[FrameTokens], records: list[FrameRecord]) -> None:
        positions: list[torch.Tensor] = []
        frames, cameras = [], []
        for tokens, record in zip(encoded, records, strict=True):
            self._largest_side = max(self._largest_side, tokens.rows, tokens.columns)
            start = self._advance(record, tokens, positions) + tokens.before
            positions.append(self.model.frame_positions(start, tokens.rows, tokens.columns, tokens.coordinates))
            count = len(tokens.embeddings)
            frames.append(torch.full((count,), record.frame_id, dtype=torch.int32))
            cameras.append(torch.full((count,), self.frame_index.camera_id(record.camera), dtype=torch.int16))
        embeddings = torch.cat([tokens.embeddings for tokens in encoded])
        self._append(embeddings, Chunk(torch.cat(positions), torch.cat(frames), torch.cat(cameras)), frames=True)

    def _advance(self, record: FrameRecord, tokens: FrameTokens, before: list[torch.Tensor]) -> int:
        """First position of a frame; all in use, and those ``before`` in its block, are re-based where they need it."""
        span = self.model.frame_span(tokens)
        change = self.positions.rebase(record.stamp, span)
        if change is not None:
            self.arena.replace_positions(change)
            for positions in before:
                positions[:, 0] = change(positions[:, 0])
        start = self.positions.advance(record.stamp, span)
        self.frame_index.set_prefilled(record.frame_id, self.positions.segment, len(tokens.embeddings))
        return start

    def _append(self, embeddings: torch.Tensor, chunk: Chunk, *, frames: bool) -> None:
        """One forward into the arena; nothing of it stays when it fails."""
        self.arena.begin(chunk, frames=frames)
        try:
            self.model.forward(self.arena, embeddings, chunk.positions, logits=False)
        except BaseException:
            self.arena.abort()
            raise
        self.arena.commit()

    def _make_room(self, tokens: int) -> None:
        """Compact where the next tokens would pass the high-water mark."""
        memory, slots, used = self.settings.memory, self.arena.plan.frame_slots, self.arena.frame_slots_used
        keep = min(int(slots * memory.keep_ratio), slots - tokens)
        if used + tokens > int(slots * memory.high_water) and used > keep:
            self.policy.check(used, tokens, keep)
            self._compact(keep)
        self.arena.demote(tokens)

    def _compact(self, keep: int) -> None:
        """Let the policy choose for every layer (may fail, changes nothing), then move (cannot fail half way)."""
        weights = camera_weights(self.settings.memory.camera_shares, self.frame_index.cameras)
        self.arena.compact(CameraShares(self.policy, weights), keep)
        waiting = [waiting.frame_id for waiting in self._block]
        self.frame_index.retain([*self.arena.frames_kept(), *waiting])

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
        if self.frame_index.newest() is None:
            raise QuestionError("there is no frame yet: wait until the camera has been seen")
        builder = None
        if self.archive_retrieval is not None:
            builder = ContextBuilder(self.model, self.arena, self.frame_index, self.positions, self.archive_retrieval)
        answerer = Answerer(self.model, self.arena, self.frame_index, builder)
        start = self.model.text_start(self.positions.newest, self._largest_side)
        text, evidence, latency, reason = answerer.answer(question, ids, start, limits, flush_ms, should_stop, on_token)
        self._counters["questions"] += 1
        return Answer(question, text, evidence, latency, self.stats(), self.frame_index.newest_stamp(), reason)

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
        return memory_stats(self)

    def check_budget(self, budget_mib: float) -> None:
        """Raise BudgetError when a cap is too small for this stream; changes nothing, may be called from any thread."""
        self._plan(budget_mib, self._largest_frame)

    def set_budget(self, budget_mib: float) -> None:
        """Lower or raise the cap on the live stream; lowering keeps what the policy rates highest.

        :raises BudgetError: when it is too small; the memory is unchanged then.
        """
        plan = self._plan(budget_mib, self._largest_frame)
        self._flush()
        self._move_to(plan)
        self._budget_mib = budget_mib

    @staticmethod
    def check_settings(settings: StreamSettings) -> None:
        """Raise SettingsError for what the settings themselves cannot tell, the policy's options; from any thread."""
        check_settings(settings)

    def reconfigure(self, settings: StreamSettings) -> None:
        """Take over, on the live stream, what needs no other plan of the memory; see live_settings.py.

        :raises SettingsError: for a policy's bad option; nothing is changed then.
        """
        reconfigure(self, settings)

    def clear(self) -> None:
        """Forget every frame; the budget, the model and the counters stay."""
        self.frame_index.clear()
        if self.archive_retrieval is not None:
            self.archive_retrieval.clear()
        self._start()

    def kept_patches(self, frame_ids: Iterable[int]) -> dict[int, NDArray[np.float32]]:
        """Share of layers and KV heads that keep each patch, float32 [rows, columns], of remembered frames."""
        return self.arena.patches_kept(frame_ids, self.model.layout.origin)

    def save(self, path: Path) -> SavedMemory:
        """Write the whole memory to a file, atomically; raises MemoryFileError (see persistence.py)."""
        return save_memory(self, path)

    def load(self, path: Path) -> SavedMemory:
        """Replace the memory by a saved one; raises MemoryFileError, and the memory is unchanged then."""
        return load_memory(self, path)

    def close(self) -> None:
        """Forget everything; the object is of no use afterwards."""
        self._block.clear()
        if self.archive_retrieval is not None:
            self.archive_retrieval.close()
        self.frame_index.clear()
        self.arena.clear()

    def idle(self) -> bool:
        """Do a little of what can wait (pictures for the external expert); False when nothing waits."""
        return self.archive_retrieval.idle() if self.archive_retrieval is not None else False
