# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark retrieval`: recall and accuracy of archive retrieval on patrol streams, by retrieval expert.

Beside it: temporal bias of the experts on a scene that does not change, and the time of a look-up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import figures_table
from benchmarks.accuracy import (
    WHEN,
    Stream,
    accuracy,
    ask_all,
    budget_for_slots,
    by_when,
    intervals,
    load,
    mixed_streams,
    observe_all,
)
from ros_kvstream.evaluation.summary import Line, age
from ros_kvstream.memory.archive.plan import ArchivePlan, ArchiveShape
from ros_kvstream.memory.archive.row_codec import RowCodec
from ros_kvstream.memory.archive.table import FrameTable
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.patrol.patrol import PatrolFrame, PatrolSettings, PatrolWorld
from ros_kvstream.patrol.questions import Question
from ros_kvstream.retrieval.context import search_queries
from ros_kvstream.retrieval.external import external_scores
from ros_kvstream.retrieval.fusion import Expert, fuse
from ros_kvstream.retrieval.internal import internal_scores
from ros_kvstream.retrieval.ranking import expert_scores
from ros_kvstream.settings import ArchiveSettings, GateSettings, MemorySettings, RetrievalSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

HELD_OUT = 20260
RECALL = ("colour", "where", "how_many", "room")
"""Kinds of questions about one thing that was seen."""
ORDER = ("first", "last", "before", "after")
KEEP_ALL_FRAMES = 1000
"""Longest stream that is also kept whole, for comparison."""
ARCHIVE_RATIO, ARCHIVE_RATIOS = 2.0, (1.0, 2.0, 8.0)
"""Archive bytes as a multiple of the arena's."""
LOOKUP_FRAMES = 100_000
PENDING_PICTURES = 4
"""Small archives need their bytes for frames."""
QUESTION_TOKENS, ANSWER_TOKENS = 16, 5
ARENA_FRAMES, BLOCK_FRAMES = 20, 8
NEEDLES = (0.1, 0.5, 0.9)
"""Place of the frame with the object in a static scene, as a share of the stream."""


def ways_of(base: RetrievalSettings) -> dict[str, RetrievalSettings]:
    """Settings without retrieval, with each expert alone, and with both fused."""
    ways = {"none": replace(base, top_k=0), "internal": replace(base, external_weight=0.0)}
    if base.external:
        ways["external"] = replace(base, internal_weight=0.0)
    return {**ways, "fused": base}


def make_memory(
    model: VideoLanguageModel, stream: Stream, retrieval: RetrievalSettings, archive_ratio: float, **archive: Any
) -> VideoMemory:
    """A memory with an archive; ``archive_ratio`` 0 keeps every frame in the arena instead."""
    rows, columns = model.grid(*stream.frames[0].picture.shape[:2])
    tokens, text = rows * columns, QUESTION_TOKENS + ANSWER_TOKENS
    arena_frames = len(stream.frames) + BLOCK_FRAMES
    if archive_ratio:
        arena_frames, text = ARENA_FRAMES, text + retrieval.slots(tokens, ArchiveSettings(budget_mib=1.0, **archive))
    budget = max(budget_for_slots(model, arena_frames * tokens, text), 0.01)
    memory = MemorySettings(
        budget_mib=budget, policy="infinipot_v" if archive_ratio else "full", block_frames=BLOCK_FRAMES,
        max_question_tokens=QUESTION_TOKENS, max_answer_tokens=ANSWER_TOKENS,
    )  # fmt: skip
    kept = {"budget_mib": budget * archive_ratio, "precision": "int8", "frame_patches": tokens, **archive}
    return VideoMemory(
        StreamSettings(
            memory=memory, archive=ArchiveSettings(**kept), retrieval=retrieval, gate=GateSettings(mode="off")
        ),
        model,
    )


def ask_each_way(memory: VideoMemory, stream: Stream, ways: Mapping[str, RetrievalSettings]) -> dict[str, list[Line]]:
    """Ask the same questions under several retrieval settings; every question leaves the memory as it was."""
    lines = {}
    for name, way in ways.items():
        if memory.archive_retrieval is not None:
            memory.archive_retrieval.settings = way
        lines[name] = ask_all(memory, stream)
    return lines


