# SPDX-License-Identifier: Apache-2.0
"""What a node does about errors inside its memory; in this process, so that errors can be made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image
from support.running_node import PATIENCE, image, own_domain, picture

from ros_kvstream.node.lifecycle_node import KvStreamNode


class Bench:
    """A node, a camera and an executor in this process."""

    def __init__(self, context: rclpy.Context, model: Path, action: str) -> None:
        given = {"model": str(model), "memory.budget_mib": 2.0, "memory.policy": "sliding_window", "gate.mode": "off",
                 "faults.action": action, "faults.limit": 3, "diagnostics.period_s": 0.1}
        overrides = [Parameter(name, value=value) for name, value in given.items()]
        self.node = KvStreamNode(context=context, parameter_overrides=overrides)
        self.helper = rclpy.create_node("camera", context=context)
        self.camera = self.helper.create_publisher(Image, "/image", 10)
        self.reports: list[str] = []
        """Messages of all diagnostic statuses."""
        self.helper.create_subscription(DiagnosticArray, "/diagnostics", self._reported, 10)
        self.executor = SingleThreadedExecutor(context=context)
        for node in (self.node, self.helper):
            self.executor.add_node(node)
        self.executor.create_task(self.node.start)
        self.stamp = 0.0
        self.until(lambda: self.state == "active" and self.camera.get_subscription_count() > 0)

    def _reported(self, array: DiagnosticArray) -> None:
        self.reports += [status.message for status in array.status]

    @property
    def state(self) -> str:
        return self.node.status.state

    @property
    def counts(self) -> Any:
        return self.node.status.session.counters.total()

    def until(self, condition: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            self.executor.spin_once(timeout_sec=0.02)

    def publish(self, frames: int) -> None:
        """Publish frames and wait until each is accounted for, or the node has left the active state."""
        for _ in range(frames):
            self.stamp += 0.1
            done = self.counts.published + 1
            self.camera.publish(image(picture(int(10 * self.stamp)), self.stamp))
            self.until(lambda wanted=done: self.state != "active"
                       or (self.counts.published >= wanted and self.counts.waiting == 0))

    def break_model(self) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise MemoryError("no memory left")

        self.node.status.session.worker.call(lambda memory: setattr(memory.model, "encode_frames", fail)).result(60)

    def mend_model(self) -> None:
        self.node.status.session.worker.call(lambda memory: delattr(memory.model, "encode_frames")).result(60)

    def close(self) -> None:
        self.node.destroy_node()
        self.helper.destroy_node()
        self.executor.shutdown()


@pytest.fixture
def bench(request: pytest.FixtureRequest, random_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    with own_domain() as domain:
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=domain)
        made = Bench(context, random_model, request.param)
        yield made
        made.close()
        rclpy.shutdown(context=context)


@pytest.mark.parametrize("bench", ["continue"], indirect=True)
def test_a_node_that_is_to_continue_drops_frames_reports_the_cause_and_recovers(bench: Bench) -> None:
    bench.publish(2)
    bench.break_model()
    bench.publish(5)
    assert bench.state == "active" and bench.counts.dropped["fault"] == 5
    bench.until(lambda: any("no memory left" in message for message in bench.reports))
    bench.mend_model()
    bench.publish(2)
    assert bench.counts.seen == 4 and bench.counts.published == 9


@pytest.mark.parametrize("bench", ["deactivate"], indirect=True)
def test_a_node_that_is_to_deactivate_does_so_after_errors_in_a_row_and_can_be_activated_again(bench: Bench) -> None:
    bench.publish(1)
    bench.break_model()
    bench.publish(2)
    bench.mend_model()
    bench.publish(1)
    assert bench.state == "active"  # two errors, then a good frame: not in a row
    bench.break_model()
    bench.publish(3)
    bench.until(lambda: bench.state == "inactive")
    assert "faults.action" in bench.node.status.failure
    bench.mend_model()
    bench.node.trigger_activate()
    bench.until(lambda: bench.camera.get_subscription_count() > 0)
    bench.publish(1)
    assert bench.state == "active" and bench.node.status.failure == ""
