"""`kvstream benchmark retrieval`: what archive and fused retrieval bring back of patrol streams on held-out seeds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.retrieval_trials import Sizes, Tally
    from ros_kvstream.models.base import VideoLanguageModel
    from ros_kvstream.settings import RetrievalSettings

KEEP_ALL_FRAMES = 1000
"""Longest stream of which everything is kept for comparison."""
ARCHIVE_RATIOS = (1.0, 4.0, 16.0)
LOOKUP_FRAMES = 100_000
PENDING_PICTURES = 4
"""Small archives need their bytes for frames."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder")
    parser.add_argument("--external", default="tiny", help="external expert: tiny, imagenet, a hub id, a folder, or ''")
    parser.add_argument("--lengths", type=int, nargs="+", default=[96, 400], help="frames a stream")
    parser.add_argument("--streams", type=int, default=4, help="streams of each length")
    parser.add_argument("--questions", type=int, default=22, help="questions about each stream")
    parser.add_argument("--no-sizes", action="store_true", help="leave out the archives of 1, 4 and 16 times the arena")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; progress goes to the console. Returns the JSON object of DESIGN.md, and more beside it."""
    from benchmarks.retrieval_bias import measure_bias
    from benchmarks.retrieval_trials import Sizes
    from ros_kvstream.models.loading import load_model
    from ros_kvstream.settings import ModelSettings, RetrievalSettings

    model = load_model(ModelSettings(path=options.model, device="cpu"))
    retrieval = RetrievalSettings(external=options.external, pending_pictures=PENDING_PICTURES)
    lengths = {
        frames: measure_length(model, retrieval, frames, _streams(options, frames), options.questions, Sizes(), console)
        for frames in options.lengths
    }
    every = _merge(list(lengths.values()))
    report: dict[str, Any] = {
        "recall": {name: every[name].recall for name in ("internal", "external", "fused") if name in every},
        "accuracy": {
            name: {when: tally.accuracy(when) for when in ("now", "before")} for name, tally in every.items()
        },
        "by_length": {str(frames): _by_length(tallies) for frames, tallies in lengths.items()},
        "by_age": {str(age): _share(values) for age, values in sorted(every["fused"].by_age.items())},
        "bias": measure_bias(model, retrieval, seeds=options.streams),
        "lookup_ms": lookup_milliseconds(),
    }
    if not options.no_sizes:
        report["by_archive"] = {}
        for ratio in ARCHIVE_RATIOS:
            frames = max(options.lengths)
            tallies = measure_length(
                model, retrieval, frames, _streams(options, frames), options.questions,
                Sizes(archive_ratio=ratio), console, only=("fused",),
            )  # fmt: skip
            report["by_archive"][f"{ratio:g}"] = _by_length(tallies)["fused"]
    return report


def _streams(options: argparse.Namespace, frames: int) -> int:
    """Fewer of the very long streams."""
    return int(max(1, min(options.streams, options.streams * KEEP_ALL_FRAMES // frames)))


def measure_length(
    model: VideoLanguageModel,
    retrieval: RetrievalSettings,
    frames: int,
    count: int,
    questions: int,
    sizes: Sizes,
    console: Console,
    only: Sequence[str] = (),
) -> dict[str, Tally]:
    """Every way of retrieval on ``count`` held-out streams of one length."""
    from dataclasses import replace

    from benchmarks import retrieval_trials as trials

    ways = {name: way for name, way in trials.ways_of(retrieval).items() if not only or name in only}
    if not retrieval.external:
        ways.pop("external", None)
    tallies = {name: trials.Tally() for name in ways}
    for number, world in enumerate(trials.worlds(model, frames, count, trials.HELD_OUT), 1):
        asked = world.questions(questions)
        memory = trials.make_memory(model, world, sizes, retrieval)
        trials.watch(memory, world)
        for name, tally in trials.ask_all(memory, asked, ways).items():
            tallies[name].merge(tally)
        stats = memory.stats()
        share = (stats.allocated_bytes + stats.archive_budget_bytes) / trials.keep_all_bytes(model, world)
        memory.close()
        if not only and frames <= KEEP_ALL_FRAMES:
            whole = trials.make_memory(model, world, replace(sizes, archive_ratio=0.0), retrieval)
            trials.watch(whole, world)
            kept = trials.ask_all(whole, asked, {"keep_all": retrieval})["keep_all"]
            tallies.setdefault("keep_all", trials.Tally()).merge(kept)
            whole.close()
        console.print(
            f"{frames} frames, archive {sizes.archive_ratio:g} x arena ({share:.1%} of keeping all), "
            f"stream {number} of {count}: "
            + ", ".join(f"{name} before {tally.accuracy('before'):.2f}" for name, tally in tallies.items())
        )
    return tallies


def _merge(parts: Sequence[dict[str, Tally]]) -> dict[str, Tally]:
    from benchmarks.retrieval_trials import Tally

    merged: dict[str, Tally] = {}
    for part in parts:
        for name, tally in part.items():
            merged.setdefault(name, Tally()).merge(tally)
    return merged


def _by_length(tallies: dict[str, Tally]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "recall": tally.accuracy("recall"),
            "order": tally.accuracy("order"),
            "now": tally.accuracy("now"),
            "found": tally.recall,
            "asked": float(sum(len(values) for group, values in tally.right.items() if group in ("now", "before"))),
        }
        for name, tally in tallies.items()
    }


def _share(values: Sequence[bool]) -> dict[str, float]:
    return {"accuracy": sum(values) / max(1, len(values)), "n": float(len(values))}


def lookup_milliseconds(frames: int = LOOKUP_FRAMES, repeats: int = 5) -> dict[str, float]:
    """Median time to rank an archive of this many frames at the tiny model's shape: both experts, fused, one thread."""
    import time

    import numpy as np
    import torch

    from ros_kvstream.memory.archive.plan import ArchivePlan, ArchiveShape
    from ros_kvstream.memory.archive.row_codec import RowCodec
    from ros_kvstream.memory.archive.table import FrameTable
    from ros_kvstream.retrieval.external import external_scores
    from ros_kvstream.retrieval.fusion import Expert, fuse
    from ros_kvstream.retrieval.internal import internal_scores
    from ros_kvstream.settings import ArchiveSettings, RetrievalSettings

    class _Table:
        """As much of an archive as ranking reads."""

        def __init__(self) -> None:
            shape = ArchiveShape(4, 2, 32, index_layers=(1, 3), patches=4, embedding=64)
            self.plan = ArchivePlan(shape, ArchiveSettings(), frames, 1, RowCodec(4, 2, 32, "int4"))
            self.table = FrameTable(self.plan)

    archive: Any = _Table()
    random = np.random.default_rng(0)
    table = archive.table
    table.frames["live"] = table.frames["embedded"] = True
    table.frames["frame_id"] = np.arange(frames)
    table.frames["index_count"] = archive.plan.index_count
    table.index_keys.normal_(generator=torch.Generator().manual_seed(0))
    table.embeddings.normal_(generator=torch.Generator().manual_seed(1))
    queries = {layer: torch.randn(4, 32) for layer in (1, 3)}
    vector = random.normal(size=64).astype(np.float32)
    settings, allowed = RetrievalSettings(), np.ones(frames, dtype=bool)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    walls, busy = [], []
    for _ in range(repeats):
        wall, process = time.perf_counter(), time.process_time()
        experts = {
            "internal": Expert(1.0, internal_scores(archive, queries, settings).numpy()),
            "external": Expert(1.0, external_scores(archive, vector)),
        }
        fuse(experts, allowed, table.frames, k=settings.rrf_k, depth=settings.rank_depth)
        walls.append(1e3 * (time.perf_counter() - wall))
        busy.append(1e3 * (time.process_time() - process))
    torch.set_num_threads(threads)
    return {"frames": float(frames), "wall": float(np.median(walls)), "cpu": float(np.median(busy))}


