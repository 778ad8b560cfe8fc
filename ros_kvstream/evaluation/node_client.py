"""Talks to a running kvstream node from outside ROS: lifecycle, questions, figures; one background thread spins."""

from __future__ import annotations

import os
import re
import threading
import time
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from ros_kvstream.evaluation.processes import Process, ProcessError
from ros_kvstream.msg import KvStats
from ros_kvstream.srv import Query

_RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"
QUIET = 4
"""Messages on ~/stats without news after which no frame is on its way any more."""
TRANSITIONS = {"configure": Transition.TRANSITION_CONFIGURE, "activate": Transition.TRANSITION_ACTIVATE}

WAY_BACK_SECONDS = 0.3
"""After a service was found, its response writer may still not know its reader; a response would be lost then."""


class NodeClient:
    """A context with its own ROS context on one domain, local to this machine. Methods are called from one thread."""

    def __init__(self, domain: int, node: str = "/kvstream") -> None:
        """:param node: full name of the kvstream node."""
        self._context = rclpy.Context()
        before = os.environ.get(_RANGE)
        os.environ[_RANGE] = "LOCALHOST"  # read once, when the context is made
        try:
            rclpy.init(context=self._context, domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
        finally:
            if before is None:
                del os.environ[_RANGE]
            else:
                os.environ[_RANGE] = before
        self._node = rclpy.create_node("kvstream_client", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self.stats: KvStats | None = None
        """The newest message on ~/stats."""
        self._node.create_subscription(KvStats, f"{node}/stats", self._take_stats, 10)
        self._query = self._node.create_client(Query, f"{node}/query")
        self._change_state = self._node.create_client(ChangeState, f"{node}/change_state")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="kvstream_client", daemon=True)
        self._thread.start()

    def _take_stats(self, stats: KvStats) -> None:
        self.stats = stats

    def _spin(self) -> None:
        """Runs in the background thread until the context is left; nothing is taken down while it still waits."""
        while not self._ended.is_set():
            self._executor.spin_once(timeout_sec=0.2)

    def change_state(self, process: Process, transition: str, timeout: float) -> bool:
        """Ask for a lifecycle transition, "configure" or "activate"; whether it succeeded.

        :param process: the node's, which must keep running; :param timeout: seconds.
        """
        self._find(self._change_state, process, "starting", timeout)
        request = ChangeState.Request(transition=Transition(id=TRANSITIONS[transition]))
        answer = self._call(self._change_state, request)
        process.wait_for(answer.done, transition, timeout)
        return bool(answer.result().success)

    def start(self, process: Process, timeout: float = 300.0) -> None:
        """Configure and activate the node; raises ProcessError with the node's own reason when it refuses."""
        for transition in TRANSITIONS:
            if not self.change_state(process, transition, timeout):
                reason = reason_in_log(process)
                raise ProcessError(reason or f"{process.name} refused to {transition}:{process.log_end()}")
        self._find(self._query, process, "offering ~/query", timeout)

    @staticmethod
    def _find(client: Any, process: Process, what: str, timeout: float) -> None:
        """Wait until a service is there, and its response has a way back."""
        process.wait_for(client.service_is_ready, what, timeout)
        time.sleep(WAY_BACK_SECONDS)

    def ask(self, question: str, **limits: Any) -> Future[Query.Response]:
        """Ask a question; the future holds the response.

        :param limits: other fields of the request, such as ``camera``.
        """
        return self._call(self._query, Query.Request(question=question, **limits))

    @staticmethod
    def _call(client: Any, request: Any) -> Future[Any]:
        """Call a service; the result is a future of the standard library, safe between threads."""
        result: Future[Any] = Future()

        def hand_over(done: Any) -> None:
            error = done.exception()
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(done.result())

        client.call_async(request).add_done_callback(hand_over)
        return result

    def wait_for_settled(self, process: Process, published: int, timeout: float = 60.0) -> KvStats:
        """The node's figures once every published frame is seen or dropped.

        Frames that never come are given up when QUIET messages in a row tell the same and nothing waits any more.

        :param timeout: seconds; a node that is busy for longer than that is an error.
        """
        latest: list[tuple[int, int]] = []
        before = self.stats

        def settled() -> bool:
            nonlocal before
            stats = self.stats
            if stats is None or stats is before:
                return False
            before = stats
            done = stats.frames_seen + sum(stats.drop_counts)
            idle = stats.queue_length == 0 and done == stats.frames_published
            latest.append((stats.frames_published, done) if idle else (-1, len(latest)))
            return idle and (done >= published or (len(latest) >= QUIET and len(set(latest[-QUIET:])) == 1))

        process.wait_for(settled, "taking the last frames", timeout)
        assert before is not None
        return before

    def __enter__(self) -> NodeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._executor.wake()
        self._thread.join()
        self._executor.shutdown()
        self._node.destroy_node()
        rclpy.try_shutdown(context=self._context)


def reason_in_log(process: Process) -> str:
    """What the node logged as its newest error, without ROS' prefix; empty when it logged none."""
    errors = re.findall(r"^\s*\[(?:ERROR|FATAL)\] \[[^]]*\] \[[^]]*\]: (.*)$", process.log_end(200), re.MULTILINE)
    return str(errors[-1]).strip() if errors else ""
