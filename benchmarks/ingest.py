"""`kvstream benchmark ingest`: a frame's and a question's way, ours beside the library's own forward.

One process, shared random weights at the block shapes of Qwen2.5-VL-3B, turn about. Takes a few minutes and 4 GiB.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

MIB = 1 << 20
LAYERS, BLOCKS = 36, 32
"""Of the whole model; what is measured on fewer is scaled up."""
GRIDS_PER_COMPACTION = 8
"""Published setting: 32 grids cut to 24."""
TTFT_FRAMES = (16, 64, 256, 1024, 10_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--layers", type=int, default=2, help="language-model layers that are run (%(default)s)")
    parser.add_argument("--blocks", type=int, default=8, help="vision blocks that are run (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the median counts (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (%(default)s)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16",
                        help="of the weights; what the node takes on a CPU unless told otherwise is float32")
    parser.add_argument("--frames", type=int, default=TTFT_FRAMES[-1], help="longest stream of the answer latency")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; returns the report of ``--json`` (ratios: plain time / our time)."""
    import torch

    from benchmarks.ingest_timing import IngestShape, make_network, time_language, time_vision
    from ros_kvstream.models.devices import resolve_device

    device, dtype = str(resolve_device(options.device)), getattr(torch, options.dtype)
    shape = IngestShape(options.layers, options.blocks, repeats=options.repeats, dtype=dtype, device=device)
    with console.status("Making random weights of Qwen2.5-VL-3B's block shapes"):
        network = make_network(shape)
    with console.status("Vision tower, the library's path and ours turn about"):
        vision = time_vision(network, shape)
    language = {}
    for slots in shape.slots:
        with console.status(f"Prefill and decode at {slots} slots, turn about"):
            language[slots] = time_language(network, shape, slots)
    with console.status("Compaction beside the published formulation, turn about"):
        compaction = compaction_ms(options.dtype)
    with console.status("Time to first token against frames seen"):
        first_token, full_from = time_to_first_token([count for count in TTFT_FRAMES if count <= options.frames])
    steps = {"vision": vision} | {
        f"{name} at {slots}": pair[name] for name in ("prefill", "decode") for slots, pair in language.items()
    }
    full = language[shape.slots[-1]]["prefill"]
    whole = [
        vision_ms * BLOCKS / shape.blocks + prefill_ms * LAYERS / shape.layers + cut_ms / GRIDS_PER_COMPACTION
        for vision_ms, prefill_ms, cut_ms in (
            (vision.plain_ms, full.plain_ms, compaction["plain_ms"]),
            (vision.ours_ms, full.ours_ms, compaction["ours_ms"]),
        )
    ]
    return {
        "dtype": options.dtype,
        "vision": vision.ratio,
        "prefill": {str(slots): pair["prefill"].ratio for slots, pair in language.items()},
        "decode": {str(slots): pair["decode"].ratio for slots, pair in language.items()},
        "compaction": compaction["plain_ms"] / compaction["ours_ms"],
        "ingest": whole[0] / whole[1],
        "ingest_two_frames_a_grid": 2 * whole[0] / whole[1],
        "of_floor": shares_of_floor(shape, vision, language),
        "ttft_ms": {str(frames): ms for frames, ms in first_token.items()},
        "ttft_spread_when_full": spread_when_full(first_token, full_from),
        "ttft_full_from_frames": full_from,
        "ms": {
            **{name: [pair.plain_ms, pair.ours_ms] for name, pair in steps.items()},
            "ingest of a frame, scaled up": whole,
        },
        "peak_mib": {
            name: [pair.plain_bytes / MIB, pair.ours_bytes / MIB] for name, pair in steps.items()
        },
    }  # fmt: skip


def compaction_ms(dtype: str) -> dict[str, float]:
    """One cut of 32 grids to 24, all layers: published formulation and ours."""
    import torch

    from benchmarks.selection_timing import BenchmarkShape, measure

    row = measure(BenchmarkShape(layers=LAYERS), [getattr(torch, dtype)])[dtype]
    return {"plain_ms": row["published_ms"], "ours_ms": row["ours_ms"]}


