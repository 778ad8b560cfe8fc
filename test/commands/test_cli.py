# SPDX-License-Identifier: Apache-2.0
"""The command line: listed commands, errors and exit statuses; what is imported only when needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ros_kvstream.commands import cli
from ros_kvstream.errors import BudgetError


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command of this test: ``kvstream probe --times N``."""
    module = ModuleType("ros_kvstream.commands.probe")
    module.__doc__ = "Probes."
    vars(module).update(
        add_arguments=lambda parser: parser.add_argument("--times", type=int, default=1),
        run=lambda options, console: console.print("working") or {"times": options.times},
        show=lambda report, console: console.print(f"probed {report['times']}"),
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "find_commands", lambda folder: {"probe": "Probes"})
    return module


def test_help_lists_the_commands_and_loads_neither_torch_nor_ros() -> None:
    heavy = "{'torch', 'transformers', 'rclpy', 'cv2', 'rich', 'numpy'}"
    check = f"atexit.register(lambda: print(sorted({heavy} & set(sys.modules))))"
    program = f"import sys, atexit; from ros_kvstream.commands import cli; {check}; cli.main(['--help'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert "demo" in done.stdout and "inspect" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_and_benchmark_has_a_description_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    commands, benchmarks = cli.find_commands(cli.COMMANDS), cli.find_commands(cli.BENCHMARKS)
    assert list(commands) == ["demo", "evaluate", "inspect", "soak"] and all((commands | benchmarks).values())
    for words in [[name] for name in commands] + [["benchmark", name] for name in benchmarks]:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--help"])
        assert ended.value.code == 0
        assert "--json" in capsys.readouterr().out


def test_benchmarks_are_listed_in_a_checkout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "BENCHMARKS", tmp_path / "benchmarks")
    with pytest.raises(SystemExit) as ended:
        cli.main(["benchmark", "model"])
    assert ended.value.code == 2


def test_an_unknown_command_is_rejected_with_the_existing_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["dance"])
    assert ended.value.code == 2
    assert "dance" in (said := capsys.readouterr().err) and "inspect" in said


def test_json_output_is_alone_on_stdout(probe: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "--json", "--times", "3"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"times": 3}
    assert said.err == "working\n"


def test_without_json_the_report_is_shown(probe: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "--times", "3"]) == 0
    assert capsys.readouterr().out == "working\nprobed 3\n"


def test_an_error_is_one_line_and_status_2(
    probe: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(options: object, console: object) -> None:
        raise BudgetError("too small")

    monkeypatch.setattr(probe, "run", run)
    assert cli.main(["probe"]) == 2
    assert capsys.readouterr().err == "kvstream: too small\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_runs_every_finally_and_gives_the_shells_status(
    number: signal.Signals, status: int, probe: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned = []

    def run(options: object, console: object) -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            cleaned.append(True)

    monkeypatch.setattr(probe, "run", run)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        got = cli.main(["probe"])
    except SystemExit as ended:
        got = ended.code  # type: ignore[assignment]
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert (got, cleaned) == (status, [True])
