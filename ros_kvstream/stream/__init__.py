"""VideoMemory, all that a Python user needs: observe frames, ask questions, save and load."""

from ros_kvstream.stream.memory import VideoMemory

__all__ = ["VideoMemory"]
