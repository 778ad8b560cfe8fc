# SPDX-License-Identifier: Apache-2.0
"""Report of the demo: build/demo/report.json, and the same in the terminal."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ros_kvstream.evaluation.report import package_version
from ros_kvstream.evaluation.scoring import words
from ros_kvstream.patrol.question_plan import PlannedQuestion

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.msg import KvStats
    from ros_kvstream.srv import Query

MIB = 1 << 20
LATENCIES = {
    "queue_ms": "waiting", "flush_ms": "last frames", "retrieval_ms": "retrieval", "prefill_ms": "question",
    "first_token_ms": "first token", "decode_ms": "rest of the answer", "total_ms": "total",
}  # fmt: skip
PACKAGES = ("ros_kvstream", "torch", "transformers", "rclpy", "numpy")
SHOWN_EVIDENCE = 3
NOT_RECEIVED = "not_received"
"""Drop cause of frames that were published and never reached the node."""


@dataclass(frozen=True)
class Reply:
    """A planned question and the node's response."""

    planned: PlannedQuestion
    response: Query.Response


def seconds_of(stamp: Any) -> float:
    """Seconds of a builtin_interfaces/Time."""
    return float(stamp.sec + stamp.nanosec / 1e9)


def is_correct(reply: Reply, stamps: Sequence[float]) -> bool | None:
    """Whether the answer is correct; None where that is unknown, or the node had seen a frame after the planned ones.

    :param stamps: stamps of all frames, seconds; empty where the answers are unknown.
    """
    if reply.planned.expected is None:
        return None
    if not reply.response.success:
        return False
    if seconds_of(reply.response.asked_at) > stamps[reply.planned.last] + 1e-3:
        return None
    return words(reply.planned.expected) == words(reply.response.answer)


def question_report(reply: Reply, correct: bool | None, left_window: bool | None) -> dict[str, Any]:
    """One question in the report."""
    response = reply.response
    entry: dict[str, Any] = {
        "question": reply.planned.text,
        "expected": reply.planned.expected,
        "answer": response.answer,
        "correct": correct,
        "asked_at": seconds_of(response.asked_at),
        "kind": reply.planned.kind or None,
        "left_window": left_window,
        "evidence": [
            {"stamp": seconds_of(frame.stamp), "camera": frame.camera, "score": frame.score}
            for frame in response.evidence
        ],
    }
    if response.has_goal:
        entry["goal"] = {"frame_id": response.goal.header.frame_id, "position": goal_position(response)}
    if not response.success:
        entry["message"] = response.message
    return entry


def goal_position(response: Query.Response) -> list[float]:
    """x, y, z of the goal of an answer, metres."""
    position = response.goal.pose.position
    return [float(position.x), float(position.y), float(position.z)]


def memory_report(stats: KvStats, process_bytes: int) -> dict[str, int]:
    """Bytes of memory, archive and the node's process."""
    names = ("budget_bytes", "used_bytes", "peak_bytes", "archive_bytes", "archive_budget_bytes")
    return {**{name: int(getattr(stats, name)) for name in names}, "process_bytes": process_bytes}


def frames_report(published: int, stats: KvStats) -> dict[str, Any]:
    """Number of frames by outcome; those that never reached the node are dropped as ``not_received``."""
    dropped = dict(zip(stats.drop_causes, (int(count) for count in stats.drop_counts), strict=True))
    dropped[NOT_RECEIVED] = max(0, published - stats.frames_published)
    return {
        "published": published,
        "seen": stats.frames_seen,
        "kept": stats.frames_kept,
        "gated": stats.frames_gated,
        "dropped": dropped,
    }


def latency_report(replies: Sequence[Reply]) -> dict[str, dict[str, float]]:
    """Median and maximum of each part of the latency over the answered questions, milliseconds."""
    answered = [reply.response.latency for reply in replies if reply.response.success]
    times = {name: [getattr(latency, name) for latency in answered] for name in LATENCIES if answered}
    return {name: {"median": statistics.median(values), "max": max(values)} for name, values in times.items()}


def versions(model: str, trained: bool) -> dict[str, str]:
    """Versions of Python, the model and the main packages."""
    found = {"python": platform.python_version(), "model": model if trained else f"{model} (untrained)"}
    return found | {package: package_version(package) for package in PACKAGES}


