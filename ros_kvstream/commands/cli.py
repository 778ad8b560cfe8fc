# SPDX-License-Identifier: Apache-2.0
"""The ``kvstream`` program: finds a command by its file, parses its options, runs it and prints its report.

A command is a module in this folder, a benchmark is one in a checkout's ``benchmarks`` folder; both define
``add_arguments(parser)``, ``run(options, console) -> report`` and ``show(report, console)``. Only the chosen module is
imported, so that ``kvstream --help`` needs neither torch nor ROS.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ros_kvstream import __version__
from ros_kvstream.errors import KvStreamError

FAILED = 2
"""Exit status after an error that the user can correct; argparse uses it too."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""
COMMANDS = Path(__file__).resolve().parent
BENCHMARKS = COMMANDS.parents[1] / "benchmarks"
"""Exists in a checkout only."""


def find_commands(folder: Path) -> dict[str, str]:
    """Names of the commands in a folder, with the first lines of their docstrings; imports none of them."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "add_arguments" for node in module.body):
            summary = (ast.get_docstring(module) or "").partition("\n")[0]
            found[path.stem] = summary.removeprefix(f"`kvstream benchmark {path.stem}`: ").rstrip(".")
    return found


def choose(program: str, description: str, table: Mapping[str, str], words: Sequence[str]) -> str:
    """Parse the first word as one of the table's names; exits after help, version and errors as argparse does."""
    width = max(map(len, table)) + 2
    rows = (f"  {name:<{width}}{text}" for name, text in table.items())
    parser = argparse.ArgumentParser(
        prog=program, description=description, epilog="\n".join([f"{'NAME':<{width + 2}}description", *rows]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"ros_kvstream {__version__}")
    parser.add_argument("name", choices=table, metavar="NAME", help="one of these; NAME --help lists its options")
    return str(parser.parse_args(words[:1]).name)


def find_module(words: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """Full name and module of the command that the words choose, and the remaining words."""
    table, benchmarks = find_commands(COMMANDS), find_commands(BENCHMARKS)
    if benchmarks:
        table["benchmark"] = f"Measure one of: {', '.join(benchmarks)}"
    name = choose("kvstream", "A visual memory of fixed size for robots.", table, words)
    if name != "benchmark":
        return f"kvstream {name}", f"ros_kvstream.commands.{name}", words[1:]
    name = choose("kvstream benchmark", "Measure a part of the memory.", benchmarks, words[1:])
    sys.path.append(str(BENCHMARKS.parent))
    return f"kvstream benchmark {name}", f"benchmarks.{name}", words[2:]


def run_command(words: Sequence[str]) -> int:
    """Run the command that the words choose; with ``--json``, stdout holds the report and stderr everything else."""
    program, module_name, rest = find_module(words)
    for variable, value in (("KINETO_LOG_LEVEL", "99"), ("TORCH_CPP_LOG_LEVEL", "ERROR")):
        os.environ.setdefault(variable, value)  # silences the log of torch's profiler
    module: Any = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(prog=program, description=(module.__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object; progress on stderr")
    module.add_arguments(parser)
    options = parser.parse_args(rest)

    from rich.console import Console

    console = Console(stderr=options.json, highlight=False)
    report = module.run(options, console)
    if options.json:
        print(json.dumps(report, allow_nan=False))
    else:
        module.show(report, console)
    return 0


def _terminate(number: int, frame: FrameType | None) -> None:
    """Handle a signal by an exception, so that every ``finally`` runs."""
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the installed script; returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP: the terminal was closed
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores it
            signal.signal(number, _terminate)
    try:
        return run_command(sys.argv[1:] if arguments is None else arguments)
    except KvStreamError as error:
        print(f"kvstream: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("kvstream: interrupted; all processes that it started have ended", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # such as `kvstream ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
