# SPDX-License-Identifier: Apache-2.0
"""ros_kvstream: a visual memory of fixed size for robots (see README.md)."""

from __future__ import annotations

__version__ = "0.1.0"
