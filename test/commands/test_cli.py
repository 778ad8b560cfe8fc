"""The command line: what it lists, how it refuses, what it leaves alone until it is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from ros_kvstream.commands import cli
from ros_kvstream.errors import BudgetError


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command of its own, ``kvstream probe --times N``."""
    module = ModuleType("probe_command")
    module.__doc__ = "Probes."
    vars(module).update(
        add_arguments=lambda parser: parser.add_argument("--times", type=int, default=1),
        run=lambda options, console: console.print("working") or {"times": options.times},
        show=lambda report, console: console.print(f"probed {report['times']}"),
    )
    monkeypatch.setitem(sys.modules, "probe_command", module)
    monkeypatch.setattr(cli, "present", lambda table: {"probe": cli.Command("probe_command", "probes")})
    return module


def test_help_lists_the_commands_and_loads_neither_torch_nor_ros() -> None:
    heavy = "{'torch', 'transformers', 'rclpy', 'cv2', 'rich', 'numpy'}"
    check = f"atexit.register(lambda: print(sorted({heavy} & set(sys.modules))))"
    program = f"import sys, atexit; from ros_kvstream.commands import cli; {check}; cli.main(['--help'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert "demo" in done.stdout and "inspect" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_listed_command_and_benchmark_can_be_asked_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [[name] for name in cli.present(cli.COMMANDS)]
    listed += [["benchmark", name] for name in cli.present(cli.BENCHMARKS)]
    for words in listed:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--help"])
        assert ended.value.code == 0
        assert "--json" in capsys.readouterr().out


def test_an_unknown_command_is_refused_with_the_ones_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["dance"])
    assert ended.value.code == 2
    assert "dance" in (said := capsys.readouterr().err) and "inspect" in said


def test_json_has_stdout_for_itself(probe: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "--json", "--times", "3"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"times": 3}
    assert said.err == "working\n"


def test_without_json_the_report_is_shown(probe: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", "--times", "3"]) == 0
    assert capsys.readouterr().out == "working\nprobed 3\n"


def test_a_refusal_is_one_line_and_status_2(
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
