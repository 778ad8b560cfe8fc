"""The stream's way into the archive and back: every prefilled frame goes in, a question's moments come out."""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ros_kvstream.errors import BudgetError, SettingsError
from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.archive.plan import MIB, ArchiveShape, plan_archive
from ros_kvstream.memory.archive.records import ArchiveStatus, FrameToArchive
from ros_kvstream.memory.archive.snapshot import empty_for
from ros_kvstream.memory.arena import Arena
from ros_kvstream.memory.frame_index import FrameRecord
from ros_kvstream.models.base import Frame, FrameTokens, VideoLanguageModel
from ros_kvstream.retrieval.external import ExternalEncoder, make_encoder
from ros_kvstream.retrieval.retriever import Retriever
from ros_kvstream.retrieval.token_indices import token_indices
from ros_kvstream.settings import ArchiveSettings, RetrievalSettings

log = logging.getLogger(__name__)

CAMERAS = 4
"""Cameras whose frames before are remembered for comparison; more take turns."""
THUMBNAIL_SIDE = 96
"""Longest side of a thumbnail, pixels."""


def default_layers(layers: int) -> tuple[int, ...]:
    """Layers that the internal expert searches when none are named: one third in, and the last."""
    return tuple(sorted({layers // 3, layers - 1}))


class ArchiveRetrieval:
    """An archive beside the arena. Made once; the archive itself is allocated when the first frame's size is known."""

    def __init__(self, archive: ArchiveSettings, retrieval: RetrievalSettings, model: VideoLanguageModel) -> None:
        """Load the external expert and check the settings.

        :raises SettingsError: for a layer that the model does not have; :raises BudgetError: when the archive's cap
            is too small for the smallest frame; :raises ModelError: when the external expert cannot be loaded;
        :raises ArchiveError: when the folder's file cannot be used.
        """
        self.settings = retrieval
        self.archive: Archive | None = None
        self.encoder: ExternalEncoder | None = None
        if retrieval.external and retrieval.external_weight > 0:
            self.encoder = make_encoder(retrieval.external, str(model.device))
        self._archive_settings = archive
        self._model = model
        self._waiting: deque[tuple[int, NDArray[np.uint8]]] = deque()
        self._failure = ""
        self._too_large = 0
        if retrieval.positions == "original" and not model.tokens_per_second:
            raise SettingsError(
                f"retrieval.positions = 'original': positions of the family {model.family} follow the order of "
                "arrival, not time. Use consecutive."
            )
        self.layers = retrieval.layers or default_layers(model.shape.layers)
        if max(self.layers) >= model.shape.layers:
            raise SettingsError(f"retrieval.layers = {self.layers}: the model has layers 0 to {model.shape.layers - 1}")
        largest = archive.frame_patches + model.frame_text_tokens if archive.frame_patches else 0
        plan_archive(self._shape(largest or 1), archive)
        if largest:
            self._open(largest)

    def _shape(self, patches: int) -> ArchiveShape:
        shape, side = self._model.shape, self.encoder.picture_side if self.encoder else 0
        return ArchiveShape(
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            index_layers=self.layers,
            patches=patches,
            embedding=self.encoder.size if self.encoder else 0,
            cameras=CAMERAS,
            waiting_bytes=self.settings.pending_pictures * 3 * side * side,
        )

    def _open(self, patches: int) -> None:
        plan = plan_archive(self._shape(patches), self._archive_settings)
        self.archive = Archive(plan, self._fingerprint())

    def _fingerprint(self) -> str:
        """The model and its weights, told by what it makes of its own prompt."""
        vectors = self._model.embed(self._model.prefix_ids).float().cpu().numpy()
        return f"{self._model.family} {zlib.crc32(np.ascontiguousarray(vectors).tobytes()):08x}"

    def prepare(self, patches: int) -> None:
        """Allocate the archive for frames of this many visual tokens, once; a cap too small for them is reported."""
        if self.archive is None and not self._failure:
            try:
                self._open(patches)
            except BudgetError as error:
                self._failure = str(error)
                log.warning("archive: %s", error)

    def slots_needed(self, frame_tokens: int) -> int:
        """Slots to plan for retrieved frames of this many visual tokens."""
        return self.settings.capacity_tokens or self.settings.top_k * frame_tokens

    @property
    def retriever(self) -> Retriever | None:
        """Ranks the archive's frames; None while there is nothing to rank."""
        if self.archive is None or self.archive.table.count == 0 or self.settings.top_k == 0:
            return None
        return Retriever(self.archive, self.settings, self.encoder)

    @property
    def first_frame_id(self) -> int:
        """Id for the stream's first frame: after those that a reopened archive holds."""
        return self.archive.newest_frame_id + 1 if self.archive is not None else 0

    # -- in ---------------------------------------------------------------------------------------------------------

    def remember(
        self, arena: Arena, frames: Sequence[Frame], encoded: Sequence[FrameTokens], records: Sequence[FrameRecord]
    ) -> None:
        """Archive the frames that were appended to the arena last, in this order."""
        if self.archive is None:
            return
        sizes = [len(tokens.embeddings) for tokens in encoded]
        keys, values = self._newest(arena, sum(sizes))
        start = 0
        for frame, tokens, record, size in zip(frames, encoded, records, sizes, strict=True):
            rows = slice(start, start + size)
            start += size
            if self._model.frame_tokens(tokens.rows, tokens.columns) > self.archive.plan.shape.patches:
                self._too_large += 1
                continue
            taken = self.archive.add(
                FrameToArchive(
                    record.frame_id,
                    record.stamp,
                    record.camera,
                    (tokens.rows, tokens.columns),
                    keys[:, :, rows],
                    values[:, :, rows],
                    stamp_end=record.stamp_end,
                    thumbnail=self._thumbnail(frame),
                    patches=token_indices(self._model, tokens),
                )
            )
            if taken and self.encoder is not None:
                self._wait_for_idle(record.frame_id, frame)

    def _newest(self, arena: Arena, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Un-rotated keys and values of the last ``tokens`` frame slots, [layers, kv_heads, tokens, head_dim]."""
        keys, values = [], []
        for index in range(self._model.shape.layers):
            slots = arena.frame_slots(index)
            keys.append(arena.rotary.unrotate(slots.keys[:, -tokens:], slots.positions[:, -tokens:]))
            values.append(slots.values[:, -tokens:])
        return torch.stack(keys), torch.stack(values)

    def _thumbnail(self, frame: Frame) -> bytes:
        room = self._archive_settings.thumbnail_bytes
        if not room:
            return b""
        scale = min(1.0, THUMBNAIL_SIDE / max(frame.shape[:2]))
        size = (max(1, round(frame.shape[1] * scale)), max(1, round(frame.shape[0] * scale)))
        small = cv2.cvtColor(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2BGR)
        for quality in (80, 50, 25):
            _, data = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, quality])
            if len(data) <= room:
                return data.tobytes()
        return b""

    def extend(self, frame_id: int, stamp_end: float) -> None:
        """Let an archived frame stand for a redundant one that came later."""
        if self.archive is not None:
            self.archive.complete(frame_id, stamp_end=stamp_end)

    # -- the external expert's vectors --------------------------------------------------------------------------------

    def _wait_for_idle(self, frame_id: int, frame: Frame) -> None:
        assert self.encoder is not None
        side = self.encoder.picture_side
        small = cv2.resize(frame, (side, side), interpolation=cv2.INTER_AREA)
        self._waiting.append((frame_id, np.asarray(small, dtype=np.uint8)))
        while len(self._waiting) > self.settings.pending_pictures:
            self.idle()

    def idle(self) -> bool:
        """Embed one waiting picture; False when none waits. For the worker's idle moments."""
        if not self._waiting or self.encoder is None or self.archive is None:
            return False
        frame_id, picture = self._waiting.popleft()
        self.archive.complete(frame_id, embedding=self.encoder.embed_image(picture))
        return True

    def embed_pending(self) -> None:
        """Embed all waiting pictures, so that a question finds them."""
        while self.idle():
            pass

    # -- state ------------------------------------------------------------------------------------------------------

    def status(self) -> ArchiveStatus:
        """The archive's report, with what kept frames from reaching it."""
        if self.archive is None:
            budget = int(self._archive_settings.budget_mib * MIB)
            return ArchiveStatus("failed" if self._failure else "ok", self._failure, budget_bytes=budget)
        status = self.archive.status()
        if self._too_large and status.state == "ok":
            patches = self.archive.plan.shape.patches
            reason = f"{self._too_large} frames had more than {patches} visual tokens: set archive.frame_patches higher"
            status = replace(status, state="degraded", message=reason)
        return status

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        if self.archive is not None:
            self.archive.clear()

    def finish(self) -> None:
        """Bring everything that is on its way into the archive."""
        self.embed_pending()
        if self.archive is not None:
            self.archive.wait()

    def empty(self, records: Iterable[FrameRecord]) -> None:
        """Make ready for a memory with these frames that is loaded; see :func:`empty_for`."""
        self._waiting.clear()
        if self.archive is not None:
            empty_for(self.archive, records)

    def close(self) -> None:
        """Write what is queued and close the archive."""
        self.embed_pending()
        if self.archive is not None:
            self.archive.close()
