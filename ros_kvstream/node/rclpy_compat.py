# SPDX-License-Identifier: Apache-2.0
"""The private names of rclpy that the node needs, in one place. Tried with rclpy 7.1.6 (Jazzy) and 9.1.2 (Kilted).

``rclpy.impl.implementation_singleton.rclpy_implementation.RCLError``: the error for everything that rcl or the
    middleware rejects. rclpy exports no public name for it.
``rclpy.impl.implementation_singleton.rclpy_implementation.UnknownROSArgsError``: the error for options behind
    ``--ros-args`` that do not exist. It is no ``RCLError``, and has no public name either.
``Node._parameter_overrides``: the parameter values given at start. A misspelt name appears nowhere else:
    ``automatically_declare_parameters_from_overrides`` would declare it as if it existed.
"""

from __future__ import annotations

from collections.abc import Collection

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node

RclError: type[Exception] = rclpy_implementation.RCLError
UnknownArguments: type[Exception] = rclpy_implementation.UnknownROSArgsError


def names_given_at_start(node: Node) -> Collection[str]:
    """Names of the parameters given at start, undeclared ones included; empty when rclpy does not tell."""
    return list(getattr(node, "_parameter_overrides", {}))
