"""The findings as a Markdown page: tables, what follows from them, and the papers' claims beside the figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.findings import BYTES_CLAIM, EVICTING, Findings
from ros_kvstream.evaluation.report import versions
from ros_kvstream.evaluation.report_plots import draw
from ros_kvstream.evaluation.summary import CellSummary, Share, found_evidence, paired_difference, share

EQUAL = 0.03
"""Accuracies are called equal when they differ by at most so much and the interval holds no difference."""
SIMPLER = ("recent", "sliding_window", "uniform", "tar", "van", "aks")
MIB = 1 << 20


def write_page(findings: Findings, lengths: Mapping[float, int], path: Path) -> None:
    """Write the page, and its plots beside it in images/."""
    images = path.parent / "images"
    draw([*findings.grid], images / "findings")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(page(findings, lengths)) + "\n", encoding="utf-8")


def page(findings: Findings, lengths: Mapping[float, int]) -> Iterator[str]:
    """Lines of the page."""
    yield from _head(findings, lengths)
    for kind, title in (("before", "About before"), ("now", "About now")):
        yield from [f"## {title}, by policy and budget", ""]
        yield from _by_budget(findings, kind)
    yield from _by_length(findings)
    yield from _with_archive(findings)
    yield from _why(findings)
    yield from _simpler(findings)
    yield from ["## The papers' claims on this yardstick", ""]
    yield from _claim_six_percent(findings)
    yield from _claim_fusion(findings)
    yield from _claim_bytes(findings)
    if findings.recording:
        yield from _recording(findings)


def _head(findings: Findings, lengths: Mapping[float, int]) -> Iterator[str]:
    questions = len(findings.full.lines)
    streams = ", ".join(f"{count} of {seconds:g} s" for seconds, count in lengths.items())
    made = ", ".join(f"{name} {value}" for name, value in versions().items())
    yield from [
        "# Findings",
        "",
        "Printed by `make findings`, which measures what has changed since it last ran; no figure here is typed.",
        f"Patrol streams at 2 Hz ({streams}) with {questions} questions to each memory, the tiny model, every frame",
        "kept (no frame gate) unless a line says otherwise. A budget is a share of the slots that all frames of a",
        "stream take; prompt, question and answer come on top. `recent` keeps the last frames only: the control.",
        "Ranges in parentheses are 95 % bootstrap intervals; differences are of the same questions, pairwise.",
        f"Made with {made}.",
        "",
        "![Accuracy against bytes](images/findings/accuracy.png)",
        "",
    ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _percent(part: Share | None, *, interval: bool = False) -> str:
    if part is None:
        return "-"
    text = f"{100 * part.value:.1f}"
    return text + (f" ({100 * part.low:.0f} - {100 * part.high:.0f})" if interval else "")


def _points(part: Share | None) -> str:
    """A difference in points with its interval."""
    return "-" if part is None else f"{100 * part.value:+.1f} ({100 * part.low:+.1f} to {100 * part.high:+.1f})"


def _find(summaries: Iterable[CellSummary], policy: str, budget: float) -> CellSummary | None:
    wanted = (policy, budget)
    return next((found for found in summaries if (found.cell.policy, found.cell.budget_share) == wanted), None)


def _shares(summaries: Iterable[CellSummary]) -> list[float]:
    return sorted({summary.cell.budget_share for summary in summaries if summary.cell.policy != "full"})


def _by_budget(findings: Findings, kind: str) -> Iterator[str]:
    """Accuracy of each policy at each budget; the best of a budget is bold."""
    budgets = _shares(findings.grid)
    table: dict[str, list[Share | None]] = {
        policy: [found.accuracy(kind) if (found := _find(findings.grid, policy, budget)) else None
                 for budget in budgets] for policy in EVICTING
    }  # fmt: skip
    best = [max((row[i].value for row in table.values() if row[i]), default=None) for i in range(len(budgets))]  # type: ignore[union-attr]

    def text(part: Share | None, top: float | None) -> str:
        return f"**{_percent(part)}**" if part and part.value == top else _percent(part)

    rows = [[policy, *map(text, row, best)] for policy, row in table.items()]
    yield from _table(["policy, % right", *(f"{100 * budget:g} %" for budget in budgets)], rows)
    yield f"The full cache: {_percent(findings.full.accuracy(kind), interval=True)} %."
    yield ""


def _by_length(findings: Findings) -> Iterator[str]:
    """Accuracy about before by length at one small budget."""
    budget = min(_shares(findings.grid), key=lambda value: abs(value - 0.0625))
    frames = sorted({run["frames"] for summary in findings.grid for run in summary.runs if run["status"] == "done"})
    yield from [f"## About before at {100 * budget:g} %, by length of the stream", ""]

    def row(summary: CellSummary) -> list[str]:
        sizes = {run["episode"]: run.get("frames", 0) for run in summary.runs}
        return [
            _percent(share(line for line in summary.lines if line["kind"] == "before"
                           and sizes.get(line["episode"]) == count)) for count in frames
        ]  # fmt: skip

    chosen = [summary for summary in findings.grid if summary.cell.budget_share == budget] + [findings.full]
    yield from _table(["policy, % right", *(f"{count} frames" for count in frames)],
                      [[summary.cell.policy, *row(summary)] for summary in chosen])  # fmt: skip


def _with_archive(findings: Findings) -> Iterator[str]:
    """The archive's gain at equal arena budgets."""
    yield from ["## With an archive", ""]
    rows = []
    for summary in findings.archive:
        alone = _find(findings.grid, summary.cell.policy, summary.cell.budget_share)
        if alone:
            rows.append([
                summary.cell.policy, summary.cell.budget, _percent(summary.accuracy("before")),
                _points(paired_difference(summary.lines, alone.lines, "before")), _percent(summary.accuracy("now")),
                _points(paired_difference(summary.lines, alone.lines, "now")),
                f"{summary.most('archive_bytes') / MIB:.2f}",
            ])  # fmt: skip
    header = ["policy", "arena", "before, %", "against alone", "now, %", "against alone", "archive, MiB used"]
    yield from _table(header, rows)


