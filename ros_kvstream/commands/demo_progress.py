"""The demo's progress bar: how much of the recording is played, and how full the memory is."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from ros_kvstream.evaluation.node_client import NodeClient

MIB = 1 << 20


class StreamProgress:
    """A context that keeps a bar below whatever is printed."""

    def __init__(self, console: Console, frames: int, client: NodeClient) -> None:
        """:param frames: number of frames in the recording."""
        self.start = 0.0
        """Stamp of the first frame, seconds."""
        self._client = client
        figures = TextColumn("{task.fields[figures]}")
        self._progress = Progress(
            TextColumn("[cyan]playing"), BarColumn(24), TaskProgressColumn(), figures, console=console, transient=True
        )
        self._task = self._progress.add_task("playing", total=frames, figures="")

    def frame(self, index: int, stamp: float) -> None:
        """Note that a frame was published."""
        if index == 0:
            self.start = stamp
        stats = self._client.stats
        figures = f"{stamp - self.start:5.1f} s"
        if stats is not None:
            figures += (f"   {stats.frames_seen} frames seen   memory {stats.used_bytes / MIB:.3f} of "
                        f"{stats.budget_bytes / MIB:.3f} MiB")  # fmt: skip
        self._progress.update(self._task, completed=index + 1, figures=figures)

    def __enter__(self) -> StreamProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
