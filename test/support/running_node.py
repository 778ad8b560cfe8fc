# SPDX-License-Identifier: Apache-2.0
"""Starts real node processes on their own ROS domains, talks to them over DDS, and ends all it started."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import TransformStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import SetParameters
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image
from std_srvs.srv import Trigger

from ros_kvstream import msg
from ros_kvstream.action import Ask
from ros_kvstream.node.messages import to_stamp
from ros_kvstream.poses import Pose
from ros_kvstream.srv import MemoryFile, Query

Found = TypeVar("Found")
PATIENCE = 120.0
"""Seconds after which something that should happen is taken as not happening, on a loaded machine."""
SMALL = {"memory.budget_mib": 8.0, "memory.policy": "sliding_window", "diagnostics.period_s": 0.2}
"""Parameters that keep a test's node small and quick."""


@contextmanager
def own_domain() -> Iterator[int]:
    """Hold a ROS domain that no other test process on this machine uses now."""
    # A destroyed lifecycle node of this process lives on in a reference cycle, its services with it, until collected; a
    # client in the same domain would find them too, and with Kilted never count its service as ready.
    gc.collect()
    folder = Path(tempfile.gettempdir()) / "kvstream_test_domains"
    folder.mkdir(exist_ok=True)
    for domain in range(20, 100):
        lock: TextIO = open(folder / str(domain), "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        try:
            yield domain
        finally:
            lock.close()
        return
    raise RuntimeError("no free ROS domain from 20 to 99")


@contextmanager
def own_context(domain: int | None = None) -> Iterator[rclpy.Context]:
    """Hold an initialized context in a ROS domain of its own, or in the given one; local discovery alone."""
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    with own_domain() if domain is None else nullcontext(domain) as held:
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=held)
        try:
            yield context
        finally:
            context.try_shutdown()


DISCOVERY = 0.3
"""Seconds to spin after a match: the other side may not have found this one yet, and would miss what is sent."""
RESPONSE = 3.0
"""Seconds after which the lifecycle state is asked for again, for the same reason."""


