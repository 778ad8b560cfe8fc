# SPDX-License-Identifier: Apache-2.0
"""Processes that are started here end here: politely, by force, and when the parent dies."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ros_kvstream.errors import KvStreamError
from ros_kvstream.evaluation.processes import (
    Process,
    ProcessError,
    ProcessGroup,
    free_domain,
    require_ros,
    ros_environment,
)

STUBBORN_PARENT = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
LEAVING_PARENT = """
import os, sys
from pathlib import Path
from ros_kvstream.evaluation.processes import ProcessGroup
group = ProcessGroup(Path(sys.argv[1]), os.environ)
child = group.start("child", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
child.wait_for(lambda: "up" in child.log.read_text(), "starting", 60.0)  # before it runs nobody could tell it
print(child.pid, flush=True)
os._exit(0)
"""


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def printed_number(process: Process) -> int:
    """The number in the first line that a process prints."""
    assert eventually(lambda: "\n" in process.log.read_text())
    return int(process.log.read_text())


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_process_is_asked_to_end_first(tmp_path: Path) -> None:
    program = ("import time\ntry:\n    print('up', flush=True)\n    time.sleep(600)\nexcept KeyboardInterrupt:\n"
               "    print('polite')")
    with ProcessGroup(tmp_path, os.environ, patience=60.0) as group:
        process = group.start("sleeper", [sys.executable, "-c", program])
        process.wait_for(lambda: "up" in process.log.read_text(), "starting", 60.0)
        assert process.resident_bytes() > 0
    assert not process.running
    assert "polite" in process.log.read_text()
    assert process.resident_bytes() == 0


def test_one_that_will_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path, os.environ, patience=0.2) as group:
        process = group.start("stubborn", [sys.executable, "-c", STUBBORN_PARENT])
        grandchild = printed_number(process)
        assert not gone(grandchild)
    assert not process.running
    assert eventually(lambda: gone(grandchild))


def test_all_end_when_the_context_is_left_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), ProcessGroup(tmp_path, os.environ, patience=0.2) as group:
        processes = [group.start(str(n), [sys.executable, "-c", "import time; time.sleep(600)"]) for n in range(2)]
        raise KeyboardInterrupt
    assert not any(process.running for process in processes)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv, of util-linux")
def test_a_child_ends_when_its_parent_dies_without_a_word(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path, os.environ) as group:
        parent = group.start("parent", [sys.executable, "-c", LEAVING_PARENT, str(tmp_path)])
        child = printed_number(parent)
        assert eventually(lambda: gone(child))


def test_an_early_end_is_told_with_status_and_log(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path, os.environ) as group:
        process = group.start("brief", [sys.executable, "-c", "import sys; print('no camera'); sys.exit(3)"])
        with pytest.raises(ProcessError, match=r"(?s)brief ended with status 3.*no camera"):
            process.wait_for(lambda: False, "anything", 60.0)


def test_waiting_has_an_end(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path, os.environ, patience=0.2) as group:
        process = group.start("slow", [sys.executable, "-c", "import time; time.sleep(600)"])
        with pytest.raises(ProcessError, match=r"slow: starting took more than 0.2 s"):
            process.wait_for(lambda: False, "starting", 0.2)


def test_a_missing_ros_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(KvStreamError, match=r"no module rclpy.*setup.bash"):
        require_ros()


def test_ros_processes_get_a_domain_of_their_own_on_this_machine_only() -> None:
    domain = free_domain()
    environment = ros_environment(domain)
    assert 1 <= domain <= 101
    assert environment["ROS_DOMAIN_ID"] == str(domain)
    assert environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