def retrieved(line: Line) -> bool | None:
    """Whether the evidence of a recall question is among the frames that the experts ranked; None for others."""
    if line["task"] not in RECALL or not line["true_evidence"]:
        return None
    stamps = {round(frame["stamp"], 6) for frame in line["evidence"] if frame["ranks"]}
    return any(round(stamp, 6) in stamps for stamp in line["true_evidence"])


def recall(lines: Sequence[Line]) -> float:
    """Share of recall questions whose evidence was retrieved; 0 without any."""
    found = [value for line in lines if (value := retrieved(line)) is not None]
    return float(np.mean(found)) if found else 0.0


def by_age(lines: Sequence[Line]) -> dict[str, dict[str, float]]:
    """Accuracy of recall questions by age of the evidence: upper edges in seconds, powers of two."""
    groups: dict[int, list[Line]] = {}
    for line in lines:
        if line["task"] in RECALL and (seconds := age(line)) is not None:
            groups.setdefault(1 << int(seconds).bit_length(), []).append(line)
    return {str(edge): {"accuracy": accuracy(group), "n": float(len(group))} for edge, group in sorted(groups.items())}


def measure_length(
    model: VideoLanguageModel, retrieval: RetrievalSettings, frames: int, count: int, questions: int, console: Console,
    archive_ratio: float = ARCHIVE_RATIO, only: Sequence[str] = (),
) -> dict[str, list[Line]]:  # fmt: skip
    """Answers under every retrieval setting, or ``only`` some, on ``count`` held-out streams of one length.

    "kv" is the fused setting with an archive of keys and values of the same ratio; all others have one of embeddings.
    """
    ways = {name: way for name, way in ways_of(retrieval).items() if not only or name in only}
    lines: dict[str, list[Line]] = {name: [] for name in ways}
    for number, stream in enumerate(mixed_streams(model, frames, count, questions, HELD_OUT), 1):
        memory = make_memory(model, stream, retrieval, archive_ratio)
        observe_all(memory, stream)
        answers = ask_each_way(memory, stream, ways)
        stats = memory.stats()
        memory.close()
        if not only:
            keys_values = make_memory(model, stream, retrieval, archive_ratio, content="kv")
            observe_all(keys_values, stream)
            answers["kv"] = ask_all(keys_values, stream)
            keys_values.close()
        if not only and frames <= KEEP_ALL_FRAMES:
            whole = make_memory(model, stream, retrieval, 0.0)
            observe_all(whole, stream)
            answers["keep_all"] = ask_all(whole, stream)
            whole.close()
        for name, part in answers.items():
            lines.setdefault(name, []).extend(part)
        rows, columns = model.grid(*stream.frames[0].picture.shape[:2])
        everything = frames * rows * columns * model.shape.token_bytes
        console.print(
            f"{frames} frames, archive {archive_ratio:g} x arena "
            f"({(stats.allocated_bytes + stats.archive_budget_bytes) / everything:.1%} of keeping all), "
            f"stream {number} of {count}: "
            + ", ".join(f"{name} before {accuracy(part, 'before'):.2f}" for name, part in lines.items())
        )
    return lines


# -- temporal bias ----------------------------------------------------------------------------------------------------


def spearman(scores: NDArray[np.float64]) -> float:
    """Rank correlation of scores with their index; ties share their mean rank; 0 when all are equal."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(len(scores), dtype=float)
    for value in np.unique(scores):
        tied = scores == value
        ranks[tied] = ranks[tied].mean()
    if ranks.std() == 0:
        return 0.0
    return float(np.corrcoef(ranks, np.arange(len(scores)))[0, 1])


def static_scene(seed: int, frames: int, needle: int) -> Stream:
    """One still scene with sensor noise, an object in frame ``needle`` only, and the question about it."""
    world = PatrolWorld(PatrolSettings(seed=seed, frames=96, objects=1, noise=0.0))
    sighting = world.sightings[0]
    empty = next(index for index in range(96) if world.sighting(index) is None)
    random = np.random.default_rng([seed, needle])
    shown = []
    for index in range(frames):
        scene = world.picture(sighting.first if index == needle else empty).astype(np.float32)
        noisy = np.clip(scene + random.normal(0, 6.0, scene.shape), 0, 255).astype(np.uint8)
        shown.append(PatrolFrame(index, index / 2, noisy))
    shown.append(replace(shown[0], index=frames, stamp=frames / 2))
    question = Question(f"what colour was the {sighting.shape}?", sighting.colour, "colour", "before", (needle / 2,))
    return Stream(f"static scene {seed}", shown, [question])


def measure_bias(
    model: VideoLanguageModel, retrieval: RetrievalSettings, seeds: int, frames: int = 96
) -> dict[str, float]:
    """Mean |Spearman's rho| between score and time per expert; an expert without temporal bias is near 0.

    Over ``seeds`` scenes and all places of the needle, whose frame is left out; "mean_key" is a plain mean-key expert.
    """
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        for share in NEEDLES:
            for name, rho in _scene_bias(model, retrieval, 7_000_000 + seed, frames, int(share * frames)).items():
                found.setdefault(name, []).append(rho)
    return {name: float(np.mean(np.abs(values))) for name, values in found.items()}


def _scene_bias(
    model: VideoLanguageModel, retrieval: RetrievalSettings, seed: int, frames: int, needle: int
) -> dict[str, float]:
    stream = static_scene(seed, frames, needle)
    question = stream.questions[0].text
    memory = make_memory(model, stream, retrieval, 64.0, precision="fp16", keep_ratio=1.0)
    observe_all(memory, stream)
    memory.flush()
    part = memory.archive_retrieval
    assert part is not None and part.archive is not None
    part.embed_pending()
    table = part.archive.table
    others = table.frames["live"] & (table.frames["frame_id"] != needle) & (table.frames["frame_id"] < frames)
    by_time = np.flatnonzero(others)[np.argsort(table.frames["stamp"][others], kind="stable")]
    ids, start = model.suffix_ids(question), memory.ingest.text_start
    queries = search_queries(memory.ingest, part, ids, start)
    experts = expert_scores(part.archive, retrieval, part.encoder, question, queries)
    rho = {name: spearman(expert.scores[by_time].astype(np.float64)) for name, expert in experts.items()}
    fused = {frame.slot: frame.fused for frame in fuse(experts, others, table.frames, k=60, depth=1 << 20)}
    rho["fused"] = spearman(np.array([fused[int(slot)] for slot in by_time]))
    plain = replace(retrieval, query="mean", patch_pooling="mean", head_pooling="mean")
    part.settings = plain
    mean_key = internal_scores(part.archive, search_queries(memory.ingest, part, ids, start), plain, plain=True).numpy()
    rho["mean_key"] = spearman(mean_key[by_time].astype(np.float64))
    memory.close()
    return rho


# -- the time of a look-up --------------------------------------------------------------------------------------------


class LookupArchive:
    """The part of an archive that ranking reads, with random frames at the tiny model's shape."""

    def __init__(self, frames: int) -> None:
        shape = ArchiveShape(1, 128, 2, 32, index_layers=(1, 3), patches=4, embedding=64)
        self.plan = ArchivePlan(shape, ArchiveSettings(), frames, 1, RowCodec(1, 128, "int4"))
        self.table = FrameTable(self.plan)
        self.table.frames["live"] = self.table.frames["embedded"] = True
        self.table.frames["frame_id"] = np.arange(frames)
        self.table.frames["index_count"] = self.plan.index_count
        self.table.index_keys.normal_(generator=torch.Generator().manual_seed(0))
        self.table.embeddings.normal_(generator=torch.Generator().manual_seed(1))


def lookup_milliseconds(frames: int = LOOKUP_FRAMES, repeats: int = 5) -> dict[str, float]:
    """Median time to rank an archive of so many frames: both experts, fused, one thread."""
    archive: Any = LookupArchive(frames)
    queries = {layer: torch.randn(4, 32) for layer in (1, 3)}
    vector = np.random.default_rng(0).normal(size=64).astype(np.float32)
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
        fuse(experts, allowed, archive.table.frames, k=settings.rrf_k, depth=settings.rank_depth)
        walls.append(1e3 * (time.perf_counter() - wall))
        busy.append(1e3 * (time.process_time() - process))
    torch.set_num_threads(threads)
    return {"frames": float(frames), "wall": float(np.median(walls)), "cpu": float(np.median(busy))}


# -- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder")
    parser.add_argument("--external", default="tiny", help="external expert: tiny, imagenet, a hub id, a folder, or ''")
    parser.add_argument("--lengths", type=int, nargs="+", default=[96, 400], help="frames per stream")
    parser.add_argument("--streams", type=int, default=4, help="streams of each length")
    parser.add_argument("--questions", type=int, default=22, help="questions about each stream")
    ratios = ", ".join(f"{ratio:g}" for ratio in ARCHIVE_RATIOS)
    parser.add_argument("--no-sizes", action="store_true", help=f"leave out the archives of {ratios} times the arena")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; progress goes to the console. Returns the object of ``--json``."""
    model = load(options.model)
    retrieval = RetrievalSettings(external=options.external, pending_pictures=PENDING_PICTURES)
    lengths = {
        frames: measure_length(model, retrieval, frames, options.streams, options.questions, console)
        for frames in options.lengths
    }
    every: dict[str, list[Line]] = {}
    for part in lengths.values():
        for name, lines in part.items():
            every.setdefault(name, []).extend(lines)
    report: dict[str, Any] = {
        "recall": {name: recall(every[name]) for name in ("internal", "external", "fused") if name in every},
        "accuracy": {name: by_when(lines) for name, lines in every.items()},
        "intervals": {name: intervals(lines) for name, lines in every.items()},
        "by_length": {str(frames): {name: _figures(lines) for name, lines in part.items()}
                      for frames, part in lengths.items()},
        "by_age": by_age(every["fused"]),
        "bias": measure_bias(model, retrieval, seeds=options.streams),
        "lookup_ms": lookup_milliseconds(),
    }  # fmt: skip
    if not options.no_sizes:
        frames = max(options.lengths)
        report["by_archive"] = {}
        for ratio in ARCHIVE_RATIOS:
            part = measure_length(
                model, retrieval, frames, options.streams, options.questions, console, ratio, only=("fused",)
            )
            report["by_archive"][f"{ratio:g}"] = _figures(part["fused"])
    return report


def _figures(lines: Sequence[Line]) -> dict[str, Any]:
    groups = {"recall": [line for line in lines if line["task"] in RECALL],
              "order": [line for line in lines if line["task"] in ORDER],
              "now": [line for line in lines if line["kind"] == "now"]}  # fmt: skip
    return {
        **{name: accuracy(group) for name, group in groups.items()},
        "intervals": {name: wilson(sum(bool(line["correct"]) for line in group), len(group))
                      for name, group in groups.items()},
        "found": recall(lines), "asked": float(len(lines)),
        "first_token_ms": float(np.median([line["first_token_ms"] for line in lines])),
    }  # fmt: skip


def wilson(right: int, asked: int) -> list[float]:
    """95 % interval of a share by Wilson's score, which is not empty where all answers are right."""
    z = 1.96
    centre, half = right + z * z / 2, z * (right * (asked - right) / max(asked, 1) + z * z / 4) ** 0.5
    return [(centre - half) / (asked + z * z), (centre + half) / (asked + z * z)]


def show(report: dict[str, Any], console: Console) -> None:
    """Print tables."""
    found = {name: f"{value:.2f}" for name, value in report["recall"].items()}
    console.print(figures_table(
        "Accuracy (now, before) and share of recall questions whose evidence was retrieved",
        ("way", *WHEN, "found"),
        ((name, *(f"{part[when]:.2f}" for when in WHEN), found.get(name, ""))
         for name, part in report["accuracy"].items()),
    ))  # fmt: skip
    rows = [(f"{frames} frames, {name}", part) for frames, parts in report["by_length"].items()
            for name, part in parts.items()]  # fmt: skip
    rows += [(f"archive x {ratio}, fused", part) for ratio, part in report.get("by_archive", {}).items()]
    columns = ("recall", "order", "now")
    console.print(figures_table(
        "By length of the stream, with 95 % intervals",
        ("stream and way", *columns, "found", "first token, ms", "asked"),
        ((label, *(f"{part[key]:.2f} ({part['intervals'][key][0]:.2f} - {part['intervals'][key][1]:.2f})"
                   for key in columns), f"{part['found']:.2f}", f"{part['first_token_ms']:.0f}", f"{part['asked']:.0f}")
         for label, part in rows),
    ))  # fmt: skip
    bias = ", ".join(f"{name} {value:.2f}" for name, value in report["bias"].items())
    console.print(f"Temporal bias, mean |rho|: {bias}")
    lookup = "Look-up over {frames:.0f} frames: {cpu:.0f} ms of CPU, {wall:.0f} ms wall"
    console.print(lookup.format(**report["lookup_ms"]))
