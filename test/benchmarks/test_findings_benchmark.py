# SPDX-License-Identifier: Apache-2.0
"""The findings page: what is confirmed and what is not follows from the figures alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.findings import (
    ARCHIVE_MIB,
    ARCHIVE_SHARES,
    EVICTING,
    EXPERTS,
    FULL_SHARE,
    SHARES,
    Findings,
    cell,
    page,
    patrols,
    write_page,
)
from ros_kvstream.evaluation.grid import Cell
from ros_kvstream.evaluation.summary import CellSummary, summarise

LENGTHS = {60.0: 2, 300.0: 1}


def summary(of: Cell, right: float, *, used: int = 1000) -> CellSummary:
    """Ten streams of 20 questions each, of which the first so many of a stream are answered right."""
    runs, lines = [], []
    for stream in range(10):
        run = f"{of}-{stream}"
        runs.append({"run": run, "cell": of.data(), "episode": f"s{stream}", "status": "done", "reason": "",
                     "frames": 120 if stream < 5 else 600, "first_stamp": 0.0, "budget_bytes": 1 << 20,
                     "trace": [{"frames": 1, "stamp": 0.0, "used_bytes": 1, "archive_bytes": 0, "ingest_ms": 1.0}],
                     "memory": {"used_bytes": used, "archive_bytes": 99, "peak_bytes": 1}})  # fmt: skip
        for number in range(20):
            good = number < 20 * right
            seen = {"stamp": 10.0 if good else 90.0, "stamp_end": 10.0 if good else 90.0, "score": 1.0, "camera": "c"}
            lines.append({"run": run, "episode": f"s{stream}", "question": str(number), "answer": "x", "correct": good,
                          "kind": ("now", "before")[number % 2], "asked_at": 100.0, "true_evidence": [10.0],
                          "evidence": [seen], "latency": {"first_token_ms": 1.0}, "frames_before": 9, "error": "",
                          "task": "", "text": "t"})  # fmt: skip
    (found,) = summarise(runs, lines)
    return found


def findings(accuracy: dict[str, float], *, experts: tuple[float, float, float] = (0.5, 0.5, 0.9),
             thinned_bytes: int = 300, mixed: float = 0.9, simple_ahead: bool = False) -> Findings:  # fmt: skip
    grid = [summary(cell("m", policy, share), accuracy.get(policy, 0.5)) for policy in EVICTING for share in SHARES]
    grid.append(summary(cell("m", "full", FULL_SHARE), 0.9))
    archive = [summary(cell("m", policy, share, ARCHIVE_MIB), 0.8)
               for policy in ("infinipot_v", "recent") for share in ARCHIVE_SHARES]  # fmt: skip
    return Findings(
        tuple(grid), tuple(archive),
        {name: summary(cell("m", "recent", 0.0625, ARCHIVE_MIB, more), value)
         for (name, more), value in zip(EXPERTS.items(), experts, strict=True)},
        summary(cell("m", "full", FULL_SHARE), 0.9, used=thinned_bytes),
        summary(cell("m", "infinipot_v", 0.45), mixed),
        tuple(summary(cell("m", policy, share), 0.7) for policy in EVICTING for share in (0.0625, 0.25)),
    )  # fmt: skip


def verdicts(found: Findings) -> list[str]:
    return re.findall(r"\*\*(?:[\w ]+: )?([A-Za-z ]+)\.\*\*", "\n".join(page(found, LENGTHS)))


def test_every_claim_is_confirmed_where_the_figures_say_so() -> None:
    assert verdicts(findings({"infinipot_v": 0.9})) == ["Confirmed", "Confirmed", "confirmed", "confirmed"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"accuracy": {"infinipot_v": 0.6}}, "Not confirmed"),
        ({"accuracy": {"infinipot_v": 0.9}, "experts": (0.5, 0.9, 0.9)}, "Not confirmed"),
        ({"accuracy": {"infinipot_v": 0.9}, "thinned_bytes": 600}, "not confirmed"),
        ({"accuracy": {"infinipot_v": 0.9}, "mixed": 0.5}, "not confirmed"),
    ],
)
def test_a_claim_that_does_not_hold_is_said_not_to(found: dict[str, Any], expected: str) -> None:
    assert verdicts(findings(**found)).count(expected) == 1


def test_simpler_policies_that_win_are_named_with_their_lead() -> None:
    text = "\n".join(page(findings({"infinipot_v": 0.6, "uniform": 0.8}), LENGTHS))
    assert "- `uniform` at 6.25 %, about before: +20.0 (+20.0 to +20.0) points over `infinipot_v`." in text
    assert "`recent` at" not in text.split("Where a simpler policy wins")[1].split("## The papers")[0]
    assert "Nowhere: at no budget" in "\n".join(page(findings({"infinipot_v": 0.9}), LENGTHS))


def test_tables_hold_every_policy_and_budget_and_mark_the_best() -> None:
    text = "\n".join(page(findings({"infinipot_v": 0.9}), LENGTHS))
    table = text.split("## About before, by policy and budget")[1].split("##")[0]
    assert all(f"| {policy} |" in table for policy in EVICTING) and table.count("**90.0**") == len(SHARES)
    assert text.count("120 frames") == text.count("600 frames") == 1
    assert "nan" not in text.lower() and "none" not in text.lower()


def test_the_page_is_written_with_its_plots_beside_it(tmp_path: Path) -> None:
    found = findings({})
    write_page(replace(found, grid=found.grid[-2:]), LENGTHS, tmp_path / "findings.md")
    assert (tmp_path / "findings.md").read_text().startswith("# Findings\n")
    assert (tmp_path / "images" / "findings" / "accuracy.png").is_file()


def test_evicted_and_misread_are_told_apart() -> None:
    section = "\n".join(page(findings({"infinipot_v": 0.9}), LENGTHS)).split("## Forgotten or misread")[1]
    row = next(line for line in section.splitlines() if line.startswith("| recent |"))
    assert row == "| recent | 6.25 % | 50.0 | 100.0 | 0.0 |"


def test_patrols_of_every_length_have_seeds_of_their_own() -> None:
    episodes = patrols(LENGTHS, 3)
    assert len({episode.name for episode in episodes}) == 3
    assert [episode.source.count() for episode in episodes] == [120, 120, 600]
