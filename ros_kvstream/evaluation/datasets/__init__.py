"""Published video benchmarks: their files read as they are, their prompts, their scores as their papers report them."""

from __future__ import annotations

import importlib
from pathlib import Path

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.datasets.common import Benchmark, Reading

BENCHMARKS = {
    "mlvu": "mlvu",
    "video-mme": "video_mme",
    "longvideobench": "longvideobench",
    "egoschema": "egoschema",
    "streamingbench": "streamingbench",
    "ovo-bench": "ovo_bench",
    "rvs-ego": "rvs",
    "rvs-movie": "rvs",
}
"""Name of every benchmark and the module that reads it."""


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of that name; raises SettingsError that lists them."""
    if name not in BENCHMARKS:
        raise SettingsError(f"--benchmark {name}: must be one of {', '.join(BENCHMARKS)}")
    module = importlib.import_module(f"{__name__}.{BENCHMARKS[name]}")
    return Benchmark(name, module.read, module.score)


def read_benchmark(name: str, folder: Path, rate_hz: float, limit: int = 0) -> Reading:
    """Episodes of a benchmark whose files lie in ``folder``, one a video.

    :param rate_hz: frames a second that are taken from the videos; :param limit: first so many videos; 0: all.
    :raises SettingsError: that names the files that are missing.
    """
    if not folder.is_dir():
        raise SettingsError(f"--data {folder}: no such folder")
    return find_benchmark(name).read_episodes(folder, rate_hz, limit)