def show_reply(console: Console, reply: Reply, entry: dict[str, Any], start: float, window: float) -> None:
    """Print a question with its answer and evidence.

    :param start: stamp of the recording's first frame; :param window: length of the sliding window, seconds.
    """
    from rich.markup import escape

    response, indent = reply.response, " " * 11
    console.print(f"\n[dim]{seconds_of(response.asked_at) - start:7.1f} s[/]  [bold]{escape(entry['question'])}[/]")
    if not response.success:
        console.print(f"{indent}[red]no answer:[/] {escape(response.message)}")
        return
    mark = {True: "[green]✓", False: "[red]✗", None: "[cyan]→"}[entry["correct"]]
    note = f"[dim]{response.latency.total_ms:.0f} ms[/]"
    if entry["correct"] is False:
        note = f"expected: {escape(entry['expected'])}  {note}"
    elif entry["correct"] is None and entry["expected"] is not None:
        note = f"[dim]not scored: the node had already seen a newer frame[/]  {note}"
    answer = " ".join(response.answer.split()) or "(empty)"
    answer = answer if len(answer) <= 60 else f"{answer[:59]}…"
    console.print(f"{indent}{mark} {escape(answer)}[/]  {note}")
    if entry["left_window"]:
        age = entry["asked_at"] - max(reply.planned.evidence)
        console.print(f"{indent}[magenta]last seen {age:.1f} s earlier; a sliding window holds {window:.1f} s[/]")
    if response.has_goal:
        x, y, _ = goal_position(response)
        console.print(f"{indent}[cyan]goal: x {x:.2f} m, y {y:.2f} m in {escape(response.goal.header.frame_id)}[/]")
    for frame in response.evidence[:SHOWN_EVIDENCE]:
        when = f"{seconds_of(frame.stamp) - start:.1f} s {frame.camera}"
        experts = zip(frame.experts, frame.ranks, frame.scores, strict=True)
        ranks = ", ".join(f"{expert} #{rank} ({score:.2f})" for expert, rank, score in experts)
        figures = f"{frame.score:.4f}: {ranks}" if ranks else f"{frame.score:.0%} of the attention"
        console.print(f"{indent}[dim]{when} {figures}[/]")


def show(report: dict[str, Any], console: Console) -> None:
    """Print the summary."""
    from rich.padding import Padding
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan")
    table.add_column()
    table.add_row("Answers", _answers_line(report["questions"]))
    memory, frames = report["memory"], report["frames"]
    budget, used, peak, process = (memory[f"{name}_bytes"] / MIB for name in ("budget", "used", "peak", "process"))
    used_by_archive, archive_budget = (memory.get(f"archive_{name}bytes", 0) / MIB for name in ("", "budget_"))
    archive = f"; archive {used_by_archive:.3f} of {archive_budget:.3f} MiB" if archive_budget else ""
    table.add_row("Memory", f"{used:.3f} of {budget:.3f} MiB used, peak {peak:.3f} MiB with a question{archive}; "
                  f"the node's process {process:.0f} MiB")  # fmt: skip
    lost = {cause: count for cause, count in frames["dropped"].items() if count}
    causes = f" ({', '.join(f'{cause} {count}' for cause, count in lost.items())})" if lost else ""
    table.add_row("Frames", f"{frames['published']} published = {frames['seen']} seen + {sum(lost.values())} dropped"
                  f"{causes}; seen = {frames['kept']} kept + {frames['gated']} gated")  # fmt: skip
    table.add_row("Latency", _latency_line(report["latency"]))
    table.add_row("Model", report["versions"]["model"])
    console.print(Padding(table, (1, 0)))


def _answers_line(questions: Sequence[dict[str, Any]]) -> str:
    scored = [entry for entry in questions if entry["correct"] is not None]
    if not scored:
        refused = sum("message" in entry for entry in questions)
        return f"{len(questions) - refused} of {len(questions)} questions answered; the correct answers are unknown"
    text = f"{sum(entry['correct'] for entry in scored)} of {len(scored)} correct"
    left = [entry for entry in scored if entry["left_window"]]
    if left:
        text += (f"\n{len(left)} were about frames that had left a sliding window of the same bytes: "
                 f"{sum(entry['correct'] for entry in left)} of these correct")  # fmt: skip
    return text


def _latency_line(latency: dict[str, dict[str, float]]) -> str:
    if not latency:
        return "no question was answered"
    parts = ", ".join(f"{text} {latency[name]['median']:.1f}" for name, text in LATENCIES.items() if name != "total_ms")
    total = latency["total_ms"]
    return f"{total['median']:.1f} ms per question (median; maximum {total['max']:.1f} ms): {parts}"