def _why(findings: Findings) -> Iterator[str]:
    """Forgotten or misread: accuracy where the evidence was among the frames looked at, and where it was not."""
    yield from ["## Forgotten or misread", "",
                "Questions about before whose evidence is known: how often a frame of it was among those looked at, "
                "and what was right then.", ""]  # fmt: skip
    rows = []
    budget = min(_shares(findings.grid), key=lambda value: abs(value - 0.0625))
    chosen = [summary for summary in findings.grid if summary.cell.budget_share == budget] + [findings.full]
    for summary in chosen:
        known = [line for line in summary.lines if line["kind"] == "before" and found_evidence(line) is not None]
        seen = [line for line in known if found_evidence(line)]
        rows.append([summary.cell.policy, summary.cell.budget, _percent(summary.recall()), _percent(share(seen)),
                     _percent(share(line for line in known if line not in seen))])  # fmt: skip
    yield from _table(["policy", "budget", "evidence found, %", "right if found", "right if not"], rows)


def _simpler(findings: Findings) -> Iterator[str]:
    """Where a simpler policy is ahead of the default one."""
    yield from ["## Where a simpler policy wins", ""]
    lines = []
    for budget in _shares(findings.grid):
        default = _find(findings.grid, "infinipot_v", budget)
        for policy in SIMPLER:
            other = _find(findings.grid, policy, budget)
            for kind in ("now", "before"):
                ahead = paired_difference(other.lines, default.lines, kind) if other and default else None
                if ahead and ahead.value > 0:
                    sure = "" if ahead.low > 0 else "; the interval holds 0"
                    lines.append(f"- `{policy}` at {100 * budget:g} %, about {kind}: {_points(ahead)} points over "
                                 f"`infinipot_v`{sure}.")  # fmt: skip
    yield from lines or ["Nowhere: at no budget is a simpler policy ahead of `infinipot_v`, now or before."]
    yield ""