def show(report: dict[str, Any], console: Console) -> None:
    """Print tables."""
    table = Table(title="Accuracy (now, before) and share of recall questions whose evidence was brought back")
    for column in ("way", "now", "before", "found"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, part in report["accuracy"].items():
        found = report["recall"].get(name)
        table.add_row(name, f"{part['now']:.2f}", f"{part['before']:.2f}", "" if found is None else f"{found:.2f}")
    console.print(table)
    table = Table(title="By length of the stream")
    for column in ("frames", "way", "recall", "order", "now", "found", "asked"):
        table.add_column(column, justify="left" if column == "way" else "right")
    rows = [(frames, name, part) for frames, parts in report["by_length"].items() for name, part in parts.items()]
    rows += [(f"archive x {ratio}", "fused", part) for ratio, part in report.get("by_archive", {}).items()]
    for label, name, part in rows:
        table.add_row(label, name, *(f"{part[key]:.2f}" for key in ("recall", "order", "now", "found")),
                      f"{part['asked']:.0f}")  # fmt: skip
    console.print(table)
    bias = ", ".join(f"{name} {value:.2f}" for name, value in report["bias"].items())
    console.print(f"Temporal bias, mean |rho|: {bias}")
    index_keys = report["lookup_ms"]
    times = "{cpu:.0f} ms of CPU, {wall:.0f} ms wall".format(**index_keys)
    console.print(f"Look-up over {index_keys['frames']:.0f} frames: {times}")
