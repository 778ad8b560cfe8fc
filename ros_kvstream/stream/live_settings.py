"""Settings that a live stream takes over without another plan of its memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ros_kvstream.memory.policies import make_policy
from ros_kvstream.settings import StreamSettings
from ros_kvstream.vision.frame_filter import FrameFilter

if TYPE_CHECKING:
    from ros_kvstream.stream.memory import VideoMemory

_RANKING_FIXED = ("external", "layers", "capacity_tokens", "pending_pictures")
"""Settings of retrieval that decide what is loaded or planned."""


def check_settings(settings: StreamSettings) -> None:
    """Raise SettingsError for what the settings themselves cannot tell, the policy's settings; from any thread."""
    make_policy(settings.memory.policy, settings.memory.policy_settings)


def reconfigure(memory: VideoMemory, settings: StreamSettings) -> None:
    """Give a live memory another policy, other shares and times to make room, another gate, saliency and ranking.

    Everything else in ``settings`` is ignored; see ``VideoMemory.set_budget`` for the cap.

    :raises SettingsError: for a policy's bad setting; nothing is changed then.
    """
    wanted, now = settings.memory, memory.settings
    policy = make_policy(wanted.policy, wanted.policy_settings)
    changed = replace(now.memory, policy=wanted.policy, policy_settings=wanted.policy_settings,
                      keep_ratio=wanted.keep_ratio, high_water=wanted.high_water,
                      camera_shares=wanted.camera_shares)  # fmt: skip
    ranking = replace(settings.retrieval, **{name: getattr(now.retrieval, name) for name in _RANKING_FIXED})
    if (settings.gate, settings.saliency) != (now.gate, now.saliency):
        memory.frame_filter = FrameFilter(settings.gate, settings.saliency)
    if memory.archive_retrieval is not None:
        memory.archive_retrieval.settings = ranking
    memory.policy = policy
    memory.settings = replace(now, memory=changed, gate=settings.gate, saliency=settings.saliency, retrieval=ranking)
