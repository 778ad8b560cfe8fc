# SPDX-License-Identifier: Apache-2.0
"""The executable ``kvstream_node``: one executor thread, one worker thread, and a clean end on Ctrl-C."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation

from ros_kvstream.errors import SettingsError
from ros_kvstream.node.lifecycle_node import KvStreamNode
from ros_kvstream.node.security import security_hint

BAD_PARAMETER = 2
"""Exit status for a parameter value that is refused at start."""
NO_MIDDLEWARE = 3
"""Exit status when the middleware does not start, such as where security is demanded and cannot be had."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the node until it is told to end; returns the exit status."""
    begun = False
    try:
        rclpy.init(args=arguments)
        begun = True
        node = KvStreamNode()
    except SettingsError as error:
        return _ended(str(error), BAD_PARAMETER)
    except (KeyboardInterrupt, ExternalShutdownException):
        _shut_down()
        return 0
    except rclpy_implementation.RCLError as error:
        if begun and not rclpy.ok():  # told to end while the node was being made
            return 0
        return _ended(f"ROS 2 does not start: {error}.{security_hint(error)}", NO_MIDDLEWARE)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        if node.parameters.value("autostart"):
            executor.create_task(node.start)
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        executor.shutdown(timeout_sec=1.0)
        _shut_down()
    if not node.released:
        # A model that is still being loaded by the worker's thread must not hold up the end of the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _shut_down() -> None:
    """End ROS 2 unless its own signal handler already does, which may come in between."""
    try:
        rclpy.try_shutdown()
    except rclpy_implementation.RCLError:
        if rclpy.ok():
            raise


def _ended(reason: str, status: int) -> int:
    """Say why the node does not run; returns the exit status."""
    rclpy.logging.get_logger("kvstream").fatal(reason)
    _shut_down()
    return status


if __name__ == "__main__":
    sys.exit(main())
