# SPDX-License-Identifier: Apache-2.0
"""The executor's thread never waits: not for the model, not for a picture to be copied, not for a transition."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_srvs.srv import Trigger
from support.running_node import PATIENCE, image, own_domain, picture

from ros_kvstream.node.images import image_to_rgb
from ros_kvstream.node.lifecycle_node import KvStreamNode
from ros_kvstream.srv import MemoryFile, Query

WIDTH, HEIGHT = 1920, 1080
ENOUGH = 40
"""Ticks of the executor's own timer that show that it goes on."""


class Bench:
    """A node in this process whose memory waits before each step until it is let go."""

    def __init__(self, context: rclpy.Context, model: Path, folder: Path) -> None:
        given = {"model": str(model), "memory.budget_mib": 4.0, "memory.policy": "sliding_window", "gate.mode": "off",
                 "diagnostics.period_s": 0.1, "memory.directory": str(folder), "ingest.queue_frames": 4,
                 "query.max_waiting": 8}
        self.node = KvStreamNode(
            context=context, parameter_overrides=[Parameter(name, value=value) for name, value in given.items()])
        self.helper = rclpy.create_node("helper", context=context)
        self.camera = self.helper.create_publisher(Image, "/image", QoSProfile(depth=10))
        self.executor = SingleThreadedExecutor(context=context)
        for node in (self.node, self.helper):
            self.executor.add_node(node)
        self.go = threading.Event()
        self.threads: dict[str, set[int]] = {}
        """Which threads called each method of the memory."""
        self.executor.create_task(self.node.start)
        self.until(lambda: self.state == "active" and self.camera.get_subscription_count() > 0)
        self.go.set()
        self.session.worker.call(self._hold).result(60)

    def _hold(self, memory: Any) -> None:
        for name in ("observe", "ask", "save", "load", "clear", "set_budget", "reconfigure", "stats"):
            setattr(memory, name, self._held(name, getattr(memory, name)))

    def _held(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def held(*arguments: Any, **named: Any) -> Any:
            self.threads.setdefault(name, set()).add(threading.get_ident())
            assert self.go.wait(PATIENCE)
            return method(*arguments, **named)

        return held

    @property
    def session(self) -> Any:
        return self.node.status.session

    @property
    def state(self) -> str:
        return self.node.status.state

    @property
    def ticks(self) -> int:
        return self.node.metrics.percentiles("executor lateness").count

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            self.executor.spin_once(timeout_sec=0.02)

    def call(self, kind: Any, name: str, request: Any) -> Any:
        client = self.helper.create_client(kind, name)
        self.until(client.service_is_ready)
        return client.call_async(request)

    def close(self) -> None:
        self.go.set()
        self.node.destroy_node()
        self.helper.destroy_node()
        self.executor.shutdown()


@pytest.fixture
def bench(random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    with own_domain() as domain:
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=domain)
        made = Bench(context, random_model, tmp_path)
        yield made
        made.close()
        rclpy.shutdown(context=context)


def test_while_the_memory_is_busy_frames_are_counted_calls_are_taken_and_the_timer_ticks_on(
        bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.camera.publish(image(picture(1), 1.0))
    bench.until(lambda: bench.session.counters.total().seen == 1)
    bench.go.clear()
    received, ticks = bench.session.counters.total().received, bench.ticks
    for number in range(20):
        bench.camera.publish(image(picture(number), 2.0 + number))
        bench.until(lambda wanted=number + 1: bench.session.counters.total().received == received + wanted)
    waiting = [bench.call(Query, "/kvstream/query", Query.Request(question="what is there ?", max_new_tokens=2)),
               bench.call(Trigger, "/kvstream/clear", Trigger.Request()),
               bench.call(MemoryFile, "/kvstream/save", MemoryFile.Request(name="m"))]
    bench.node.set_parameters([Parameter("memory.budget_mib", value=3.0), Parameter("gate.motion", value=4.0)])
    bench.until(lambda: bench.ticks >= ticks + ENOUGH)
    assert not any(future.done() for future in waiting), "the memory was not busy: this test showed nothing"
    count = bench.session.counters.total()
    assert count.seen == 1 and count.dropped["queue"] >= 20 - 4 - 1
    bench.go.set()
    bench.until(lambda: all(future.done() for future in waiting) and bench.session.counters.total().waiting == 0)
    assert threading.get_ident() not in set().union(*bench.threads.values())
    assert {"observe", "ask", "clear", "save", "set_budget", "reconfigure"} <= set(bench.threads)
    metrics = bench.node.metrics
    with capsys.disabled():  # for a person who looks; a test of time would tell of the machine's load
        print(f"\nexecutor lateness ms: {metrics.percentiles('executor lateness')}; "
              f"image callback ms: {metrics.percentiles('image callback')}")


def test_a_cleanup_waits_for_the_workers_step_and_the_timer_ticks_on(bench: Bench) -> None:
    bench.node.trigger_deactivate()
    bench.go.clear()
    bench.threads.clear()
    bench.call(Trigger, "/kvstream/clear", Trigger.Request())
    bench.until(lambda: bench.threads)  # the worker is held in clear, or in what it was about to do before
    ticks = bench.ticks
    cleanup = bench.call(ChangeState, "/kvstream/change_state", ChangeState.Request(
        transition=Transition(id=Transition.TRANSITION_CLEANUP)))
    bench.until(lambda: bench.ticks >= ticks + ENOUGH)
    assert not cleanup.done() and bench.state == "inactive"
    second = bench.call(ChangeState, "/kvstream/change_state", ChangeState.Request(
        transition=Transition(id=Transition.TRANSITION_ACTIVATE)))
    bench.until(second.done)
    assert not second.result().success
    bench.go.set()
    bench.until(cleanup.done)
    assert cleanup.result().success and bench.state == "unconfigured" and bench.session is None


def test_the_callback_stores_a_large_picture_without_touching_it(bench: Bench) -> None:
    bench.session.worker.ingest(False)
    sent = image(np.zeros((HEIGHT, WIDTH, 3), np.uint8), 5.0)
    bench.until(lambda: bench.camera.get_subscription_count() > 0)
    bench.camera.publish(sent)
    bench.until(lambda: len(bench.session.frames) == 1)
    stored = bench.session.frames.take().message
    assert len(stored.data) == WIDTH * HEIGHT * 3
    pixels = image_to_rgb(stored)
    assert np.shares_memory(pixels, np.frombuffer(stored.data, np.uint8)), "rgb8 reaches the memory without a copy"


@pytest.mark.parametrize("encoding", ["bgr8", "rgba8", "bgra8", "mono8", "bayer_rggb8", "uyvy", "yuv422_yuy2", "nv12"])
def test_every_other_encoding_of_eight_bits_is_copied_once(encoding: str) -> None:
    bytes_a_pixel = {"bgr8": 3, "rgba8": 4, "bgra8": 4, "uyvy": 2, "yuv422_yuy2": 2}.get(encoding, 1)
    rows = HEIGHT * 3 // 2 if encoding == "nv12" else HEIGHT
    message = Image(height=HEIGHT, width=WIDTH, encoding=encoding, step=WIDTH * bytes_a_pixel)
    message.data.frombytes(bytes(rows * WIDTH * bytes_a_pixel))
    tracemalloc.start()
    pixels = image_to_rgb(message)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    assert pixels.nbytes <= most < 1.05 * pixels.nbytes
