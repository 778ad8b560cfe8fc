# SPDX-License-Identifier: Apache-2.0
"""Ingest of one frame: check, frame filter, block, vision tower, compaction, prefill, archive."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ros_kvstream.errors import FrameError, KvStreamError, SettingsError
from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.archive.records import ArchiveStatus
from ros_kvstream.memory.arena import NO_FRAME, Arena, Chunk
from ros_kvstream.memory.budget import MIB, BudgetPlan, plan_budget
from ros_kvstream.memory.frame_index import FrameIndex, FrameRecord
from ros_kvstream.memory.policies import make_policy
from ros_kvstream.memory.policies.camera_shares import CameraShares, camera_weights
from ros_kvstream.memory.positions import make_positions
from ros_kvstream.memory.stream_clock import StreamClock
from ros_kvstream.models.base import Frame, FrameTokens, VideoLanguageModel
from ros_kvstream.poses import FramePose
from ros_kvstream.records import MemoryStats, Observation
from ros_kvstream.retrieval.archive_retrieval import ArchiveRetrieval
from ros_kvstream.settings import StreamSettings
from ros_kvstream.stream.frame_block import FrameBlock, PendingGrid
from ros_kvstream.vision.frame_check import check_frame
from ros_kvstream.vision.frame_filter import FrameFilter


class Ingest:
    """Owns the arena, the positions and the frame index of one stream, and takes frames into them."""

    def __init__(
        self, settings: StreamSettings, model: VideoLanguageModel, archive_retrieval: ArchiveRetrieval | None
    ) -> None:
        """Plan the budget, allocate the arena, prefill the prompt.

        :raises BudgetError, SettingsError: with a remedy.
        """
        memory = settings.memory
        if memory.frames_per_grid > model.frames_per_grid:
            raise SettingsError(
                f"memory.frames_per_grid = {memory.frames_per_grid}: a grid of the family {model.family} holds "
                f"{model.frames_per_grid} frame. Set memory.frames_per_grid to 1."
            )
        self.settings = settings
        self.model = model
        self.archive_retrieval = archive_retrieval
        self.policy = make_policy(memory.policy, memory.policy_settings)
        self.frame_filter = FrameFilter(settings.gate, settings.saliency)
        self.block = FrameBlock(memory.block_frames, memory.frames_per_grid)
        self.budget_mib = memory.budget_mib
        self.counters = dict.fromkeys(("seen", "kept", "gated", "patches kept", "patches pruned", "questions"), 0)
        self.first_frame = self.largest_frame = self.largest_side = 1
        self._newest_of: dict[str, int] = {}
        self._text_slots = len(model.suffix_ids("")) + memory.max_question_tokens + memory.max_answer_tokens
        self._reserve = self._text_slots + (archive_retrieval.slots_needed(0) if archive_retrieval else 0)
        self.frame_index = FrameIndex(archive_retrieval.first_frame_id if archive_retrieval else 0)
        plan = self.plan(memory.budget_mib, 1, self._reserve)
        self.arena = Arena(plan, model.rotary, model.device, settings.quantized.order)
        self.restart()

    @property
    def archive(self) -> Archive | None:
        """The archive; None without one, or before the size of the first frame is known."""
        return self.archive_retrieval.archive if self.archive_retrieval is not None else None

    def restart(self) -> None:
        """Empty the stream: the prompt is prefilled and pinned, and positions start at its end."""
        self._restart_positions(self._reserve)
        self.block.clear()
        self._newest_of.clear()
        self.frame_filter.reset()
        self.largest_side = 1
        self.arena.clear()
        ids = self.model.prefix_ids
        self._append(self.model.embed(ids), Chunk.of_text(self.model.layout.text(0, len(ids))), frames=False)
        self.arena.pin()

    @property
    def text_start(self) -> int:
        """First position after the frames, where a question starts."""
        return self.model.layout.after(self.positions.newest, self.largest_side)

    # -- a frame --------------------------------------------------------------------------------------------------

    def observe(self, frame: Frame, stamp: float, camera: str) -> Observation:
        """Take one frame; see :meth:`VideoMemory.observe`."""
        check_frame(frame, stamp)
        rows, columns = self.model.grid(frame.shape[0], frame.shape[1])
        self._adapt_to_frame_size(rows, columns, frame)
        gated = self._gate(frame, stamp, camera)
        if gated is not None:
            return gated
        resized = rows * self.model.patch_side, columns * self.model.patch_side
        patches = self.frame_filter.patches(frame, stamp, camera, (rows, columns), resized)
        kept = None if patches is None else torch.from_numpy(patches)
        tokens = rows * columns if kept is None else int(kept.sum())
        stream_time, timings = self.clock.time(stamp, camera), (0.0, 0.0, 0.0)
        seconds = self.clock.seconds(stream_time)
        waiting = self.block.partner(camera, (rows, columns), stamp)
        if waiting is not None:
            waiting.join(frame, seconds, kept)
            self.frame_index.extend(waiting.frame_id, stamp)
        else:
            if self.block.crowded:
                self._newest_of.pop(camera, None)  # if the flush fails, the gate must not compare with this frame
                timings = self.flush()
            record = self.frame_index.add(stamp, camera, tokens, self.clock.segment, stream_time)
            waiting = PendingGrid(record.frame_id, camera, (rows, columns), stamp, (frame,), (seconds,), kept)
            self.block.add(waiting)
            self._newest_of[camera] = record.frame_id
        self.counters["seen"] += 1
        if self.block.full:
            timings = self.flush()
        return Observation(waiting.frame_id, True, tokens if len(waiting.frames) == 1 else 0, *timings)

    def _gate(self, frame: Frame, stamp: float, camera: str) -> Observation | None:
        """Merge a redundant frame into the newest kept one of its camera; None for a frame to compute."""
        newest = self._newest_of.get(camera, NO_FRAME)
        if newest not in self.frame_index:
            self.frame_filter.forget(camera)  # the frame it would be merged into has been evicted
        if self.frame_filter.decide(frame, stamp, camera).kept:
            return None
        self.counters["seen"] += 1
        self.counters["gated"] += 1
        self.frame_index.extend(newest, stamp)
        if self.archive_retrieval is not None:
            self.archive_retrieval.extend(newest, stamp)
        return Observation(newest, False, 0)

    def place(self, frame_id: int, stamp: float, pose: FramePose) -> None:
        """Set the pose of a frame; see :meth:`VideoMemory.place`."""
        record = self.frame_index.place(frame_id, stamp, pose)
        if record is not None and self.archive_retrieval is not None:
            self.archive_retrieval.place(record)

    def flush(self) -> tuple[float, float, float]:
        """Prefill the waiting block; returns milliseconds of vision tower, prefill and compaction.

        When the prefill fails, all frames of the block count as never seen, and the memory is unchanged. A vision tower
        or language model with values that are not finite raises NonFiniteError.
        """
        if not self.block:
            return 0.0, 0.0, 0.0
        frames, patches = self.block.frames, self.block.patches
        records = [self.frame_index[waiting.frame_id] for waiting in self.block]
        archive = self.archive_retrieval if self.archive is not None else None
        try:
            started = time.perf_counter()
            encoded = [
                self.model.complete(tokens, waiting.mean_seconds, waiting.kept)
                for tokens, waiting in zip(
                    self.model.encode_grids([waiting.frames for waiting in self.block]), self.block, strict=True
                )
            ]
            for tokens in encoded:
                self.model.require_finite(tokens.embeddings, "vision tower")
            seen = time.perf_counter()
            self.make_room(sum(len(tokens.embeddings) for tokens in encoded))
            ready = time.perf_counter()
            capture = self.model.capture_keys_values(archive.content.layers) if archive else nullcontext(({}, {}))
            with capture as (keys, values):
                self._prefill(encoded, records)
            done = time.perf_counter()
            if archive is not None:
                archive.remember([waiting.frames[0] for waiting in self.block], encoded, records, keys, values)
        except BaseException:
            self.counters["seen"] -= frames
            self.frame_index.remove(record.frame_id for record in records)
            raise
        else:
            self.counters["kept"] += frames
            self.counters["patches kept"] += patches[0]
            self.counters["patches pruned"] += patches[1]
        finally:
            self.block.clear()
        return 1e3 * (seen - started), 1e3 * (done - ready), 1e3 * (ready - seen)

    def _prefill(self, encoded: list[FrameTokens], records: list[FrameRecord]) -> None:
        positions: list[Tensor] = []
        frames, cameras = [], []
        for tokens, record in zip(encoded, records, strict=True):
            self.largest_side = max(self.largest_side, tokens.rows, tokens.columns)
            start = self._advance(record, tokens, positions) + tokens.before
            positions.append(self.model.frame_positions(start, tokens.rows, tokens.columns, tokens.coordinates))
            count = len(tokens.embeddings)
            frames.append(torch.full((count,), record.frame_id, dtype=torch.int32))
            cameras.append(torch.full((count,), self.frame_index.camera_id(record.camera), dtype=torch.int16))
        chunk = Chunk(torch.cat(positions), torch.cat(frames), torch.cat(cameras))
        self._append(torch.cat([tokens.embeddings for tokens in encoded]), chunk, frames=True)

    def _advance(self, record: FrameRecord, tokens: FrameTokens, before: list[Tensor]) -> int:
        """First position of a frame, after a re-basing of the arena and of its block (``before``) if one is due."""
        span = self.model.frame_span(tokens)
        if self.positions.due(record.time, span):
            held = self.arena.slots_by_position(self.positions.newest, before)
            change = self.positions.rebase(record.time, span, held)
            self.arena.replace_positions(change)
            for positions in before:
                positions[:, 0] = change(positions[:, 0])
        start = self.positions.advance(record.time, span)
        self.frame_index.set_prefilled(record.frame_id, len(tokens.embeddings))
        return start

    def _append(self, embeddings: Tensor, chunk: Chunk, *, frames: bool) -> None:
        """Run one forward into the arena; the arena is unchanged when it fails."""
        self.arena.begin(chunk, frames=frames)
        try:
            self.model.forward(self.arena, embeddings, chunk.positions, logits=False)
        except BaseException:
            self.arena.abort()
            raise
        self.arena.commit()

    # -- compaction -----------------------------------------------------------------------------------------------

    def make_room(self, tokens: int) -> None:
        """Compact the arena if the next tokens would exceed the high-water mark."""
        memory, slots, used = self.settings.memory, self.arena.plan.frame_slots, self.arena.frame_slots_used
        keep = min(int(slots * memory.keep_ratio), slots - tokens)
        if used + tokens > int(slots * memory.high_water) and used > keep:
            self.policy.check(used, tokens, keep)
            self._compact(keep)
        self.arena.demote(tokens)

    def _compact(self, keep: int) -> None:
        """Keep ``keep`` slots per KV head, chosen by the policy; a policy that fails leaves the arena unchanged."""
        weights = camera_weights(self.settings.memory.camera_shares, self.frame_index.cameras)
        self.arena.compact(CameraShares(self.policy, weights), keep)
        waiting = [waiting.frame_id for waiting in self.block]
        self.frame_index.retain([*self.arena.frames_kept(), *waiting])

    # -- plan -----------------------------------------------------------------------------------------------------

    def plan(self, budget_mib: float, frame_tokens: int, reserve: int) -> BudgetPlan:
        """Divide a budget for frames of this many tokens.

        :param reserve: slots for a question, its answer and retrieved frames; :raises BudgetError: when too small.
        """
        return plan_budget(
            self.model.shape,
            int(budget_mib * MIB),
            self.settings.quantized,
            pinned=len(self.model.prefix_ids),
            reserve=reserve,
            frame_tokens=frame_tokens * self.settings.memory.block_frames,
        )

    def plan_for_budget(self, budget_mib: float) -> BudgetPlan:
        """The plan of another budget for the frames seen so far; changes nothing."""
        return self.plan(budget_mib, self.largest_frame, self._reserve)

    def plan_for_frames(self, first: int, largest: int) -> BudgetPlan:
        """The plan that frames of these sizes would lead to, in tokens; changes nothing."""
        return self.plan(self.budget_mib, max(first, largest, self.largest_frame), self._reserve_for(first))

    def _reserve_for(self, first: int) -> int:
        """Slots for a question, its answer and retrieved frames; the size of the stream's first frame decides."""
        if self.archive_retrieval is None or self.largest_frame > 1:
            return self._reserve
        return self._text_slots + self.archive_retrieval.slots_needed(first)

    def _restart_positions(self, reserve: int) -> None:
        """Positions from the prompt's end on, with as many free behind the frames as text and retrieved frames take."""
        free = reserve if self.model.layout.sequential else self._text_slots
        within = self.model.positions_within(self.settings.memory.position_limit, free)
        self._position_source = within.source
        start, limit = len(self.model.prefix_ids), within.limit + free
        self.positions = make_positions(start, self.model.tokens_per_second, limit, free)
        self.clock = StreamClock(self.positions.longest_step)

    def _adapt_to_frame_size(self, rows: int, columns: int, frame: Frame) -> None:
        """Change the plan for a frame larger than any before, or raise FrameError if it does not fit."""
        tokens = self.model.frame_tokens(rows, columns)
        if tokens <= self.largest_frame:
            return
        size = f"{frame.shape[1]} x {frame.shape[0]}"
        try:
            self.adopt_frame_sizes(tokens, tokens)
        except KvStreamError as error:
            raise FrameError(f"frame of {size} pixels takes {tokens} slots: {error}") from error
        span = self.model.layout.span(rows, columns) + self.model.frame_text_tokens
        if span > self.positions.largest_span:
            raise FrameError(f"frame of {size} pixels takes {span} positions, {self.positions.largest_span} at most")
        self.largest_frame = tokens

    def adopt_frame_sizes(self, first: int, largest: int) -> None:
        """Resize arena and archive for frames of these sizes, in tokens; nothing changes when they do not fit."""
        plan, reserve = self.plan_for_frames(first, largest), self._reserve_for(first)
        if self.largest_frame == 1:
            if self.archive_retrieval is not None:
                self._restart_positions(reserve)
                self.arena.resize(plan)
                self._reserve = reserve
                self.archive_retrieval.prepare(first)
                self.frame_index = FrameIndex(self.archive_retrieval.first_frame_id)
            self.first_frame = first
        if plan.quantized:  # a larger block needs a larger part in the native dtype
            self._move_to(plan)

    def set_budget(self, budget_mib: float) -> None:
        """Move to another budget; see :meth:`VideoMemory.set_budget`."""
        plan = self.plan_for_budget(budget_mib)
        self.flush()
        self._move_to(plan)
        self.budget_mib = budget_mib

    def _move_to(self, plan: BudgetPlan) -> None:
        """Resize the arena, after a compaction if it holds more than fits."""
        if self.arena.frame_slots_used > plan.frame_slots:
            self._compact(plan.frame_slots)
        self.arena.resize(plan)

    # -- state ----------------------------------------------------------------------------------------------------

    def stats(self) -> MemoryStats:
        """All metrics of the memory; byte counts are read from live tensors."""
        arena, counters, kept, held = self.arena, self.counters, self.arena.frames_kept(), self.arena.cameras_kept()
        records = [self.frame_index[frame] for frame in kept if frame in self.frame_index]
        archive = self.archive_retrieval.status() if self.archive_retrieval else ArchiveStatus("ok")
        device, patches = self.model.device, self.block.patches
        return MemoryStats(
            budget_bytes=int(self.budget_mib * MIB),
            allocated_bytes=arena.allocated_bytes,
            used_bytes=arena.used_bytes,
            peak_bytes=arena.peak_bytes,
            slots=arena.plan.frame_slots,
            slots_used=arena.frame_slots_used,
            frames_seen=counters["seen"],
            frames_kept=counters["kept"] + self.block.frames,
            frames_gated=counters["gated"],
            frames_remembered=len(kept),
            patches_kept=counters["patches kept"] + patches[0],
            patches_pruned=counters["patches pruned"] + patches[1],
            oldest_stamp=min((record.stamp for record in records), default=0.0),
            newest_stamp=self.frame_index.newest_stamp(),
            compactions=arena.compactions,
            rebases=self.positions.rebases,
            position_limit=self.positions.limit,
            position_source=self._position_source,
            questions=counters["questions"],
            archive_budget_bytes=archive.budget_bytes,
            archive_bytes=archive.used_bytes,
            archive_frames=archive.frames,
            archive_problem=archive.message,
            camera_slots={name: held.get(number, 0) for name, number in self.frame_index.cameras.items()},
            device_bytes=torch.cuda.memory_reserved(device) if device.type == "cuda" else 0,
        )

    def state_dict(self) -> dict[str, Any]:
        """The frame sizes seen; the block is flushed before a save, and the counters belong to the process."""
        return {
            "first_frame": self.first_frame,
            "largest_frame": self.largest_frame,
            "largest_side": self.largest_side,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the frame sizes of a saved memory."""
        self.first_frame, self.largest_frame = state["first_frame"], state["largest_frame"]
        self.largest_side = state["largest_side"]
