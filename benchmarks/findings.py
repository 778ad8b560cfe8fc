# SPDX-License-Identifier: Apache-2.0
"""Measure every policy, budget and archive on patrol streams and a recording, and print docs/findings.md.

``python -m benchmarks.findings`` (or ``make findings``) continues an interrupted run and measures only what has
changed. The text of the page follows from the figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from ros_kvstream.commands.evaluate import run_with_progress
from ros_kvstream.errors import KvStreamError
from ros_kvstream.evaluation.episodes import Episode, patrol_episodes
from ros_kvstream.evaluation.executors import Runner
from ros_kvstream.evaluation.grid import Cell, Override, make_jobs
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.evaluation.report import versions
from ros_kvstream.evaluation.report_plots import draw
from ros_kvstream.evaluation.results import ResultsFolder
from ros_kvstream.evaluation.scoring import Pattern
from ros_kvstream.evaluation.summary import (
    CellSummary,
    Line,
    Share,
    found_evidence,
    paired_difference,
    share,
    summarise,
)
from ros_kvstream.memory.budget import MIB
from ros_kvstream.memory.policies import policy_names
from ros_kvstream.recordings.bags import BagSource

LENGTHS = {60.0: 4, 120.0: 3, 300.0: 2, 600.0: 1, 1200.0: 1}
"""Seconds of a patrol, and how many of them there are."""
QUESTIONS = 24
"""Questions about each patrol."""
SHARES = (0.03, 0.0625, 0.125, 0.25, 0.5, 1.0)
ARCHIVE_SHARES = (0.03, 0.0625, 0.125, 0.25)
ARCHIVE_MIB = 1.0
EVICTING = tuple(policy for policy in policy_names() if policy != "full")
FULL_SHARE = 1.02
"""The full cache needs capacity for one frame beyond the last."""
SHORT_TEXT: tuple[Override, ...] = (("memory.max_answer_tokens", 8), ("memory.max_question_tokens", 32))
PLAIN: tuple[Override, ...] = (*SHORT_TEXT, ("gate.mode", "off"))
THINNED: tuple[Override, ...] = (*SHORT_TEXT, ("gate.mode", "flow"), ("saliency.mode", "prune"))
EXPERTS: dict[str, tuple[Override, ...]] = {
    "internal": (("retrieval.external", ""),),
    "external": (("retrieval.external", "tiny"), ("retrieval.internal_weight", 0.0)),
    "fused": (("retrieval.external", "tiny"),),
}
BYTES_CLAIM = 2.2
"""Sali-Cache's claim: times fewer bytes at equal accuracy."""
EQUAL = 0.03
"""Accuracies are called equal when they differ by at most so much and the interval holds no difference."""
SIMPLER = ("recent", "sliding_window", "uniform", "tar", "van", "aks")
RECORDING = Path("test/data/donkey_track")
RECORDING_TEXTS = ("what do you see now?", "which room are you in now?", "what did you see first?",
                   "what did you see last?", "was there a cone?", "was there a ball?")  # fmt: skip
RECORDING_TIMES = (15.0, 30.0, 45.0)
RECORDING_SHARES = (0.0625, 0.25)


@dataclass(frozen=True)
class Findings:
    """Results of all measurements."""

    grid: tuple[CellSummary, ...]
    """Every policy and budget on the patrols, without an archive; the full cache is the last."""
    archive: tuple[CellSummary, ...]
    experts: dict[str, CellSummary]
    thinned: CellSummary
    quantized: CellSummary
    recording: tuple[CellSummary, ...]
    """Scored by agreement with the full cache's answers; empty where the recording is missing."""

    @property
    def full(self) -> CellSummary:
        """The full cache on the patrols."""
        return next(summary for summary in self.grid if summary.cell.policy == "full")


def cell(model: str, policy: str, share: float, archive: float = 0.0, overrides: Sequence[Override] = PLAIN) -> Cell:
    """Make a cell of the grid."""
    return Cell(model, policy, budget_share=share, archive_mib=archive, overrides=tuple(sorted(overrides, key=str)))


def patrols(lengths: dict[float, int], questions: int) -> list[Episode]:
    """Patrols of every length, each with its own seed."""
    found: list[Episode] = []
    for seconds, count in lengths.items():
        found += patrol_episodes(count, seconds, questions, seed=4000 + len(found))
    return found


