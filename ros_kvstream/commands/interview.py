"""Asks planned questions of a running node while another process plays the recording to it."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ros_kvstream.commands.demo_plan import PlannedQuestion
from ros_kvstream.evaluation.node_client import NodeClient
from ros_kvstream.evaluation.processes import Process, ProcessError
from ros_kvstream.srv import Query

POLL = 0.02
"""Seconds between looks at what has happened."""
PATIENCE = 120.0
"""Seconds without a reply after which the node is taken to hang; it refuses by itself long before (query.timeout_s)."""


@dataclass(frozen=True)
class Reply:
    """A planned question and what the node said."""

    planned: PlannedQuestion
    response: Query.Response


class Interview:
    """One recording played, its questions asked one after the other, each half a frame period after its frame."""

    def __init__(self, node: Process, player: Process, client: NodeClient, plan: Sequence[PlannedQuestion],
                 period: float) -> None:  # fmt: skip
        """:param player: a running ``replay`` process, started with a pipe; :param period: seconds between frames."""
        self._node = node
        self._player = player
        self._client = client
        self._waiting = deque(plan)
        self._period = period
        self._open: tuple[PlannedQuestion, Future[Query.Response]] | None = None
        self._asked = 0.0
        self._due: float | None = None
        self._published: int | None = None
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="replay_events", daemon=True).start()

    def _listen(self) -> None:
        """Pass the player's lines on; runs in its own thread until the player ends."""
        try:
            for line in self._player.stdout or ():
                self._events.put(json.loads(line))
        except ValueError:  # cut short, or closed while reading
            pass
        self._events.put(None)

    def run(self, on_frame: Callable[[int, float], None], on_reply: Callable[[Reply], None]) -> int:
        """Ask everything; returns the number of frames published.

        :param on_frame: told index and stamp of every frame published; :param on_reply: told every reply.
        :raises ProcessError: when one of the processes ends too early.
        """
        while self._published is None or self._waiting or self._open:
            self._node.check()
            self._take_event(on_frame)
            self._take_reply(on_reply)
            if self._open is None and self._waiting and self._is_due():
                planned = self._waiting.popleft()
                self._open, self._due = (planned, self._client.ask(planned.text)), None
                self._asked = time.monotonic()
        return self._published

    def _take_event(self, on_frame: Callable[[int, float], None]) -> None:
        try:
            event = self._events.get(timeout=POLL)
        except queue.Empty:
            return
        if event is None:
            if self._published is None:
                self._player.wait(5.0)
                raise ProcessError(f"{self._player.name} ended before the recording did:{self._player.log_end()}")
            time.sleep(POLL)
        elif "frame" in event:
            if self._waiting and self._due is None and event["frame"] >= self._waiting[0].at:
                self._due = time.monotonic() + self._period / 2
            on_frame(event["frame"], event["stamp"])
        elif "published" in event:
            self._published = event["published"]

    def _is_due(self) -> bool:
        return self._published is not None or (self._due is not None and time.monotonic() >= self._due)

    def _take_reply(self, on_reply: Callable[[Reply], None]) -> None:
        if self._open is None:
            return
        planned, answer = self._open
        if answer.done():
            self._open = None
            on_reply(Reply(planned, answer.result()))
        elif time.monotonic() - self._asked > PATIENCE:
            raise ProcessError(f"{self._node.name} did not reply within {PATIENCE:g} s:{self._node.log_end()}")
