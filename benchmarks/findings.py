"""Reprints docs/findings.md: every policy, budget and archive on patrol streams and a real recording.

``python -m benchmarks.findings`` (or ``make findings``) goes on where it was when it is interrupted; only
what has changed is measured again. The text around the figures follows from them, nothing is written by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ros_kvstream.commands.evaluate import run_with_progress
from ros_kvstream.errors import KvStreamError
from ros_kvstream.evaluation.episodes import Episode, patrol_episodes
from ros_kvstream.evaluation.executors import Runner
from ros_kvstream.evaluation.grid import Cell, Override, make_jobs
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.evaluation.results import ResultsFolder
from ros_kvstream.evaluation.scoring import Pattern
from ros_kvstream.evaluation.summary import CellSummary, Line, summarise
from ros_kvstream.memory.policies import policy_names
from ros_kvstream.recordings.bags import BagSource

if TYPE_CHECKING:
    from rich.console import Console

LENGTHS = {60.0: 4, 120.0: 3, 300.0: 2, 600.0: 1, 1200.0: 1}
"""Seconds of a patrol, and how many of them there are."""
QUESTIONS = 24
"""Questions about each patrol."""
SHARES = (0.03, 0.0625, 0.125, 0.25, 0.5, 1.0)
ARCHIVE_SHARES = (0.03, 0.0625, 0.125, 0.25)
ARCHIVE_MIB = 1.0
EVICTING = tuple(policy for policy in policy_names() if policy != "full")
FULL_SHARE = 1.02
"""The full cache needs a frame's room beyond the last one."""
SHORT_TEXT: tuple[Override, ...] = (("memory.max_answer_tokens", 8), ("memory.max_question_tokens", 32))
PLAIN: tuple[Override, ...] = (*SHORT_TEXT, ("gate.mode", "off"))
THINNED: tuple[Override, ...] = (*SHORT_TEXT, ("gate.mode", "flow"), ("saliency.mode", "prune"))
EXPERTS: dict[str, tuple[Override, ...]] = {
    "internal": (("retrieval.external", ""),),
    "external": (("retrieval.external", "tiny"), ("retrieval.internal_weight", 0.0)),
    "fused": (("retrieval.external", "tiny"),),
}
BYTES_CLAIM = 2.2
"""Sali-Cache: so many times fewer bytes at equal accuracy."""
RECORDING = Path("test/data/donkey_track")
RECORDING_TEXTS = ("what do you see now?", "which room are you in now?", "what did you see first?",
                   "what did you see last?", "was there a cone?", "was there a ball?")  # fmt: skip
RECORDING_TIMES = (15.0, 30.0, 45.0)
RECORDING_SHARES = (0.0625, 0.25)


@dataclass(frozen=True)
class Findings:
    """All that was measured, by what it is for."""

    grid: tuple[CellSummary, ...]
    """Every policy and budget on the patrols, without an archive; the full cache last."""
    archive: tuple[CellSummary, ...]
    experts: dict[str, CellSummary]
    thinned: CellSummary
    quantized: CellSummary
    recording: tuple[CellSummary, ...]
    """Judged by the full cache's own answers; empty where the recording is not there."""

    @property
    def full(self) -> CellSummary:
        """The full cache on the patrols."""
        return next(summary for summary in self.grid if summary.cell.policy == "full")


def cell(model: str, policy: str, share: float, archive: float = 0.0, overrides: Sequence[Override] = PLAIN) -> Cell:
    """A cell of the findings."""
    return Cell(model, policy, budget_share=share, archive_mib=archive, overrides=tuple(sorted(overrides, key=str)))


def patrols(lengths: dict[float, int], questions: int) -> list[Episode]:
    """Patrols of every length; each has a seed of its own."""
    found: list[Episode] = []
    for seconds, count in lengths.items():
        found += patrol_episodes(count, seconds, questions, seed=4000 + len(found))
    return found


class Measurement:
    """Runs cells on episodes, unless the results are there already."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = ResultsFolder(folder)
        self._runner = Runner(frames_mib=256.0, device="cpu")
        self._console = console

    def measure(self, title: str, cells: Sequence[Cell], episodes: Sequence[Episode]) -> tuple[CellSummary, ...]:
        """One summary a cell."""
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
    ladder = cell(model, "infinipot_v", 1 / BYTES_CLAIM, overrides=(*PLAIN, ("quantized.mode", "on")))
    measured = measurement.measure("Policies and budgets", grid, episodes)
    with_archive = measurement.measure("With an archive", archive, episodes)
    by_expert = measurement.measure("Retrieval experts", list(experts.values()), episodes)
    (gated,) = measurement.measure("Frame gate and saliency", [thinned], episodes)
    (packed,) = measurement.measure("Precision ladder", [ladder], episodes)
    recording = measure_recording(measurement, model) if RECORDING.is_dir() else ()
    return Findings(measured, with_archive, dict(zip(experts, by_expert, strict=True)), gated, packed, recording)


def measure_recording(measurement: Measurement, model: str) -> tuple[CellSummary, ...]:
    """Every policy on the real recording; right is what the full cache answers, since nobody knows better."""
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


def main() -> int:
    """Run as a process."""
    from rich.console import Console

    from benchmarks.findings_page import write_page

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--results", type=Path, default=Path("build/findings"), help="folder of the measurements")
    parser.add_argument("--page", type=Path, default=Path("docs/findings.md"))
    parser.add_argument("--streams", type=float, default=1.0, help="so many times as many patrols (1)")
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
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    console.print(f"written: {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