class Measurement:
    """Runs cells on episodes; results that exist are not measured again."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = ResultsFolder(folder)
        self._runner = Runner(frames_mib=256.0, device="cpu")
        self._console = console

    def measure(self, title: str, cells: Sequence[Cell], episodes: Sequence[Episode]) -> tuple[CellSummary, ...]:
        """Return one summary per cell."""
        jobs = make_jobs(cells, episodes)
        todo = [job for job in jobs if job.key not in self._folder.done]
        self._console.print(f"[bold]{title}[/]: {len(jobs)} runs, {len(jobs) - len(todo)} done before")
        for result in run_with_progress(
            self._console, todo, lambda observed: ((job, self._runner.run(job, observed)) for job in todo)
        ):
            self._folder.add(result)
        keys = [job.key for job in jobs]
        return tuple(summarise(self._folder.runs(keys), self._folder.lines(keys)))


def measure(model: str, folder: Path, lengths: dict[float, int], questions: int, console: Console) -> Findings:
    """Measure everything."""
    measurement, episodes = Measurement(folder, console), patrols(lengths, questions)
    grid = [cell(model, policy, share) for policy in EVICTING for share in SHARES] + [cell(model, "full", FULL_SHARE)]
    archive = [cell(model, policy, share, ARCHIVE_MIB) for policy in ("infinipot_v", "recent")
               for share in ARCHIVE_SHARES]  # fmt: skip
    experts = {name: cell(model, "recent", 0.0625, ARCHIVE_MIB, (*PLAIN, *more)) for name, more in EXPERTS.items()}
    thinned = cell(model, "full", FULL_SHARE, overrides=THINNED)
    mixed = cell(model, "infinipot_v", 1 / BYTES_CLAIM, overrides=(*PLAIN, ("quantized.mode", "on")))
    measured = measurement.measure("Policies and budgets", grid, episodes)
    with_archive = measurement.measure("With an archive", archive, episodes)
    by_expert = measurement.measure("Retrieval experts", list(experts.values()), episodes)
    (gated,) = measurement.measure("Frame gate and saliency", [thinned], episodes)
    (quantized,) = measurement.measure("Mixed precision", [mixed], episodes)
    recording = measure_recording(measurement, model) if RECORDING.is_dir() else ()
    return Findings(measured, with_archive, dict(zip(experts, by_expert, strict=True)), gated, quantized, recording)


def measure_recording(measurement: Measurement, model: str) -> tuple[CellSummary, ...]:
    """Every policy on a real recording, scored by agreement with the full cache: true answers are not known."""
    questions = tuple(
        EvaluationQuestion(f"{at:g} s {text}", at, text, Pattern(""), kind="now" if "now" in text else "before")
        for at in RECORDING_TIMES for text in RECORDING_TEXTS
    )  # fmt: skip
    episode = Episode(BagSource(RECORDING), questions)
    (full,) = measurement.measure("The full cache on a recording", [cell(model, "full", FULL_SHARE)], [episode])
    cells = [cell(model, policy, share) for policy in EVICTING for share in RECORDING_SHARES]
    others = measurement.measure("Policies on a recording", cells, [episode])
    answers = {line["question"]: line["answer"] for line in full.lines}
    return tuple(replace(other, lines=tuple(_agreeing(line, answers) for line in other.lines)) for other in others)


def _agreeing(line: Line, answers: dict[str, str]) -> Line:
    return {**line, "correct": line["answer"] == answers.get(line["question"])}


# -- the page ---------------------------------------------------------------------------------------------------------


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
        "Printed by `make findings`, which measures what has changed since its last run.",
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
    """Gain of the archive at equal arena budgets."""
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
    """Accuracy where the evidence was among the frames of the answer, and where it was not: evicted or misread."""
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
    """List where a simpler policy is ahead of the default one."""
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
    """Judge a claim of equal accuracy, or with ``better`` of a higher one."""
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
    full, thinned = findings.full, findings.thinned
    used = [
        (run["memory"]["used_bytes"], other["memory"]["used_bytes"])
        for run in full.runs for other in thinned.runs
        if run["episode"] == other["episode"] and run["status"] == other["status"] == "done"
    ]  # fmt: skip
    ratio = sum(plain for plain, _ in used) / max(1, sum(thin for _, thin in used))
    gated = paired_difference(thinned.lines, full.lines)
    mixed = paired_difference(findings.quantized.lines, full.lines)
    enough = _verdict(gated) if ratio >= BYTES_CLAIM else "Not confirmed"
    yield from [
        f"**Frame gate and saliency: {enough.lower()}.** They leave 1/{ratio:.2f} of the bytes of the full cache, at a "
        f"difference of {_points(gated)} points.",
        "",
        f"**Mixed precision: {_verdict(mixed).lower()}.** `infinipot_v` in 8 and 4 bits within 1/{BYTES_CLAIM:g} of "
        f"the bytes differs from the full cache by {_points(mixed)} points.",
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


# -- the command ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Run as a process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--results", type=Path, default=Path("build/findings"), help="folder of the measurements")
    parser.add_argument("--page", type=Path, default=Path("docs/findings.md"))
    parser.add_argument("--streams", type=float, default=1.0, help="multiplies the number of patrols (1)")
    parser.add_argument("--longest", type=float, default=max(LENGTHS), help="leave out longer patrols, seconds")
    options = parser.parse_args()
    lengths = {seconds: max(1, round(count * options.streams)) for seconds, count in LENGTHS.items()
               if seconds <= options.longest}  # fmt: skip
    console = Console()
    try:
        findings = measure(options.model, options.results, lengths, QUESTIONS, console)
        write_page(findings, lengths, options.page)
    except KvStreamError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    console.print(f"written: {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
