# SPDX-License-Identifier: Apache-2.0
"""Client of a running kvstream node: lifecycle, services and statistics; one background thread spins."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from std_srvs.srv import Trigger

from ros_kvstream.evaluation.processes import Process, ProcessError
from ros_kvstream.msg import KvStats
from ros_kvstream.recordings.bags import ImageTopic
from ros_kvstream.recordings.replay import Player
from ros_kvstream.srv import MemoryFile, Query

SERVICES = {
    "query": Query, "change_state": ChangeState, "set_parameters": SetParameters,
    "clear": Trigger, "save": MemoryFile, "load": MemoryFile,
}  # fmt: skip
TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
}
UNCHANGED_STATS = 4
"""Equal messages on ~/stats after which no further frame is expected."""
DISCOVERY_SECONDS = 0.3
"""Wait after a service or subscription was found: the other side must discover this one too, or messages are lost."""
SUBSCRIBING_SECONDS = 300.0
"""Limit for the node to subscribe to the cameras."""


def local_context(domain: int) -> rclpy.Context:
    """Open a ROS context that reaches only this machine; close it with ``rclpy.try_shutdown``."""
    variable, context = "ROS_AUTOMATIC_DISCOVERY_RANGE", rclpy.Context()
    before = os.environ.get(variable)
    os.environ[variable] = "LOCALHOST"  # read once, when the context is initialized
    try:
        rclpy.init(context=context, domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
    finally:
        os.environ.pop(variable) if before is None else os.environ.update({variable: before})
    return context


class NodeClient:
    """A context manager with its own ROS context, local to this machine. Methods are called from one thread."""

    def __init__(self, domain: int, node: str = "/kvstream") -> None:
        """:param node: full name of the kvstream node."""
        self._context = local_context(domain)
        self.node = rclpy.create_node("kvstream_client", context=self._context)
        """The client's own ROS node; more publishers and subscriptions may be added to it."""
        self.stats: KvStats | None = None
        """The newest message on ~/stats."""
        self.node.create_subscription(KvStats, f"{node}/stats", self._take_stats, 10)
        self._clients = {name: self.node.create_client(kind, f"{node}/{name}") for name, kind in SERVICES.items()}
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="kvstream_client", daemon=True)
        self._thread.start()

    def _take_stats(self, stats: KvStats) -> None:
        self.stats = stats

    def _spin(self) -> None:
        """Spin until the context manager exits; entities are destroyed only after that."""
        while not self._ended.is_set():
            self._executor.spin_once(timeout_sec=0.2)

    def start(self, process: Process, timeout: float = 300.0) -> None:
        """Configure and activate the node.

        :param process: the node's, which must keep running; :param timeout: seconds of each step.
        :raises ProcessError: with the node's own reason when it refuses.
        """
        self.wait_for_services(process, "change_state", timeout=timeout)
        for transition in ("configure", "activate"):
            response = self.change_state(transition)
            process.wait_for(response.done, transition, timeout)
            if not response.result().success:
                reason = error_in_log(process)
                raise ProcessError(reason or f"{process.name} refused to {transition}:{process.log_end()}")
        self.wait_for_services(process, "query", timeout=timeout)

    def wait_for_services(self, process: Process, *names: str, timeout: float = 300.0) -> None:
        """Wait until these services are ready, by default all; raises ProcessError after ``timeout`` seconds."""
        for name in names or SERVICES:
            process.wait_for(self._clients[name].service_is_ready, f"offering ~/{name}", timeout)
        time.sleep(DISCOVERY_SECONDS)

    def make_player(self, process: Process, topics: Mapping[str, ImageTopic], **options: Any) -> Player:
        """Make a player of these topics, by camera, as soon as the node subscribes to all of them.

        :param options: of the player, such as ``rate``; :raises ProcessError: after SUBSCRIBING_SECONDS.
        """
        player = Player(self.node, topics, **options)
        process.wait_for(player.subscribed, "subscribing to the cameras", SUBSCRIBING_SECONDS)
        time.sleep(DISCOVERY_SECONDS)
        return player

    def call(self, service: str, request: Any) -> Future[Any]:
        """Call one of SERVICES; the future holds the response and may be used from any thread."""
        result: Future[Any] = Future()

        def hand_over(done: Any) -> None:
            error = done.exception()
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(done.result())

        self._clients[service].call_async(request).add_done_callback(hand_over)
        return result

    def ask(self, question: str, **limits: Any) -> Future[Query.Response]:
        """Ask a question.

        :param limits: other fields of the request, such as ``camera``.
        """
        return self.call("query", Query.Request(question=question, **limits))

    def change_state(self, transition: str) -> Future[ChangeState.Response]:
        """Request a lifecycle transition, one of TRANSITIONS."""
        return self.call("change_state", ChangeState.Request(transition=Transition(id=TRANSITIONS[transition])))

    def wait_for_settled(self, process: Process, published: int, timeout: float = 60.0) -> KvStats:
        """Wait until every published frame is seen or dropped; returns the statistics.

        Frames that do not arrive are given up after UNCHANGED_STATS equal messages of an idle node.

        :raises ProcessError: when the node is still busy after ``timeout`` seconds.
        """
        newest, counts, equal = self.stats, (-1, -1), 0

        def settled() -> bool:
            nonlocal newest, counts, equal
            stats = self.stats
            if stats is None or stats is newest:
                return False
            before, newest = counts, stats
            done = stats.frames_seen + sum(stats.drop_counts)
            counts = (stats.frames_published, done)
            idle = stats.queue_length == 0 and done == stats.frames_published
            equal = 0 if not idle else equal + 1 if counts == before else 1
            return idle and (done >= published or equal >= UNCHANGED_STATS)

        process.wait_for(settled, "taking the last frames", timeout)
        assert newest is not None
        return newest

    def __enter__(self) -> NodeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._executor.wake()
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self._context)


def error_in_log(process: Process) -> str:
    """The newest error in the log of a node, without ROS' prefix; empty where there is none."""
    errors = re.findall(r"^\s*\[(?:ERROR|FATAL)\] \[[^]]*\] \[[^]]*\]: (.*)$", process.log_end(200), re.MULTILINE)
    return str(errors[-1]).strip() if errors else ""
