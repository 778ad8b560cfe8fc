# SPDX-License-Identifier: Apache-2.0
"""Measurements of ros_kvstream: run from a checkout, not installed; one file per `kvstream benchmark NAME`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table


def figures_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Make a table for the terminal: names in the first column, figures right-aligned in the others."""
    table = Table(title=title)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    return table
