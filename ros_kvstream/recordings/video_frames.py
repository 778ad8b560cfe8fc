# SPDX-License-Identifier: Apache-2.0
"""Frames of a video file at a fixed rate, decoded by PyAV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros_kvstream.errors import RecordingError
from ros_kvstream.recordings.frame_sources import StreamFrame
from ros_kvstream.settings import require_finite


@dataclass(frozen=True)
class VideoSource:
    """A part of a video; stamps are seconds from the start of the video."""

    path: Path
    name: str
    """Name in results."""
    rate_hz: float = 1.0
    """Frames per second that are taken; all frames of a slower video."""
    start: float = 0.0
    """Seconds at which the part begins."""
    end: float = 0.0
    """Seconds at which it ends; 0: the end of the video."""

    def __post_init__(self) -> None:
        require_finite("--rate", self.rate_hz, 0.01, 240.0)

    def data(self) -> dict[str, Any]:
        """Plain data that identifies the frames."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        return {"video": self.path.name, "bytes": size, "rate_hz": self.rate_hz, "start": self.start, "end": self.end}

    def count(self) -> int:
        """Approximate number of frames; 0 where the file does not say."""
        end = self.end or video_seconds(self.path)
        return max(0, round((end - self.start) * self.rate_hz))

    def first_stamp(self) -> float:
        """Start of the video."""
        return 0.0

    def frames(self, note: Callable[[str], None]) -> Iterator[StreamFrame]:
        """Yield the first frame at or after each tick of the rate; a damaged part ends the stream with a note."""
        import av

        due = self.start
        try:
            with av.open(str(self.path)) as container:
                video = container.streams.video[0]
                video.thread_type = "NONE"
                for picture in container.decode(video):
                    stamp = float(picture.time or 0.0)
                    if self.end and stamp > self.end + 1e-6:
                        return
                    if stamp < due - 1e-6:
                        continue
                    yield StreamFrame(stamp, "camera", picture.to_ndarray(format="rgb24"))
                    due += max(1.0, (stamp - due) * self.rate_hz // 1.0 + 1.0) / self.rate_hz
        except IndexError as error:
            raise RecordingError(f"{self.path}: the file holds no video") from error
        except (av.error.FFmpegError, ValueError) as error:
            if due == self.start:
                raise RecordingError(f"{self.path}: cannot be read as a video ({error})") from error
            note(f"{self.path.name} breaks off near {due:.1f} s: the rest is lost")


def video_seconds(path: Path) -> float:
    """Length of a video in seconds; 0 where its file does not say or cannot be read."""
    import av

    try:
        with av.open(str(path)) as container:
            return float(container.duration or 0) / 1e6
    except (av.error.FFmpegError, OSError):
        return 0.0
