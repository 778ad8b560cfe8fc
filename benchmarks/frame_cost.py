"""Where the worker's processor time goes under one camera: conversion, gate, resize, tower, prefill, compaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ros_kvstream.settings import MemorySettings, ModelSettings, StreamSettings

if TYPE_CHECKING:
    from ros_kvstream.commands.soak_cameras import Scene

PARTS = ("conversion", "gate", "resize", "vision tower", "prefill", "compaction", "the rest")
OUTSIDE_MODEL = ("conversion", "gate", "compaction", "the rest")
"""This package's own; the resize is the family's image processor, which makes the model's input."""
WARM_UP_FRAMES = 30
WIDTH, HEIGHT = 640, 480


class Meter:
    """Processor time of this thread inside wrapped calls; a call inside another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time noted under ``name``."""

        def timed(*arguments: Any, **named: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            started = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                spent = time.thread_time() - started
                self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner
                self._inner = outer + spent

        return timed


def frame_cost(
    frames: int, rate: float, model: str, budget_mib: float, scene: Scene | None = None
) -> dict[str, float]:
    """Shares of one core under a camera of ``rate`` frames a second, by PARTS, and "kept", the share of frames kept.

    Shows a memory raw messages of 640 x 480 pixels, ``rate`` a second by their stamps, as the node's worker does.
    """
    import torch

    from ros_kvstream.commands.soak_cameras import Room, raw_message
    from ros_kvstream.node.images import image_to_rgb
    from ros_kvstream.stream.memory import VideoMemory

    torch.set_num_threads(1)
    memory = MemorySettings(budget_mib=budget_mib, max_question_tokens=32, max_answer_tokens=16)
    stream = VideoMemory(StreamSettings(ModelSettings(path=model, device="cpu"), memory))
    meter, kept, seen = Meter(), 0, scene or Room(0)
    for owner, method, part in (
        (stream.ingest.frame_filter, "decide", "gate"), (stream.model, "_patches", "resize"),
        (stream.model, "encode_grids", "vision tower"), (stream.model, "forward", "prefill"),
        (stream.ingest, "make_room", "compaction"),
    ):  # fmt: skip
        if hasattr(owner, method):  # families without patches of their own resize inside the tower's call
            setattr(owner, method, meter.wrap(part, getattr(owner, method)))
    convert, observe = meter.wrap("conversion", image_to_rgb), meter.wrap("the rest", stream.observe)
    for number in range(frames + WARM_UP_FRAMES):
        if number == WARM_UP_FRAMES:
            meter.seconds.clear()
            kept = 0
        kept += observe(convert(raw_message(seen.picture(number / rate, WIDTH, HEIGHT))), number / rate).kept
    stream.close()
    shares = {part: meter.seconds.get(part, 0.0) * rate / frames for part in PARTS}
    return {**shares, "kept": kept / frames}
