"""``kvstream``: finds the command's module, parses its options, runs it, prints its report.

A command's module offers ``add_arguments(parser)``, ``run(options, console) -> report`` and ``show(report, console)``.
It is imported only when its command is chosen, so that ``kvstream --help`` needs neither torch nor ROS.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ros_kvstream import __version__
from ros_kvstream.errors import KvStreamError

REFUSED = 2
"""Exit status for what the user can mend; argparse uses it too."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


@dataclass(frozen=True)
class Command:
    """Where a command lives and what it does in a line."""

    module: str
    help: str


COMMANDS: dict[str, Command] = {
    "demo": Command("ros_kvstream.commands.demo", "play a recording to a running node and ask it questions"),
    "evaluate": Command("ros_kvstream.commands.evaluate", "accuracy, bytes and times of many memories on recordings"),
    "inspect": Command("ros_kvstream.commands.inspect", "what a byte budget holds for a model, without its weights"),
    "soak": Command("ros_kvstream.commands.soak", "hours of frames, questions and faults"),
}
BENCHMARKS: dict[str, Command] = {
    "model": Command("benchmarks.model", "accuracy of the tiny model by question kind"),
    "selection": Command("benchmarks.selection", "speed of the selection policies"),
    "policies": Command("benchmarks.policies", "accuracy of every policy by budget"),
    "retrieval": Command("benchmarks.retrieval", "recall and accuracy of the retrieval experts"),
    "families": Command("benchmarks.families", "bytes and tokens of every supported model"),
    "real_scale": Command("benchmarks.real_scale", "policies and precisions on real weights"),
    "ingest": Command("benchmarks.ingest", "speed of a frame's and a question's way"),
    "node": Command("benchmarks.node", "frame age and answer times of a node under cameras"),
    "thinning": Command("benchmarks.thinning", "what frame gate and saliency save and cost"),
}


def present(table: Mapping[str, Command]) -> dict[str, Command]:
    """The entries of a table whose module can be imported; benchmarks only in a checkout."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "benchmarks" / "__init__.py").is_file() and str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    return {name: command for name, command in table.items() if importable(command.module)}


def importable(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False


def choose(program: str, description: str, table: Mapping[str, str], words: Sequence[str]) -> str:
    """Parse the first word as one of a table's names; help, version and errors end the process as argparse does."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--version", action="version", version=f"ros_kvstream {__version__}")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, table)) + 2
    rows = (f"  {name:<{width}}{text}" for name, text in table.items())
    parser.epilog = "\n".join([f"{'NAME':<{width + 2}}what it does", *rows])
    parser.add_argument("name", choices=table, metavar="NAME", help="one of those below; NAME --help tells its options")
    return str(parser.parse_args(words[:1]).name)


def find_command(words: Sequence[str]) -> tuple[str, Command, Sequence[str]]:
    """The chosen command's full name, the command itself, and the words left for it."""
    commands, benchmarks = present(COMMANDS), present(BENCHMARKS)
    table = {name: command.help for name, command in commands.items()}
    if benchmarks:
        table["benchmark"] = f"measure: {', '.join(benchmarks)}"
    name = choose("kvstream", "A visual memory of fixed size for robots.", table, words)
    if name in commands:
        return f"kvstream {name}", commands[name], words[1:]
    texts = {name: command.help for name, command in benchmarks.items()}
    name = choose("kvstream benchmark", "Measure a part of the memory.", texts, words[1:])
    return f"kvstream benchmark {name}", benchmarks[name], words[2:]


def run_command(words: Sequence[str]) -> int:
    """Run the command that the words name; progress and report go to stderr when ``--json`` has stdout."""
    program, command, rest = find_command(words)
    for name, silent in (("KINETO_LOG_LEVEL", "99"), ("TORCH_CPP_LOG_LEVEL", "ERROR")):
        os.environ.setdefault(name, silent)  # torch's profiler would write its own steps between our lines
    module: Any = importlib.import_module(command.module)
    parser = argparse.ArgumentParser(prog=program, description=(module.__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, all else on stderr")
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


def _terminated(number: int, frame: FrameType | None) -> None:
    """Let every ``finally`` run when the process is asked to end."""
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the installed script; returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # SIGHUP: the terminal was closed
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _terminated)
    try:
        return run_command(sys.argv[1:] if arguments is None else arguments)
    except KvStreamError as error:
        print(f"kvstream: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("kvstream: interrupted, everything that it started has ended", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # such as `kvstream ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
