# SPDX-License-Identifier: Apache-2.0
"""VideoMemory: the visual memory of one stream, with everything that a Python user needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import QuestionError
from ros_kvstream.memory.budget import MIB
from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.memory.policies import make_policy
from ros_kvstream.memory.positions import TimestampPositions
from ros_kvstream.models.base import Frame, VideoLanguageModel
from ros_kvstream.models.loading import load_model
from ros_kvstream.poses import FramePose, Vector, map_frame
from ros_kvstream.records import Answer, MemoryStats, Observation, Place, Scope
from ros_kvstream.retrieval.archive_retrieval import ArchiveRetrieval
from ros_kvstream.settings import Change, StreamSettings, rules_of
from ros_kvstream.stream.answer import answer_question, check_question, check_scope
from ros_kvstream.stream.checkpoint import SavedMemory, load_memory, save_memory
from ros_kvstream.stream.ingest import Ingest
from ros_kvstream.stream.places import remembered_places
from ros_kvstream.vision.frame_filter import FrameFilter


class VideoMemory:
    """A visual memory of fixed size over one endless stream. Not thread-safe: one thread owns it."""

    def __init__(self, settings: StreamSettings | None = None, model: VideoLanguageModel | None = None) -> None:
        """Load the model, plan the budget, allocate everything, prefill the prompt.

        :raises ModelError, BudgetError, SettingsError, ArchiveError: with a remedy.
        """
        settings = settings or StreamSettings()
        budget = int(settings.memory.budget_mib * MIB)
        self.model = model or load_model(settings.model, settings.seed, beside=budget)
        self.archive_retrieval: ArchiveRetrieval | None = None
        if settings.archive.enabled:
            self.archive_retrieval = ArchiveRetrieval(settings.archive, settings.retrieval, self.model)
        self.ingest = Ingest(settings, self.model, self.archive_retrieval)
        self.arena = self.ingest.arena

    @property
    def settings(self) -> StreamSettings:
        """The settings in use."""
        return self.ingest.settings

    @property
    def positions(self) -> TimestampPositions:
        """Temporal positions of the stream."""
        return self.ingest.positions

    @property
    def frame_index(self) -> FrameIndex:
        """Stamps and cameras of the remembered frames."""
        return self.ingest.frame_index

    @property
    def model_name(self) -> str:
        """Name of the loaded model."""
        return self.model.name

    # -- frames and questions ---------------------------------------------------------------------------------------

    def observe(
        self, frame: Frame, stamp: float, camera: str = "camera", pose: FramePose | None = None
    ) -> Observation:
        """Take one frame into the memory; a full block is prefilled at once, after a compaction if one is needed.

        :param frame: RGB uint8 [height, width, 3]; :param stamp: seconds of the header stamp; :param pose: where it
            was taken, see :meth:`place` for one that becomes known later.
        :raises FrameError: for an unusable frame; :raises NonFiniteError: when the model computes values that are not
            finite. The memory is unchanged.
        """
        observation = self.ingest.observe(frame, stamp, camera)
        if pose is not None:
            self.place(observation.frame_id, stamp, pose)
        return observation

    def place(self, frame_id: int, stamp: float, pose: FramePose) -> None:
        """Remember where a frame was taken; ignored when the frame has been evicted, and of another map than its first.

        :param frame_id, stamp: of the observation; that of a redundant frame becomes the last pose of its time span.
        """
        self.ingest.place(frame_id, stamp, pose)

    def maps(self) -> set[str]:
        """Segments of the maps that the poses of the remembered and the archived frames refer to."""
        archive = self.ingest.archive
        return self.frame_index.maps() | (archive.maps() if archive is not None else set())

    def flush(self) -> None:
        """Prefill the frames that wait in the block."""
        self.ingest.flush()

    def ask(
        self,
        question: str,
        *,
        camera: str = "",
        since: float = 0.0,
        until: float = 0.0,
        near: Vector | None = None,
        radius: float = 0.0,
        near_frame: str | None = None,
        max_new_tokens: int | None = None,
        min_confidence: float = 0.0,
        should_stop: Callable[[], bool] | None = None,
        on_token: Callable[[str], None] | None = None,
    ) -> Answer:
        """Answer a question about the stream; afterwards the memory is the same as before, bit for bit.

        Where nothing is remembered of that time, place or camera, the answer says so (verdict NOT_COVERED).

        :param camera: only frames of this camera ('' = all); :param since, until: only frames in this span of stamps,
            seconds (0 = unbounded); :param near, radius: only frames that were taken within this distance of a point
            in the present map, metres (0 = anywhere); :param near_frame: frame id of the point, to be compared with
            that of the map (None = the same).
        :param max_new_tokens: at most ``memory.max_answer_tokens``, which is the default.
        :param min_confidence: an answer with less confidence gets the verdict NOT_SEEN, 0 - 1.
        :param should_stop: called before every token; True raises QuestionCancelled.
        :param on_token: called with each new piece of the answer's text.
        :raises QuestionError: when the question or a limit is invalid;
        :raises NonFiniteError: when the model computes values that are not finite.
        """
        scope = self.scope(camera, since, until, near, radius, near_frame)
        memory = self.settings.memory
        checked = check_question(self.model, memory, question, scope, max_new_tokens, min_confidence)
        return answer_question(self.ingest, checked, should_stop, on_token)

    def scope(
        self,
        camera: str = "",
        since: float = 0.0,
        until: float = 0.0,
        near: Vector | None = None,
        radius: float = 0.0,
        near_frame: str | None = None,
    ) -> Scope:
        """The frames that a question may use; parameters as in :meth:`ask`.

        :raises QuestionError: for an invalid limit, or when ``near`` is in another frame than the poses.
        """
        segment = self.frame_index.map
        scope = Scope(camera, since, until, near, radius, segment)
        check_scope(scope)
        if near is None or not radius:
            return replace(scope, near=None)
        if not segment:
            raise QuestionError(
                "near: no remembered frame has a pose, so places cannot be compared. Set pose.source, or ask without "
                "near and radius."
            )
        if near_frame not in (None, map_frame(segment)):
            given = f"is in frame {near_frame!r}" if near_frame else "names no frame"
            raise QuestionError(f"near {given}: give it in {map_frame(segment)!r}, as the poses are")
        return scope

    def stats(self) -> MemoryStats:
        """The memory's metrics now."""
        return self.ingest.stats()

    def kept_patches(self, frame_ids: Iterable[int]) -> dict[int, NDArray[np.float32]]:
        """Share of layers and KV heads that keep each patch, float32 [rows, columns], of remembered frames."""
        return self.arena.patches_kept(frame_ids, self.model.layout.origin)

    def places(self, limit: int) -> tuple[Place, ...]:
        """Where the remembered moments were seen, those with a pose in the present map, by stamp.

        :param limit: at most this many, evenly distributed from the oldest to the newest.
        """
        return remembered_places(self.frame_index, self.ingest.archive, limit)

    # -- settings that change on a live stream -------------------------------------------------------------------------

    def check_budget(self, budget_mib: float) -> None:
        """Raise BudgetError when a budget is too small for this stream; changes nothing, callable from any thread."""
        self.ingest.plan_for_budget(budget_mib)

    def set_budget(self, budget_mib: float) -> None:
        """Lower or raise the budget; when it is lowered, the policy chooses which slots are kept.

        :raises BudgetError: when it is too small; the memory is unchanged then.
        """
        self.ingest.set_budget(budget_mib)

    @staticmethod
    def check_settings(settings: StreamSettings) -> None:
        """Raise SettingsError for an invalid setting of the policy; callable from any thread."""
        make_policy(settings.memory.policy, settings.memory.policy_settings)

    def reconfigure(self, settings: StreamSettings) -> None:
        """Take over the settings that may change at any time, camera shares and the policy's settings included.

        All others in ``settings`` are ignored; see :meth:`set_budget` for the budget.

        :raises SettingsError: for an invalid setting of the policy; nothing is changed then.
        """
        wanted, ingest = settings.memory, self.ingest
        now = ingest.settings
        policy = make_policy(wanted.policy, wanted.policy_settings)
        memory = _running_settings(wanted) | {
            "budget_mib": now.memory.budget_mib,
            "policy_settings": wanted.policy_settings,
            "camera_shares": wanted.camera_shares,
        }
        ranking = replace(now.retrieval, **_running_settings(settings.retrieval))
        if (settings.gate, settings.saliency) != (now.gate, now.saliency):
            ingest.frame_filter = FrameFilter(settings.gate, settings.saliency)
        if self.archive_retrieval is not None:
            self.archive_retrieval.settings = ranking
        ingest.policy = policy
        ingest.settings = replace(
            now, memory=replace(now.memory, **memory), gate=settings.gate, saliency=settings.saliency, retrieval=ranking
        )

    # -- the whole memory -----------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove every frame; the budget, the model and the counters stay."""
        self.frame_index.clear()
        if self.archive_retrieval is not None:
            self.archive_retrieval.clear()
        self.ingest.restart()

    def save(self, path: Path) -> SavedMemory:
        """Write the whole memory to a file, atomically; raises MemoryFileError."""
        return save_memory(self.ingest, path)

    def load(self, path: Path) -> SavedMemory:
        """Replace the memory by a saved one; raises MemoryFileError, and the memory is unchanged then."""
        return load_memory(self.ingest, path)

    def close(self) -> None:
        """Remove everything and close the archive; the object cannot be used afterwards."""
        self.ingest.block.clear()
        if self.archive_retrieval is not None:
            self.archive_retrieval.close()
        self.frame_index.clear()
        self.arena.clear()

    def idle(self) -> bool:
        """Do one piece of postponed work (embedding a picture for the external expert); False when there is none."""
        return self.archive_retrieval.idle() if self.archive_retrieval is not None else False


def _running_settings(settings: Any) -> dict[str, Any]:
    """Values of those settings that may change at any time."""
    rules = rules_of(settings).items()
    return {name: getattr(settings, name) for name, rule in rules if rule.change is Change.RUNNING}
