# SPDX-License-Identifier: Apache-2.0
"""The archive of a stream and its external encoder: prefilled frames go in, their embeddings in idle time."""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.errors import BudgetError, SettingsError
from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.archive.plan import MIB, ArchiveShape, plan_archive
from ros_kvstream.memory.archive.records import ArchiveStatus, FrameToArchive
from ros_kvstream.memory.frame_index import FrameRecord
from ros_kvstream.models.base import Frame, FrameTokens, VideoLanguageModel
from ros_kvstream.retrieval.archive_content import make_content
from ros_kvstream.retrieval.external import ExternalEncoder, make_encoder
from ros_kvstream.retrieval.token_indices import token_indices
from ros_kvstream.settings import ArchiveSettings, RetrievalSettings

log = logging.getLogger(__name__)

CAMERAS = 4
"""Cameras whose previous frames are kept for comparison; further cameras replace them in turn."""
THUMBNAIL_SIDE = 96
"""Longest side of a thumbnail, pixels."""


def default_layers(layers: int) -> tuple[int, ...]:
    """Layers that the internal expert searches by default: one third in, and the last."""
    return tuple(sorted({layers // 3, layers - 1}))


def model_fingerprint(model: VideoLanguageModel) -> str:
    """Family and a checksum of the weights and of the embedding of the prompt."""
    vectors = model.embed(model.prefix_ids).float().cpu().numpy()
    return f"{model.family} {zlib.crc32(np.ascontiguousarray(vectors).tobytes(), model.weights_checksum()):08x}"


class ArchiveRetrieval:
    """An archive beside the arena; the archive is allocated when the size of the first frame is known."""

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
        self._pending: deque[tuple[int, NDArray[np.uint8]]] = deque()
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
        self.content = make_content(archive.content, model, self.layers)
        largest = archive.frame_patches + model.frame_text_tokens if archive.frame_patches else 0
        plan_archive(self._shape(largest or 1), archive)
        if largest:
            self._open(largest)

    def _shape(self, patches: int) -> ArchiveShape:
        shape, side = self._model.shape, self.encoder.picture_side if self.encoder else 0
        afresh = self.settings.frames_afresh(self._archive_settings)
        return ArchiveShape(
            vectors=self.content.vectors,
            width=self.content.width,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            index_layers=self.layers,
            patches=patches,
            embedding=self.encoder.size if self.encoder else 0,
            cameras=CAMERAS,
            newest=afresh + CAMERAS if afresh else 0,
            waiting_bytes=self.settings.pending_pictures * 3 * side * side,
        )

    def _open(self, patches: int) -> None:
        plan = plan_archive(self._shape(patches), self._archive_settings)
        self.archive = Archive(plan, model_fingerprint(self._model))

    def prepare(self, patches: int) -> None:
        """Allocate the archive for frames of this many visual tokens, once; a cap that is too small is reported."""
        if self.archive is None and not self._failure:
            try:
                self._open(patches)
            except BudgetError as error:
                self._failure = str(error)
                log.warning("archive: %s", error)

    def slots_needed(self, frame_tokens: int) -> int:
        """Slots to plan for frames of this many tokens; see :meth:`RetrievalSettings.slots`."""
        return self.settings.slots(frame_tokens, self._archive_settings)

    @property
    def searchable(self) -> Archive | None:
        """The archive if it holds frames and retrieval is on; else None."""
        if self.archive is None or self.archive.table.count == 0 or self.settings.top_k == 0:
            return None
        return self.archive

    @property
    def first_frame_id(self) -> int:
        """Id for the first frame of the stream: after those in a reopened archive."""
        return self.archive.newest_frame_id + 1 if self.archive is not None else 0

    # -- frames -----------------------------------------------------------------------------------------------------

    def remember(
        self,
        frames: Sequence[Frame],
        encoded: Sequence[FrameTokens],
        records: Sequence[FrameRecord],
        keys: Mapping[int, Tensor],
        values: Mapping[int, Tensor],
    ) -> None:
        """Archive the frames of one prefill.

        :param keys: layer -> un-rotated keys of all their tokens, [kv_heads, tokens, head_dim], in ``content.layers``;
        :param values: layer -> values, the same shape.
        """
        if self.archive is None:
            return
        start = 0
        for frame, tokens, record in zip(frames, encoded, records, strict=True):
            rows = slice(start, start + len(tokens.embeddings))
            start = rows.stop
            if self._model.frame_tokens(tokens.rows, tokens.columns) > self.archive.plan.shape.patches:
                self._too_large += 1
                continue
            taken = self.archive.add(
                FrameToArchive(
                    record.frame_id,
                    record.stamp,
                    record.camera,
                    (tokens.rows, tokens.columns),
                    torch.stack([keys[layer][:, rows] for layer in self.layers]),
                    self.content.store(tokens.embeddings, *(_rows(part, rows) for part in (keys, values))),
                    stamp_end=record.stamp_end,
                    thumbnail=self._thumbnail(frame),
                    patches=token_indices(self._model, tokens),
                    pose=record.pose,
                    base_end=record.base_end,
                )
            )
            if taken and self.encoder is not None:
                self._queue_picture(record.frame_id, frame, self.encoder.picture_side)

    def _thumbnail(self, frame: Frame) -> bytes:
        limit = self._archive_settings.thumbnail_bytes
        if not limit:
            return b""
        scale = min(1.0, THUMBNAIL_SIDE / max(frame.shape[:2]))
        size = (max(1, round(frame.shape[1] * scale)), max(1, round(frame.shape[0] * scale)))
        small = cv2.cvtColor(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2BGR)
        for quality in (80, 50, 25):
            _, data = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, quality])
            if len(data) <= limit:
                return data.tobytes()
        return b""

    def extend(self, frame_id: int, stamp_end: float) -> None:
        """Extend the time span of an archived frame over a redundant one."""
        if self.archive is not None:
            self.archive.complete(frame_id, stamp_end=stamp_end)

    def place(self, record: FrameRecord) -> None:
        """Set the poses of an archived frame to those of its record."""
        if self.archive is not None:
            self.archive.complete(record.frame_id, pose=record.pose, base_end=record.base_end)

    # -- embeddings of the external expert --------------------------------------------------------------------------

    def _queue_picture(self, frame_id: int, frame: Frame, side: int) -> None:
        small = cv2.resize(frame, (side, side), interpolation=cv2.INTER_AREA)
        self._pending.append((frame_id, np.asarray(small, dtype=np.uint8)))
        while len(self._pending) > self.settings.pending_pictures:
            self.idle()

    def idle(self) -> bool:
        """Embed one pending picture; False when there is none. For the worker's idle time."""
        if not self._pending or self.encoder is None or self.archive is None:
            return False
        frame_id, picture = self._pending.popleft()
        self.archive.complete(frame_id, embedding=self.encoder.embed_image(picture))
        return True

    def embed_pending(self) -> None:
        """Embed all pending pictures, so that a question finds them."""
        while self.idle():
            pass

    # -- state ------------------------------------------------------------------------------------------------------

    def status(self) -> ArchiveStatus:
        """The archive's status, including frames that were too large for it."""
        if self.archive is None:
            budget = int(self._archive_settings.budget_mib * MIB)
            return ArchiveStatus("failed" if self._failure else "ok", self._failure, budget_bytes=budget)
        status = self.archive.status()
        if self._too_large and status.state == "ok":
            patches = self.archive.plan.shape.patches
            reason = f"{self._too_large} frames had more than {patches} visual tokens: raise archive.frame_patches"
            status = replace(status, state="degraded", message=reason)
        return status

    def clear(self) -> None:
        """Remove all frames."""
        self._pending.clear()
        if self.archive is not None:
            self.archive.clear()

    def finish(self) -> None:
        """Embed pending pictures and wait until all frames are in the archive."""
        self.embed_pending()
        if self.archive is not None:
            self.archive.wait()

    def empty_for(self, records: Iterable[FrameRecord]) -> None:
        """Prepare for loading a memory that holds these frames; see :meth:`Archive.empty_for`."""
        self._pending.clear()
        if self.archive is not None:
            self.archive.empty_for(records)

    def close(self) -> None:
        """Write what is queued and close the archive."""
        self.embed_pending()
        if self.archive is not None:
            self.archive.close()


def _rows(layers: Mapping[int, Tensor], rows: slice) -> dict[int, Tensor]:
    return {layer: tensor[:, rows] for layer, tensor in layers.items()}