def shares_of_floor(shape: Any, vision: Any, language: dict[int, Any]) -> dict[str, float]:
    """Our measured time over the least time, per step."""
    from benchmarks import ingest_floor as floor

    rate, bandwidth = floor.matrix_rate(shape), floor.copy_bandwidth(shape)
    shares = {"vision": vision.ours_ms / 1e3 * rate / floor.vision_operations(shape)}
    for slots, pair in language.items():
        operations = floor.language_operations(shape, 144, slots)
        shares[f"prefill at {slots}"] = pair["prefill"].ours_ms / 1e3 * rate / operations
        shares[f"decode at {slots}"] = pair["decode"].ours_ms / 1e3 * bandwidth / floor.decode_bytes(shape, slots)
    return shares


def spread_when_full(first_token: dict[int, float], full_from: int) -> float:
    """Largest over smallest time to first token once the budget was full, less 1; 0 with fewer than two."""
    times = [ms for frames, ms in first_token.items() if frames >= full_from]
    return max(times) / min(times) - 1.0 if len(times) > 1 else 0.0


def time_to_first_token(frames: list[int], questions: int = 31) -> tuple[dict[int, float], int]:
    """Median milliseconds to the first answer token after so many frames, tiny model, small budget, archive on.

    A stream of its own for each length, asked turn about, so that what disturbs one disturbs all. And the number of
    frames from which on the budget was full, that is, from its first compaction.
    """
    import statistics

    import numpy as np

    from ros_kvstream.settings import ArchiveSettings, MemorySettings, StreamSettings
    from ros_kvstream.stream.memory import VideoMemory

    memory = MemorySettings(budget_mib=1.0, block_frames=16, max_question_tokens=32, max_answer_tokens=16)
    settings = StreamSettings(memory=memory, archive=ArchiveSettings(budget_mib=8.0))
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 255, (64, 56, 56, 3), dtype=np.uint8)
    streams, full_from = {count: VideoMemory(settings) for count in frames}, 0
    for count, stream in streams.items():
        for index in range(count):
            stream.observe(pictures[index % len(pictures)], index / 2)
            full_from = full_from or (index + 1 if stream.arena.compactions else 0)
        while stream.idle():
            pass
    measured: dict[int, list[float]] = {count: [] for count in frames}
    for number in range(questions + 1):
        for count, stream in streams.items():
            answer = stream.ask("what colour was the cone ?", max_new_tokens=1)
            measured[count] += [answer.latency.first_token_ms] if number else []
    for stream in streams.values():
        stream.close()
    return {count: statistics.median(times) for count, times in measured.items()}, full_from


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report for people."""
    table = Table(title="A frame's and a question's way: the library's forward beside ours (ms, medians)")
    for name in ("", "plain", "ours", "ratio"):
        table.add_column(name, justify="right" if name else "left")
    for name, (plain, ours) in report["ms"].items():
        table.add_row(name, f"{plain:.1f}", f"{ours:.1f}", f"{plain / ours:.2f}")
    table.add_row("compaction", "", "", f"{report['compaction']:.2f}")
    console.print(table)
    peaks = report["peak_mib"]
    console.print("Most memory beyond what was there before, MiB, plain / ours: " + ", ".join(
        f"{name} {peaks[name][0]:.1f} / {peaks[name][1]:.1f}" for name in peaks))
    console.print("With memory.frames_per_grid = 2 one of our grids holds two frames: "
                  f"{report['ingest_two_frames_a_grid']:.2f} of the plain path's frames in the same time")
    floors = Table(title="Our time over the least that this machine could take")
    floors.add_column("step")
    floors.add_column("times the floor", justify="right")
    for name, share in report["of_floor"].items():
        floors.add_row(name, f"{share:.2f}")
    console.print(floors)
    flat = ", ".join(f"{ms:.1f} ms after {int(frames):,}" for frames, ms in report["ttft_ms"].items())
    console.print(f"Time to first token (tiny model, 1 MiB, archive on): {flat} frames")
    full_from, spread = report["ttft_full_from_frames"], 100 * report["ttft_spread_when_full"]
    console.print(f"The budget is full from {full_from} frames on; from there these times differ by {spread:.0f} %")
