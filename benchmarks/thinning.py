"""`kvstream benchmark thinning`: what frame gate, saliency and precision ladder leave out, cost and save.

Streams are shown to two memories turn about, one with and one without; times are processor times of one thread, so
that another process on the machine does not count.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ros_kvstream.errors import BudgetError
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.recordings.bags import BagSource
from ros_kvstream.settings import (
    GateSettings,
    MemorySettings,
    ModelSettings,
    QuantizedSettings,
    SaliencySettings,
    StreamSettings,
)

if TYPE_CHECKING:
    from ros_kvstream.memory.budget import BudgetPlan
    from ros_kvstream.models.base import VideoLanguageModel

Picture = NDArray[np.uint8]
Stream = Iterable[tuple[Picture, float]]

PLAIN = StreamSettings(gate=GateSettings(mode="off"))
GATE = StreamSettings()
NOVEL = StreamSettings(saliency=SaliencySettings(mode="novel", max_pruned=0.9))
VARIANTS = {"gate": GATE, "gate and saliency": NOVEL}
PACED = replace(NOVEL, gate=GateSettings(mode="adaptive", target_rate=0.5))
"""For a fixed camera before which something always moves: at most a frame every other second, and its news alone."""
PAIRS = replace(PLAIN, memory=MemorySettings(frames_per_grid=2))
"""Two real frames in one temporal grid, every frame computed."""
MAX_PIXELS = 448 * 336
"""Pixels of a frame that the model sees of a recording: 192 visual tokens."""
GIB = 1 << 30
_SEED = 20256


@dataclass(frozen=True)
class StreamFigures:
    """What became of one stream, against a memory that computes every patch of every frame."""

    gated: float
    """Share of the frames that were not computed."""
    pruned: float
    """Share of the patches of the others that were left out of the prefill."""
    ingest_time_ratio: float
    """Processor time with / without."""
    ms_plain: float
    """Milliseconds a frame without."""
    ms_thinned: float
    """Milliseconds a frame with."""


def gate_ms(frames: Stream) -> float:
    """Processor time of the frame gate alone, milliseconds a frame."""
    from ros_kvstream.vision.frame_gate import FrameGate

    gate, spent, seen = FrameGate(GATE.gate), 0.0, 0
    for picture, stamp in frames:
        started = time.process_time()
        gate.decide(picture, stamp)
        spent += time.process_time() - started
        seen += 1
    return 1e3 * spent / max(1, seen)


def measure_stream(model: VideoLanguageModel, frames: Stream, settings: StreamSettings) -> StreamFigures:
    """Show a stream to a thinning and to a plain memory, turn about.

    :param frames: (RGB uint8 [height, width, 3], stamp in seconds).
    """
    from ros_kvstream.stream.memory import VideoMemory

    plain, thinned = VideoMemory(_same_memory(PLAIN, settings), model), VideoMemory(settings, model)
    spent, tokens, kept = [0.0, 0.0], [0, 0], 0
    seen = 0
    for picture, stamp in frames:
        observations = []
        for index, memory in enumerate((plain, thinned) if seen % 2 else (thinned, plain)):
            started = time.process_time()
            observations.append(memory.observe(picture, stamp))
            which = index if seen % 2 else 1 - index
            spent[which] += time.process_time() - started
        ours, theirs = observations[::-1] if seen % 2 else observations
        kept += ours.kept
        tokens = [tokens[0] + (theirs.tokens if ours.kept else 0), tokens[1] + ours.tokens]
        seen += 1
    stats = thinned.stats()
    for memory in (plain, thinned):
        memory.close()
    return StreamFigures(
        stats.frames_gated / max(1, seen), 1 - tokens[1] / max(1, tokens[0]), spent[1] / max(spent[0], 1e-9),
        1e3 * spent[0] / max(1, seen), 1e3 * spent[1] / max(1, seen),
    )  # fmt: skip


def _same_memory(settings: StreamSettings, other: StreamSettings) -> StreamSettings:
    return replace(settings, memory=replace(other.memory, frames_per_grid=1))


def patrol_stream(frames: int, seeds: Sequence[int], size: int = 56) -> Iterator[tuple[Picture, float]]:
    """Patrol worlds one after the other, one clock."""
    start = 0.0
    for seed in seeds:
        world = PatrolWorld(PatrolSettings(seed=seed, frames=frames, size=size, start=start))
        for frame in world:
            yield frame.picture, frame.stamp
        start = world.stamp(len(world) - 1) + 1.0


def bag_stream(path: Path, most: int = 0) -> Iterator[tuple[Picture, float]]:
    """Frames of a recording and their stamps, the first ``most`` (0: all)."""
    for frame in islice(BagSource(path).frames(), most or None):
        yield frame.picture, frame.stamp


# -- accuracy ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AccuracyPlan:
    """How much is asked."""

    frames: int
    streams: int
    questions: int
    slots: int
    """Frame slots of the plain memory."""


def accuracy(model: VideoLanguageModel, plan: AccuracyPlan, budget_mib: float, settings: StreamSettings) -> float:
    """Share of right answers about held-out patrol streams, asked after their last frame."""
    from ros_kvstream.stream.memory import VideoMemory

    right = asked = 0
    for number in range(plan.streams):
        world = PatrolWorld(PatrolSettings(seed=_SEED + number, frames=plan.frames, objects=8))
        memory = VideoMemory(_budgeted(settings, budget_mib), model)
        for frame in world:
            memory.observe(frame.picture, frame.stamp)
        for question in world.questions(plan.questions):
            right += memory.ask(question.text).text.strip() == question.answer
            asked += 1
        memory.close()
    return right / max(1, asked)


def _budgeted(settings: StreamSettings, budget_mib: float) -> StreamSettings:
    limits: dict[str, Any] = {"budget_mib": budget_mib, "max_question_tokens": 32, "max_answer_tokens": 8}
    return replace(settings, memory=replace(settings.memory, **limits))


def budget_for_slots(model: VideoLanguageModel, slots: int, ladder: QuantizedSettings | None = None) -> float:
    """MiB with which a memory for these questions has this many frame slots, plain or on the ladder."""
    from ros_kvstream.memory.budget import MIB, plan_budget, smallest_budget

    reserve = len(model.suffix_ids("")) + 32 + 8
    if ladder is None:
        return smallest_budget(model.shape, len(model.prefix_ids), reserve, slots) / MIB
    room = {"pinned": len(model.prefix_ids), "reserve": reserve, "frame_tokens": 4}
    budget = 1024
    while not _holds(budget, slots, lambda size: plan_budget(model.shape, size, ladder, **room)):
        budget += 1024
    return budget / MIB


def _holds(budget: int, slots: int, plan: Callable[[int], BudgetPlan]) -> bool:
    try:
        return plan(budget).frame_slots >= slots
    except BudgetError:
        return False


def ladder_accuracies(model: VideoLanguageModel, plan: AccuracyPlan) -> dict[str, float]:
    """Right answers of a plain memory, of ladders of the same bytes and of the same slots, and of a thinned stream."""
    on = QuantizedSettings(mode="on")
    ladders = {order: replace(PLAIN, quantized=replace(on, order=order)) for order in ("policy", "recent")}
    same_bytes, same_slots = budget_for_slots(model, plan.slots), budget_for_slots(model, plan.slots, on)
    by_order = {order: accuracy(model, plan, same_bytes, ladder) for order, ladder in ladders.items()}
    return {
        "accuracy_plain": accuracy(model, plan, same_bytes, PLAIN),
        "accuracy_ladder": by_order["policy"],
        "accuracy_ladder_recent": by_order["recent"],
        "accuracy_ladder_same_slots": accuracy(model, plan, same_slots, ladders["policy"]),
        "accuracy_gate": accuracy(model, plan, same_bytes, GATE),
        "accuracy_gate_and_saliency": accuracy(model, plan, same_bytes, NOVEL),
        "accuracy_two_frames_a_grid": accuracy(model, plan, same_bytes, PAIRS),
    }


def slots_ratio(layers: int = 36, kv_heads: int = 2, head_dim: int = 128) -> dict[str, Any]:
    """Frame slots of the ladder over those of plain bfloat16 in 1 GiB (defaults: Qwen2.5-VL-3B), and the shares."""
    import torch

    from ros_kvstream.memory.budget import CacheShape, plan_budget

    shape = CacheShape(layers, kv_heads, head_dim, torch.bfloat16)
    room = {"pinned": 16, "reserve": 448, "frame_tokens": 192}
    plain, ladder = plan_budget(shape, GIB, **room), plan_budget(shape, GIB, QuantizedSettings(mode="on"), **room)
    return {
        "slots_ratio": ladder.frame_slots / plain.frame_slots,
        "slots": {"plain": plain.frame_slots, "full": ladder.full_frame_slots, "int8": ladder.int8_slots,
                  "int4": ladder.int4_slots},
    }  # fmt: skip


def attention_error_by_model(model: VideoLanguageModel, report: Callable[[str], None]) -> dict[str, Any]:
    """Output error of attention by model and way of coding; SmolLM2 only where its package is installed."""
    from benchmarks.precision_error import (
        attention_errors,
        memory_states,
        smollm2_file,
        smollm2_states,
    )
    from ros_kvstream.stream.memory import VideoMemory

    memory = VideoMemory(_budgeted(PLAIN, 8.0), model)
    world = PatrolWorld(PatrolSettings(seed=_SEED, frames=64))
    for frame in world:
        memory.observe(frame.picture, frame.stamp)
    errors = {"tiny": attention_errors(memory_states(memory, world.questions(1)[0].text))}
    memory.close()
    weights = smollm2_file()
    if weights is None:
        report("SmolLM2 is left out: its package is not installed (docs/thinning.md)")
    else:
        text = Path(argparse.__file__).read_text()[:8000]
        errors["smollm2"] = attention_errors(smollm2_states(weights, text))
    return errors


# -- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a local folder (%(default)s)")
    parser.add_argument("--yard", type=Path, default=Path("test/data/yard"), metavar="BAG", help="fixed camera")
    parser.add_argument("--donkey", type=Path, default=Path("test/data/donkey_track"), metavar="BAG", help="moving car")
    parser.add_argument("--frames", type=int, default=0, metavar="N", help="frames of each stream (0: all)")
    parser.add_argument("--streams", type=int, default=12, metavar="N", help="patrol streams that are asked about")
    parser.add_argument("--length", type=int, default=96, metavar="N", help="frames of those streams, 4 tokens each")
    parser.add_argument("--questions", type=int, default=22, metavar="N", help="questions about each of them")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything; progress goes to the console. Returns the figures of DESIGN.md and more beside them."""
    import cv2
    import torch

    from ros_kvstream.models.loading import load_model

    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    small = load_model(ModelSettings(path=options.model, device="cpu"))
    large = load_model(ModelSettings(path=options.model, device="cpu", max_frame_pixels=MAX_PIXELS))
    patrol_frames = options.frames or 192
    report: dict[str, Any] = {}
    streams: dict[str, tuple[VideoLanguageModel, Callable[[], Stream]]] = {
        "patrol": (small, lambda: patrol_stream(patrol_frames // 2, (_SEED, _SEED + 1))),
        "yard": (large, lambda: bag_stream(options.yard, options.frames)),
        "donkey_track": (large, lambda: bag_stream(options.donkey, options.frames or 400)),
    }
    for name, (model, stream) in streams.items():
        rows = {label: measure_stream(model, stream(), settings) for label, settings in VARIANTS.items()}
        report[name] = {
            **vars(rows["gate and saliency"]), "gate_only": vars(rows["gate"]), "gate_ms": gate_ms(stream()),
        }  # fmt: skip
        report[name]["two_frames_a_grid"] = vars(measure_stream(model, stream(), PAIRS))
        if name == "yard":
            report[name]["paced"] = vars(measure_stream(model, stream(), PACED))
        console.print(f"{name}: {report[name]['ingest_time_ratio']:.2f} of the plain ingest time")
    report["flow"] = _flow_figures(options)
    console.print("attention error")
    errors = attention_error_by_model(small, console.print)
    plan = AccuracyPlan(options.length, options.streams, options.questions, slots=max(40, options.length))
    console.print(f"accuracy: {plan.streams} streams of {plan.frames} frames")
    halved = load_model(ModelSettings(path=options.model, device="cpu", dtype="bfloat16"))
    report["ladder"] = {
        **slots_ratio(), **ladder_accuracies(halved, plan),
        "attention_error": errors.get("smollm2", errors["tiny"])["ladder"], "attention_error_by_model": errors,
    }  # fmt: skip
    return report


def _flow_figures(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.flow_comparison import compare_flows

    bags = {"yard": options.yard, "donkey_track": options.donkey}
    return {
        name: compare_flows([picture for picture, _ in list(bag_stream(path, 100))[::10]])
        for name, path in bags.items()
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the figures as tables."""
    table = Table(
        "stream",
        "frames gated",
        "patches pruned",
        "time / plain",
        "gate alone",
        "gate ms",
        "two frames a grid",
        title="ingest",
    )
    for name in ("patrol", "yard", "donkey_track"):
        row = report[name]
        table.add_row(name, f"{row['gated']:.1%}", f"{row['pruned']:.1%}", f"{row['ingest_time_ratio']:.2f}",
                      f"{row['gate_only']['ingest_time_ratio']:.2f}", f"{row['gate_ms']:.2f}",
                      f"{row['two_frames_a_grid']['ingest_time_ratio']:.2f}")  # fmt: skip
    console.print(table)
    console.print("yard, gate adaptive at half a frame a second, and saliency: {gated:.1%} gated, {pruned:.1%} pruned, "
                  "{ingest_time_ratio:.2f} of the plain time".format(**report["yard"]["paced"]))  # fmt: skip
    flows = Table("pictures", "flow", "pan error px", "object error px", "ms", title="optical flow, small picture")
    for name, rows in report["flow"].items():
        for flow, row in rows.items():
            flows.add_row(name, flow, *(f"{row[key]:.2f}" for key in ("pan_error", "object_error", "ms")))
    console.print(flows)
    ladder = report["ladder"]
    errors = Table("model", "coding", "int8", "int4", title="relative error of attention's output")
    for name, schemes in ladder["attention_error_by_model"].items():
        for scheme, row in schemes.items():
            errors.add_row(name, scheme, *(f"{row[key]:.4f}" if key in row else "" for key in ("int8", "int4")))
    console.print(errors)
    console.print(f"slots in the same bytes: {ladder['slots_ratio']:.2f} of plain bfloat16")
    for key, value in ladder.items():
        if key.startswith("accuracy"):
            console.print(f"{key.replace('_', ' ')}: {value:.3f}")
