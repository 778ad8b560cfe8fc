# SPDX-License-Identifier: Apache-2.0
"""Published video benchmarks, read from their own files and scored as their papers report."""

from __future__ import annotations

from pathlib import Path

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.datasets import ovo_bench, rvs, streamingbench, whole_video
from ros_kvstream.evaluation.datasets.common import SHOWN, Benchmark, Reading

BENCHMARKS = {
    "mlvu": Benchmark(whole_video.read_mlvu, whole_video.score_mlvu),
    "video-mme": Benchmark(whole_video.read_video_mme, whole_video.score_video_mme),
    "longvideobench": Benchmark(whole_video.read_longvideobench, whole_video.score_longvideobench),
    "egoschema": Benchmark(whole_video.read_egoschema, whole_video.score_egoschema),
    "streamingbench": Benchmark(streamingbench.read, streamingbench.score),
    "ovo-bench": Benchmark(ovo_bench.read, ovo_bench.score),
    "rvs-ego": Benchmark(rvs.read, rvs.score),
    "rvs-movie": Benchmark(rvs.read, rvs.score),
}


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name; raises SettingsError that lists them."""
    if name not in BENCHMARKS:
        raise SettingsError(f"--benchmark {name}: must be one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


def read_benchmark(name: str, folder: Path, rate_hz: float, limit: int = 0) -> Reading:
    """Read a benchmark from its folder; its episodes are one per video, in the order of its files.

    :param rate_hz: frames per second that are taken from the videos; :param limit: first so many videos; 0: all.
    :raises SettingsError: names the missing files.
    """
    if not folder.is_dir():
        raise SettingsError(f"--data {folder}: no such folder")
    reading = Reading(folder)
    find_benchmark(name).read(reading)
    if reading.unanswered:
        reading.notes.append(f"{reading.unanswered} questions have no published answer: left out.")
    if reading.omitted:
        named = "; ".join(reading.omitted[:SHOWN]) + ("; ..." if len(reading.omitted) > SHOWN else "")
        reading.notes.append(f"{len(reading.omitted)} entries cannot be used and are left out: {named}.")
    if not reading.questions:
        notes = " ".join(reading.notes)
        raise SettingsError(f"--data {folder}: holds no question of {name} that can be asked. {notes}")
    reading.find_videos(rate_hz, limit)
    if not reading.episodes:
        raise SettingsError(f"--data {folder}: {' '.join(reading.notes)}")
    return reading
