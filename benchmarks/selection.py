# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark selection`: time and memory of a compaction, compared with the published formulation.

At the shape of Qwen2.5-VL-3B (36 layers, 2 KV heads, 32 grids of 140 tokens cut to 24), both in one process on one
thread, alternately. Takes about a minute and 1.5 GiB.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--layers", type=int, default=36, help="layers of the model (fewer for a quick look)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds, of which the median is reported")


def run(options: argparse.Namespace, console: Console) -> dict[str, dict[str, Any]]:
    """Measure float32 and bfloat16; returns the report of ``--json``."""
    from benchmarks.selection_timing import BenchmarkShape, measure

    with console.status("Compacting at the size of Qwen2.5-VL-3B, ours and the published formulation in turn"):
        return measure(BenchmarkShape(layers=options.layers, repeats=options.repeats))


def show(report: dict[str, dict[str, Any]], console: Console) -> None:
    """Print the report as a table."""
    table = Table(title="Score, select and compact in place, compared with the published formulation")
    table.add_column("")
    for name in report:
        table.add_column(name, justify="right")
    for key in next(iter(report.values())):
        cells = [str(row[key]) if isinstance(row[key], bool) else f"{row[key]:.3g}" for row in report.values()]
        table.add_row(key.replace("_", " "), *cells)
    console.print(table)
