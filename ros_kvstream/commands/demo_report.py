"""The demo's report: build/demo/report.json in the form of the documentation, and how it looks in a terminal."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ros_kvstream.evaluation.scoring import words

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.commands.interview import Reply
    from ros_kvstream.msg import KvStats

MIB = 1 << 20
LATENCIES = {
    "queue_ms": "waiting", "flush_ms": "last frames", "retrieval_ms": "retrieval", "prefill_ms": "question",
    "first_token_ms": "first token", "decode_ms": "rest of the answer", "total_ms": "all",
}  # fmt: skip
PACKAGES = ("ros_kvstream", "torch", "transformers", "rclpy", "numpy")
SHOWN_EVIDENCE = 3
NOT_RECEIVED = "not_received"
"""Cause of drop of frames that were published and of which the node cannot know."""


def seconds_of(stamp: Any) -> float:
    """Seconds of a builtin_interfaces/Time."""
    return float(stamp.sec + stamp.nanosec / 1e9)


def is_correct(reply: Reply, stamps: Sequence[float]) -> bool | None:
    """Whether the answer is right; None where nobody knows, or the node saw a frame more than the plan allows for.

    :param stamps: stamps of all frames, seconds; empty where nobody knows.
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
    if not response.success:
        entry["message"] = response.message
    return entry


def frames_report(published: int, stats: KvStats) -> dict[str, Any]:
    """What became of every frame; those that the node never heard of are dropped as ``not_received``."""
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
    """Median and maximum of every part of the latency over the answered questions, milliseconds."""
    answered = [reply.response.latency for reply in replies if reply.response.success]
    return {
        name: {
            "median": statistics.median(getattr(latency, name) for latency in answered),
            "max": max(getattr(latency, name) for latency in answered),
        }
        for name in LATENCIES
        if answered
    }


def versions(model: str, trained: bool) -> dict[str, str]:
    """What the figures were made with."""
    found = {"python": platform.python_version(), "model": model if trained else f"{model} (untrained)"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def show_reply(console: Console, reply: Reply, entry: dict[str, Any], start: float, window: float) -> None:
    """Print a question, its answer and its evidence as they come.

    :param start: stamp of the recording's first frame; :param window: seconds that a sliding window holds.
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
        note = f"[dim]not counted: a newer frame came in between[/]  {note}"
    console.print(f"{indent}{mark} {escape(_shortened(response.answer))}[/]  {note}")
    if entry["left_window"]:
        ago = entry["asked_at"] - max(reply.planned.evidence)
        console.print(f"{indent}[magenta]last seen {ago:.1f} s before; a sliding window reaches back {window:.1f} s[/]")
    shown = response.evidence[:SHOWN_EVIDENCE]
    for frame in shown:
        if frame.experts:
            console.print(f"{indent}[dim]{_ranked(frame, start)}[/]")
    looked = [f"{_when(frame, start)} {frame.score:.0%}" for frame in shown if not frame.experts]
    if looked:
        console.print(f"{indent}[dim]looked at {', '.join(looked)}[/]")


def _shortened(text: str, limit: int = 60) -> str:
    """A text in one line of at most so many characters."""
    text = " ".join(text.split()) or "(nothing)"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _when(frame: Any, start: float) -> str:
    """Time and camera of a frame of evidence."""
    return f"{seconds_of(frame.stamp) - start:.1f} s {frame.camera}"


def _ranked(frame: Any, start: float) -> str:
    """A frame that was brought back: when, which camera, fused score, and each expert's rank and score."""
    experts = zip(frame.experts, frame.ranks, frame.scores, strict=True)
    ranks = ", ".join(f"{expert} #{rank} ({score:.2f})" for expert, rank, score in experts)
    return f"{_when(frame, start)} {frame.score:.4f}: {ranks}"


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
    table.add_row("Memory", f"{used:.3f} of {budget:.3f} MiB used, at most {peak:.3f} with a question{archive}; "
                  f"the node's whole process {process:.0f} MiB")  # fmt: skip
    lost = {cause: count for cause, count in frames["dropped"].items() if count}
    causes = f" ({', '.join(f'{cause} {count}' for cause, count in lost.items())})" if lost else ""
    table.add_row("Frames", f"{frames['published']} published = {frames['seen']} seen + {sum(lost.values())} dropped"
                  f"{causes}; seen = {frames['kept']} kept + {frames['gated']} gated")  # fmt: skip
    table.add_row("Latency", _latency_line(report["latency"]))
    table.add_row("Model", report["versions"]["model"])
    console.print(Padding(table, (1, 0)))


def _answers_line(questions: Sequence[dict[str, Any]]) -> str:
    judged = [entry for entry in questions if entry["correct"] is not None]
    refused = sum("message" in entry for entry in questions)
    text = f"{sum(entry['correct'] for entry in judged)} of {len(judged)} right"
    if not judged:
        return f"{len(questions) - refused} of {len(questions)} questions answered; nobody knows the right answers"
    left = [entry for entry in judged if entry["left_window"]]
    if left:
        text += (f"\n{len(left)} were about what had long left a sliding window of the same bytes: "
                 f"{sum(entry['correct'] for entry in left)} of those right")  # fmt: skip
    return text


def _latency_line(latency: dict[str, dict[str, float]]) -> str:
    if not latency:
        return "no question was answered"
    parts = ", ".join(f"{text} {latency[name]['median']:.1f}" for name, text in LATENCIES.items() if name != "total_ms")
    total = latency["total_ms"]
    return f"{total['median']:.1f} ms a question (median; longest {total['max']:.1f} ms): {parts}"
