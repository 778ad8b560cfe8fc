# SPDX-License-Identifier: Apache-2.0
"""A node in the process of the test, with a helper node beside it, both run by one executor."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from ros_kvstream.node.lifecycle_node import KvStreamNode
from support.running_node import PATIENCE


class NodeBench:
    """An active node with a publisher of its images; ``parameters`` over those of a small memory."""

    def __init__(self, context: rclpy.Context, model: Path, parameters: dict[str, Any]) -> None:
        given = {"model": str(model), "memory.policy": "sliding_window", "gate.mode": "off",
                 "diagnostics.period_s": 0.1, **parameters}
        self.node = KvStreamNode(
            context=context, parameter_overrides=[Parameter(name, value=value) for name, value in given.items()])
        self.helper = rclpy.create_node("helper", context=context)
        self.camera = self.helper.create_publisher(Image, "/image", 10)
        self.executor = SingleThreadedExecutor(context=context)
        for node in (self.node, self.helper):
            self.executor.add_node(node)
        self.executor.create_task(self.node.start)
        self.until(lambda: self.state == "active" and self.camera.get_subscription_count() > 0)

    @property
    def session(self) -> Any:
        return self.node.status.session

    @property
    def state(self) -> str:
        return self.node.status.state

    def until(self, condition: Callable[[], Any]) -> None:
        """Run the executor until the condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            self.executor.spin_once(timeout_sec=0.02)

    def close(self) -> None:
        self.node.destroy_node()
        self.helper.destroy_node()
        self.executor.shutdown()
