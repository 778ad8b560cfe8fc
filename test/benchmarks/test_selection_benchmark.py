# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch
from rich.console import Console

from benchmarks.allocation_peak import peak_extra_bytes
from benchmarks.selection import show
from benchmarks.selection_timing import BenchmarkShape, measure

SMALL = BenchmarkShape(layers=2, head_dim=32, frames=16, keep_frames=12, rows=4, columns=5, repeats=1)


def test_the_report_has_both_types_and_paper_keeps_the_published_slots_in_float32() -> None:
    report = measure(SMALL)
    assert set(report) == {"float32", "bfloat16"}
    for row in report.values():
        assert {"speedup", "peak_ratio", "same_slots", "of_floor", "later_speedup"} <= set(row)
        assert row["speedup"] > 0 and row["later_speedup"] > 0
        assert row["ours_peak_mib"] > 0
    assert report["float32"]["same_slots"] is True
    console = Console(record=True, width=120)
    show(report, console)
    assert "peak ratio" in console.export_text()


def test_the_peak_counts_what_lives_at_once_and_not_what_was_made_before() -> None:
    kept: list[torch.Tensor] = []

    def prepare() -> None:
        kept.append(torch.zeros(1 << 20))

    def work() -> None:
        first = torch.zeros(1 << 18)
        del first
        second = torch.zeros(1 << 19)
        kept.clear()
        del second

    peak = peak_extra_bytes(prepare, work)
    assert 4 << 19 <= peak < (4 << 19) + (4 << 17)
