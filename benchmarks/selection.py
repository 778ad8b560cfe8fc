"""`kvstream benchmark selection`: score, select and compact in place, beside the published formulation.

At the shape of Qwen2.5-VL-3B (36 layers, 2 KV heads, 32 grids of 140 tokens cut to 24), one thread, one process, turn
about. Takes about a minute and 1.5 GiB.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--layers", type=int, default=36, help="layers of the model (fewer for a quick look)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds; the median counts")


def run(options: argparse.Namespace, console: Console) -> dict[str, dict[str, Any]]:
    """Measure float32 and bfloat16; returns the report of ``--json``."""
    from benchmarks.selection_timing import BenchmarkShape, measure

    with console.status("Selecting at the size of Qwen2.5-VL-3B, ours and the published formulation turn about"):
        return measure(BenchmarkShape(layers=options.layers, repeats=options.repeats))


def show(report: dict[str, dict[str, Any]], console: Console) -> None:
    """Print the report for people."""
    table = Table(title="Score, select and compact in place: ours beside the published formulation")
    table.add_column("")
    for name in report:
        table.add_column(name, justify="right")
    for key in next(iter(report.values())):
        cells = [str(row[key]) if isinstance(row[key], bool) else f"{row[key]:.3g}" for row in report.values()]
        table.add_row(key.replace("_", " "), *cells)
    console.print(table)