def _verdict(difference: Share | None, *, better: bool = False) -> str:
    """Confirmed or not: equal accuracy, or with ``better`` a higher one."""
    if difference is None:
        return "Not measured"
    if better:
        return "Confirmed" if difference.low > 0 else "Not confirmed" if difference.value <= 0 else "Open"
    if difference.high < 0:
        return "Not confirmed"
    return "Confirmed" if difference.value >= -EQUAL else "Open"


def _claim_six_percent(findings: Findings) -> Iterator[str]:
    yield from ["### InfiniPot-V equals the full cache at about 6 % of the memory", ""]
    small = _find(findings.grid, "infinipot_v", 0.0625)
    control = _find(findings.grid, "recent", 0.0625)
    if small is None or control is None:
        return
    difference = paired_difference(small.lines, findings.full.lines)
    before = paired_difference(small.lines, findings.full.lines, "before")
    yield from [
        f"**{_verdict(difference)}.** At 6.25 % `infinipot_v` differs from the full cache by {_points(difference)}",
        f"points over all questions and {_points(before)} over those about before; the control `recent` by "
        f"{_points(paired_difference(control.lines, findings.full.lines))}.",
        f"The evidence was among the frames looked at in {_percent(small.recall())} % of the questions about before "
        f"(full cache: {_percent(findings.full.recall())} %):",
        "what is missing there has been evicted, the rest of the difference is misread.",
        "",
    ]


def _claim_fusion(findings: Findings) -> Iterator[str]:
    yield from ["### Fusing both experts beats the single one", ""]
    fused = findings.experts["fused"]
    rows = [
        [name, _percent(summary.accuracy("before"), interval=True), _percent(summary.recall(), interval=True),
         "" if name == "fused" else _points(paired_difference(fused.lines, summary.lines, "before"))]
        for name, summary in findings.experts.items()
    ]  # fmt: skip
    others = [findings.experts[name] for name in ("internal", "external")]
    known = [found for other in others if (found := paired_difference(fused.lines, other.lines, "before"))]
    worst = min(known, key=lambda single: single.value) if known else None
    verdict = _verdict(worst, better=True)
    yield f"**{verdict}.** Policy `recent` at 6.25 % with an archive of 1 MiB, questions about before:"
    yield ""
    yield from _table(["expert", "right, %", "evidence found, %", "fused against it"], rows)


def _claim_bytes(findings: Findings) -> Iterator[str]:
    yield from [f"### {BYTES_CLAIM:g} times fewer bytes at equal accuracy", ""]
    full, thinned, ladder = findings.full, findings.thinned, findings.quantized
    used = [
        (run["memory"]["used_bytes"], other["memory"]["used_bytes"])
        for run in full.runs for other in thinned.runs
        if run["episode"] == other["episode"] and run["status"] == other["status"] == "done"
    ]  # fmt: skip
    ratio = sum(plain for plain, _ in used) / max(1, sum(thin for _, thin in used))
    gated = paired_difference(thinned.lines, full.lines)
    packed = paired_difference(ladder.lines, full.lines)
    enough = _verdict(gated) if ratio >= BYTES_CLAIM else "Not confirmed"
    yield from [
        f"**Frame gate and saliency: {enough.lower()}.** They leave 1/{ratio:.2f} of the bytes of the full cache, at a "
        f"difference of {_points(gated)} points.",
        "",
        f"**Precision ladder: {_verdict(packed).lower()}.** `infinipot_v` in 8 and 4 bits within 1/{BYTES_CLAIM:g} of "
        f"the bytes differs from the full cache by {_points(packed)} points.",
        "",
    ]


def _recording(findings: Findings) -> Iterator[str]:
    """Agreement with the full cache on a real recording."""
    yield from [
        "## On a real recording",
        "",
        "The tiny model has only seen patrols, and nobody knows the right answers about `test/data/donkey_track`. So",
        "this is how often a memory answers what the full cache answers about the same 1,000 frames.",
        "",
    ]
    budgets = _shares(findings.recording)
    rows = [
        [policy, *(_percent(found.accuracy(), interval=True) if (found := _find(findings.recording, policy, budget))
                   else "-" for budget in budgets)] for policy in EVICTING
    ]  # fmt: skip
    yield from _table(["policy, % equal", *(f"{100 * budget:g} %" for budget in budgets)], rows)
