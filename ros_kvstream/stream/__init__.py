# SPDX-License-Identifier: Apache-2.0
"""VideoMemory, the Python interface: observe frames, ask questions, save and load."""

from ros_kvstream.stream.memory import VideoMemory

__all__ = ["VideoMemory"]
