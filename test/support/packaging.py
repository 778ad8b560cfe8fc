# SPDX-License-Identifier: Apache-2.0
"""Building the package in tests: where ROS 2 lies, and which files are sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_SOURCE = shutil.ignore_patterns(
    ".*", "__pycache__", "*.egg-info", "*.so", "build", "install", "log", "dist", "test", "docs", "benchmarks",
    "training")
CMAKE_ARGUMENTS = (
    "-Wno-dev", "-DBUILD_TESTING=OFF", f"-DPython3_EXECUTABLE={sys.executable}",
    f"-DCMAKE_PROJECT_INCLUDE={ROOT / 'cmake' / 'wheel_prefix.cmake'}",
)


def require_programs(*names: str) -> None:
    """Skip the test where a program is missing, and say which."""
    missing = [name for name in names if shutil.which(name, path=build_environment()["PATH"]) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")


def ros_prefixes() -> list[str]:
    """Return the prefixes that ROS 2 is in: those of the shell, and the virtual environment."""
    return [*filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)), sys.prefix]


def build_environment() -> Mapping[str, str]:
    """Return an environment in which CMake and colcon find ROS 2."""
    prefixes = os.pathsep.join(dict.fromkeys(ros_prefixes()))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "AMENT_PREFIX_PATH": prefixes, "CMAKE_PREFIX_PATH": prefixes, "PATH": path}


def run(command: Iterable[str | Path], folder: Path) -> str:
    """Run a command in a folder, show its output when it fails, and return its standard output."""
    done = subprocess.run(list(map(str, command)), cwd=folder, env=build_environment(), capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout

