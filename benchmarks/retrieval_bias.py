"""Temporal bias: does an expert's score drift with time on a scene that does not change?

A static scene with sensor noise and one needle early, in the middle or late; Spearman's rank correlation between score
and frame index over all frames but the needle's. A plain mean-key expert drifts; a good one does not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.retrieval_trials import Sizes, make_memory
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.retrieval.context import search_queries
from ros_kvstream.retrieval.fusion import fuse
from ros_kvstream.retrieval.internal import internal_scores
from ros_kvstream.retrieval.ranking import expert_scores
from ros_kvstream.settings import RetrievalSettings

NEEDLES = (0.1, 0.5, 0.9)
"""Where the needle is, as a share of the stream."""


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


def static_scene(seed: int, frames: int, needle: int) -> tuple[list[NDArray[np.uint8]], str]:
    """Pictures of one still scene with noise, an object in frame ``needle`` only, and the question about it."""
    world = PatrolWorld(PatrolSettings(seed=seed, frames=96, objects=1, noise=0.0))
    sighting = world.sightings[0]
    empty = next(index for index in range(96) if world.sighting(index) is None)
    random = np.random.default_rng([seed, needle])
    pictures = []
    for index in range(frames):
        scene = world.picture(sighting.first if index == needle else empty).astype(np.float32)
        pictures.append(np.clip(scene + random.normal(0, 6.0, scene.shape), 0, 255).astype(np.uint8))
    return pictures, f"what colour was the {sighting.shape}?"


def measure_bias(
    model: VideoLanguageModel, retrieval: RetrievalSettings, seeds: int, frames: int = 96
) -> dict[str, float]:
    """Mean of |Spearman's rho| per expert over ``seeds`` scenes and all needle coordinates."""
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        for share in NEEDLES:
            needle = int(share * frames)
            for name, rho in _scene_bias(model, retrieval, 7_000_000 + seed, frames, needle).items():
                found.setdefault(name, []).append(rho)
    return {name: float(np.mean(np.abs(values))) for name, values in found.items()}


def _scene_bias(
    model: VideoLanguageModel, retrieval: RetrievalSettings, seed: int, frames: int, needle: int
) -> dict[str, float]:
    pictures, question = static_scene(seed, frames, needle)
    world = PatrolWorld(PatrolSettings(seed=seed, frames=frames))
    memory = make_memory(model, world, Sizes(archive_ratio=64.0, precision="fp16"), retrieval, keep_ratio=1.0)
    for index, picture in enumerate(pictures):
        memory.observe(picture, index / 2)
    memory.observe(pictures[0], frames / 2)
    assert memory.archive_retrieval is not None and memory.archive_retrieval.archive is not None
    memory.flush()
    memory.archive_retrieval.embed_pending()
    archive = memory.archive_retrieval.archive
    others = archive.table.frames["live"] & (archive.table.frames["frame_id"] != needle)
    others &= archive.table.frames["frame_id"] < frames
    by_time = np.flatnonzero(others)[np.argsort(archive.table.frames["stamp"][others], kind="stable")]
    ids = model.suffix_ids(question)
    start = model.text_start(memory.positions.newest, 2)
    rho: dict[str, float] = {}
    queries = search_queries(memory.ingest, memory.archive_retrieval, ids, start)
    experts = expert_scores(archive, retrieval, memory.archive_retrieval.encoder, question, queries)
    for name, expert in experts.items():
        rho[name] = spearman(expert.scores[by_time].astype(np.float64))
    fused = {frame.slot: frame.fused for frame in fuse(experts, others, archive.table.frames, k=60, depth=1 << 20)}
    rho["fused"] = spearman(np.array([fused[int(slot)] for slot in by_time]))
    plain = replace(retrieval, query="mean", patch_pooling="mean", head_pooling="mean")
    memory.archive_retrieval.settings = plain
    queries = search_queries(memory.ingest, memory.archive_retrieval, ids, start)
    mean_key = internal_scores(archive, queries, plain, plain=True).numpy()
    rho["mean_key"] = spearman(mean_key[by_time].astype(np.float64))
    memory.close()
    return rho


