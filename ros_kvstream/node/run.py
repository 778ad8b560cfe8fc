# SPDX-License-Identifier: Apache-2.0
"""Runs the node: one executor thread, one worker thread, clean exit on Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor

from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.partial_files import remove_partial_files
from ros_kvstream.node.lifecycle_node import KvStreamNode
from ros_kvstream.node.parameters import report_unused_arguments
from ros_kvstream.node.rclpy_compat import RclError, UnknownArguments
from ros_kvstream.node.security import security_hint

BAD_PARAMETER = 2
"""Exit status when an argument or a parameter value is rejected, or a parameter file cannot be read."""
NO_MIDDLEWARE = 3
"""Exit status when the middleware does not start, for example because enforced security is not available."""


def run(ending: Callable[[], None]) -> int:
    """Run the node until it is shut down; returns the exit status.

    The process must end after it: a worker thread that still loads a model or writes a file is abandoned.

    :param ending: called once before the node is destroyed, and again after ROS 2 has given its signal handlers back.
    """
    initialized = False
    try:
        rclpy.init()
        initialized = True
        node = KvStreamNode()
        report_unused_arguments(node, sys.argv)
    except SettingsError as error:
        return _fail(str(error), BAD_PARAMETER)
    except UnknownArguments as error:
        return _fail(f"unknown arguments behind --ros-args: {error}. A parameter is given as -p NAME:=VALUE.",
                     BAD_PARAMETER)
    except (KeyboardInterrupt, ExternalShutdownException):
        _shut_down()
        return 0
    except Exception as error:
        if initialized and _was_shut_down(error):
            return 0
        if not isinstance(error, RclError):
            raise
        if "Couldn't parse" in str(error):  # the values at the end are places in the source of rcl
            return _fail(f"{str(error).split(', at /')[0].rstrip('.')}.", BAD_PARAMETER)
        return _fail(f"ROS 2 does not start: {error}.{security_hint(error)}", NO_MIDDLEWARE)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        if node.parameters.value("autostart"):
            executor.create_task(node.start)
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except Exception as error:
        if not _was_shut_down(error):
            raise
    finally:
        ending()
        _destroy(node, executor)
        ending()
    return 0


def _destroy(node: KvStreamNode, executor: SingleThreadedExecutor) -> None:
    """Destroy the node, shut ROS 2 down, and remove the file that an abandoned worker was writing."""
    directory = node.parameters.value("memory.directory")
    try:
        node.destroy_node()
        executor.shutdown(timeout_sec=1.0)
    except Exception as error:
        if not _was_shut_down(error):
            raise
    _shut_down()
    if directory and not node.released:
        remove_partial_files(Path(directory).expanduser(), own=True)


def _was_shut_down(error: Exception) -> bool:
    """Whether ROS 2 has been shut down, which rclpy reports by errors of many types; the error is logged then."""
    if rclpy.ok():
        return False
    rclpy.logging.get_logger("kvstream").debug(f"interrupted by the shutdown: {type(error).__name__}: {error}")
    return True


def _shut_down() -> None:
    """Shut ROS 2 down, unless its own signal handler does so at the same time."""
    try:
        rclpy.try_shutdown()
    except RclError as error:
        if not _was_shut_down(error):
            raise


def _fail(reason: str, status: int) -> int:
    """Log why the node does not run; returns the exit status."""
    rclpy.logging.get_logger("kvstream").fatal(reason)
    _shut_down()
    return status