class RunningNode:
    """A kvstream_node process and a client node beside it, in one ROS domain."""

    def __init__(self, process: subprocess.Popen[str], log: Path, context: rclpy.Context) -> None:
        self.process = process
        self.log = log
        self.client = rclpy.create_node("test_client", context=context)
        self.executor = SingleThreadedExecutor(context=context)
        self.executor.add_node(self.client)
        self.diagnostics: dict[str, DiagnosticStatus] = {}
        self.stats: msg.KvStats | None = None
        self.answers: list[msg.Answer] = []
        self.client.create_subscription(DiagnosticArray, "/diagnostics", self._diagnosed, 10)
        self.client.create_subscription(msg.KvStats, "/kvstream/stats", self._counted, 10)
        self.client.create_subscription(msg.Answer, "/kvstream/answers", self.answers.append, 10)
        self.tokens: list[msg.AnswerToken] = []
        self.client.create_subscription(msg.AnswerToken, "/kvstream/answer_tokens", self.tokens.append, 1000)
        self._clients: dict[str, Any] = {}
        self._action: ActionClient | None = None

    def _diagnosed(self, array: DiagnosticArray) -> None:
        for status in array.status:
            self.diagnostics[status.name.split(": ", 1)[1]] = status

    def _counted(self, stats: msg.KvStats) -> None:
        self.stats = stats

    # -- waiting ----------------------------------------------------------------------------------------------------

    def until(self, found: Callable[[], Found], what: str) -> Found:
        """Spin until ``found`` returns something true; fail with the node's log otherwise."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            result = found()
            if result:
                return result
            if self.process.poll() is not None:
                raise AssertionError(f"the node ended with {self.process.returncode} before: {what}\n{self.output()}")
            self.executor.spin_once(timeout_sec=0.05)
        raise AssertionError(f"not within {PATIENCE:g} s: {what}\n{self.output()}")

    def spin(self, seconds: float) -> None:
        """Let messages arrive for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.02)

    def output(self) -> str:
        """What the node has written so far."""
        return self.log.read_text()

    def status(self, part: str) -> DiagnosticStatus:
        """Newest diagnostic status of a part, such as 'state' or 'camera camera'."""
        return self.until(lambda: self.diagnostics.get(part), f"a diagnostic status {part!r}")

    def until_status(self, part: str, test: Callable[[DiagnosticStatus], bool]) -> DiagnosticStatus:
        """Wait for a status that passes a test."""
        self.until(lambda: part in self.diagnostics and test(self.diagnostics[part]), f"a status {part!r} as wanted; "
                   f"newest: {self.diagnostics.get(part)}")
        return self.diagnostics[part]

    def until_stats(self, test: Callable[[msg.KvStats], bool]) -> msg.KvStats:
        """Wait for figures that pass a test."""
        self.until(lambda: self.stats is not None and test(self.stats), "figures as wanted")
        assert self.stats is not None
        return self.stats

    # -- services ---------------------------------------------------------------------------------------------------

    def begin(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service without waiting; returns the future."""
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self.client.create_client(kind, name)
            self.until(client.service_is_ready, f"service {name}")
            self.spin(DISCOVERY)
        self.until(client.service_is_ready, f"service {name}")
        return client.call_async(request)

    def call(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service and wait for its response."""
        future = self.begin(kind, name, request)
        self.until(future.done, f"a response of {name}")
        return future.result()

    def ask_later(self, question: str, **limits: Any) -> Any:
        """Ask without waiting; returns the future."""
        return self.begin(Query, "/kvstream/query", Query.Request(question=question, **limits))

    def ask(self, question: str, **limits: Any) -> Query.Response:
        """Ask and wait for the answer."""
        return self.call(Query, "/kvstream/query", Query.Request(question=question, **limits))

    def ask_action(self, question: str, **limits: Any) -> tuple[Any, list[Any]]:
        """Ask through ~/ask; returns the accepted goal and the list that its feedback goes into."""
        if self._action is None:
            self._action = ActionClient(self.client, Ask, "/kvstream/ask")
        self.until(self._action.server_is_ready, "the action ~/ask")
        feedback: list[Any] = []
        sent = self._action.send_goal_async(Ask.Goal(question=question, **limits),
                                            feedback_callback=lambda message: feedback.append(message.feedback))
        self.until(sent.done, "the goal to be accepted")
        return sent.result(), feedback

    def result(self, goal: Any) -> tuple[int, Any]:
        """Wait for a goal's end; returns its status and its result."""
        future = goal.get_result_async()
        self.until(future.done, "the goal's result")
        return future.result().status, future.result().result

    def clear(self) -> Trigger.Response:
        """Call ~/clear."""
        return self.call(Trigger, "/kvstream/clear", Trigger.Request())

    def save(self, name: str) -> MemoryFile.Response:
        """Call ~/save."""
        return self.call(MemoryFile, "/kvstream/save", MemoryFile.Request(name=name))

    def load(self, name: str) -> MemoryFile.Response:
        """Call ~/load."""
        return self.call(MemoryFile, "/kvstream/load", MemoryFile.Request(name=name))

    def change(self, transition: int) -> bool:
        """Ask for a lifecycle transition; returns whether it succeeded."""
        request = ChangeState.Request(transition=Transition(id=transition))
        return bool(self.call(ChangeState, "/kvstream/change_state", request).success)

    def lifecycle_state(self) -> str:
        """The lifecycle state's label."""
        asked: list[Any] = []

        def answered() -> Any:
            if not asked or time.monotonic() > asked[-1][0] + RESPONSE:
                future = self.begin(GetState, "/kvstream/get_state", GetState.Request())
                asked.append((time.monotonic(), future))
            return next((future for _, future in asked if future.done()), None)

        return str(self.until(answered, "the lifecycle state").result().current_state.label)

    def until_active(self) -> None:
        """Wait until the node is active."""
        self.until(lambda: self.lifecycle_state() == "active", "the node to be active")

    def set_parameter(self, name: str, value: Any) -> str:
        """Set a parameter; returns the reason of the refusal, empty when it was accepted."""
        request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        result = self.call(SetParameters, "/kvstream/set_parameters", request).results[0]
        return "" if result.successful else result.reason or "refused"

    # -- frames -----------------------------------------------------------------------------------------------------

    def camera(self, topic: str, kind: Any = Image, *, reliable: bool = True, depth: int = 50,
               wait: bool = True) -> Any:
        """Make a publisher of images and wait until the node has found it."""
        reliability = ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
        publisher = self.client.create_publisher(kind, topic, QoSProfile(depth=depth, reliability=reliability))
        if wait:
            self.until(lambda: publisher.get_subscription_count() > 0, f"a subscription of {topic}")
            self.spin(DISCOVERY)
        return publisher

    # -- the end ----------------------------------------------------------------------------------------------------

    def interrupt(self) -> int:
        """Send Ctrl-C and return the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)


@contextmanager
def running_node(folder: Path, parameters: dict[str, Any] | None = None, *arguments: str,
                 environment: dict[str, str] | None = None, held_domain: int | None = None,
                 program: tuple[str, ...] = ("-m", "ros_kvstream.node.main")) -> Iterator[RunningNode]:
    """Run a node process in a domain of its own; both ends are gone afterwards, whatever happens.

    :param folder: for the log; :param parameters: node parameters over SMALL; :param arguments: further ROS arguments;
    :param environment: variables of the node's process alone; :param held_domain: a domain that the caller holds;
    :param program: what Python runs.
    """
    given = [part for name, value in {**SMALL, **(parameters or {})}.items() for part in ("-p", f"{name}:={value}")]
    log = folder / "node.log"
    with own_domain() if held_domain is None else nullcontext(held_domain) as domain:
        variables = {**os.environ, "ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
                     "OMP_NUM_THREADS": "1", "ROS_LOG_DIR": str(folder), "PYTHONUNBUFFERED": "1", **(environment or {})}
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        with open(log, "w") as output:
            process = subprocess.Popen(
                [sys.executable, *program, "--ros-args", *given, *arguments],
                stdout=output, stderr=subprocess.STDOUT, text=True, env=variables)
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=domain)
        node = RunningNode(process, log, context)
        try:
            yield node
        finally:
            node.executor.shutdown()
            node.client.destroy_node()
            rclpy.shutdown(context=context)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def picture(seed: int, width: int = 56, height: int = 56) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A small random picture, RGB uint8 [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def image(pixels: np.ndarray[Any, Any], stamp: float, encoding: str = "rgb8") -> Image:
    """An image message of pixels [height, width, channels]."""
    message = Image(height=pixels.shape[0], width=pixels.shape[1], encoding=encoding, step=pixels[0].nbytes)
    message.data.frombytes(pixels.tobytes())
    message.header.stamp = to_stamp(stamp)
    return message


def transform(parent: str, child: str, pose: Pose, stamp: float) -> TransformStamped:
    """A transform message: the pose of a child frame in its parent."""
    message = TransformStamped(child_frame_id=child)
    message.header.frame_id, message.header.stamp = parent, to_stamp(stamp)
    to, turned = message.transform.translation, message.transform.rotation
    to.x, to.y, to.z = pose.position
    turned.x, turned.y, turned.z, turned.w = pose.orientation
    return message


def compressed(data: bytes, stamp: Time | float, form: str = "jpeg") -> CompressedImage:
    """A compressed image message."""
    message = CompressedImage(format=form)
    message.data.frombytes(data)
    message.header.stamp = to_stamp(stamp) if isinstance(stamp, float) else stamp
    return message
