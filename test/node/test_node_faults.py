# SPDX-License-Identifier: Apache-2.0
"""What a node does about errors inside its memory; in this process, so that errors can be made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from support.node_bench import NodeBench
from support.running_node import image, own_context, picture


class Bench(NodeBench):
    """A node that receives frames, and what it reports."""

    def __init__(self, context: rclpy.Context, model: Path, action: str) -> None:
        super().__init__(context, model, {"memory.budget_mib": 2.0, "faults.action": action, "faults.limit": 3})
        self.reports: list[str] = []
        """Messages of all diagnostic statuses."""
        self.helper.create_subscription(DiagnosticArray, "/diagnostics", self._reported, 10)
        self.stamp = 0.0

    def _reported(self, array: DiagnosticArray) -> None:
        self.reports += [status.message for status in array.status]

    @property
    def counts(self) -> Any:
        return self.session.counters.total()

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

        self.session.worker.call(lambda memory: setattr(memory.model, "encode_frames", fail)).result(60)

    def mend_model(self) -> None:
        self.session.worker.call(lambda memory: delattr(memory.model, "encode_frames")).result(60)


@pytest.fixture
def bench(request: pytest.FixtureRequest, random_model: Path) -> Iterator[Bench]:
    with own_context() as context:
        made = Bench(context, random_model, request.param)
        yield made
        made.close()


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


@pytest.mark.parametrize("bench", ["continue"], indirect=True)
def test_what_the_conversion_of_a_picture_loses_is_reported_and_the_frame_is_kept(bench: Bench) -> None:
    infrared = np.arange(56 * 56, dtype=np.uint16).reshape(56, 56) % 1024
    bench.camera.publish(image(infrared, 0.1, "mono16"))
    bench.until(lambda: any("uses 5 of 256 levels" in text and "camera.range" in text for text in bench.reports))
    assert bench.counts.kept == 1 and not bench.counts.dropped.total()


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
