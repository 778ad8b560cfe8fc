# SPDX-License-Identifier: Apache-2.0
"""Plan a byte budget for a model without its weights: slots, frames, seconds and bytes of each part.

Example: kvstream inspect Qwen/Qwen2.5-VL-3B-Instruct --budget-mib 512 --frame 640x480 --dtype bfloat16
         kvstream inspect Qwen/Qwen2.5-VL-3B-Instruct --budget-mib 1024 --dtype bfloat16 --quantized
         kvstream inspect Qwen/Qwen2.5-VL-3B-Instruct --saliency kitchen.jpg --output patches.png
"""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.settings import MemorySettings, ModelSettings, QuantizedSettings, SaliencySettings, require_finite

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.memory.budget import BudgetPlan
    from ros_kvstream.models.base import VideoLanguageModel

MIB = 1 << 20
MEMORY_OPTIONS = ("block_frames", "max_question_tokens", "max_answer_tokens")
QUANTIZED_OPTIONS = ("int8", "int4", "group", "order")
SALIENCY_OPTIONS = ("threshold", "guard", "max_pruned")


def frame_size(text: str) -> tuple[int, int]:
    """Parse width and height of a text such as 640x480."""
    match = re.fullmatch(r"\s*(\d{1,5})\s*[xX×]\s*(\d{1,5})\s*", text)
    if match is None or not all(1 <= int(side) <= 16384 for side in match.groups()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be WIDTHxHEIGHT in pixels, such as 640x480")
    return int(match[1]), int(match[2])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``kvstream inspect``."""
    memory, quantized, saliency = MemorySettings(), QuantizedSettings(), SaliencySettings()
    add = parser.add_argument
    add("model", nargs="?", default=ModelSettings.path, metavar="MODEL", help="'tiny', a folder or a hub id (tiny)")
    add("--budget-mib", type=float, default=memory.budget_mib, metavar="N", help="memory.budget_mib (%(default)g)")
    add("--frame", type=frame_size, default=(640, 480), metavar="WxH", help="size of the pictures (640x480)")
    add("--fps", type=float, default=2.0, metavar="R", help="frames per second that reach the memory (%(default)g)")
    add("--dtype", default=ModelSettings.dtype, metavar="TYPE", help="auto, float32, bfloat16 or float16 (%(default)s)")
    add("--max-frame-pixels", type=int, default=0, metavar="N", help="larger pictures are scaled down (0: no limit)")
    for name in MEMORY_OPTIONS:
        add(f"--{name.replace('_', '-')}", type=int, default=getattr(memory, name), metavar="N",
            help=f"memory.{name} (%(default)s)")  # fmt: skip
    add("--quantized", action="store_true", help="plan a mixed-precision memory and compare it with a native one")
    for name in QUANTIZED_OPTIONS:
        value = getattr(quantized, name)
        add(f"--quantized-{name}", type=type(value), default=value, metavar=name.upper(),
            help=f"quantized.{name} (%(default)s)")  # fmt: skip
    add("--saliency", type=Path, metavar="IMAGE", help="only draw which patches of this picture would be pruned")
    add("--output", type=Path, default=Path("saliency.png"), metavar="PNG", help="picture to write (%(default)s)")
    for name in SALIENCY_OPTIONS:
        value = getattr(saliency, name)
        add(f"--{name.replace('_', '-')}", type=type(value), default=value, metavar="N",
            help=f"saliency.{name} (%(default)s)")  # fmt: skip


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Plan the budget; raises BudgetError with the minimum when it is too small."""
    require_finite("--fps", options.fps, 0.001, 1000.0)
    memory = MemorySettings(budget_mib=options.budget_mib, **{name: getattr(options, name) for name in MEMORY_OPTIONS})
    settings = ModelSettings(options.model, dtype=options.dtype, max_frame_pixels=options.max_frame_pixels)
    with console.status(f"Reading the configuration of {options.model}"):
        from ros_kvstream.models.loading import describe_model

        model = describe_model(settings)
    if options.saliency is not None:
        pruning = {name: getattr(options, name) for name in SALIENCY_OPTIONS}
        return saliency_report(model, options.saliency, options.output, SaliencySettings("prune", **pruning))
    precisions = {name: getattr(options, f"quantized_{name}") for name in QUANTIZED_OPTIONS}
    quantized = QuantizedSettings("on" if options.quantized else "off", **precisions)
    return budget_report(model, memory, options.frame, options.fps, quantized)


def saliency_report(
    model: VideoLanguageModel, picture: Path, output: Path, settings: SaliencySettings
) -> dict[str, Any]:
    """Draw a picture's saliency on the model's patch grid; raises FrameError where the file is no picture."""
    import cv2

    from ros_kvstream.errors import FrameError
    from ros_kvstream.vision.saliency import write_overlay

    pixels = cv2.imread(str(picture))
    if pixels is None:
        raise FrameError(f"--saliency {picture}: no readable picture")
    rows, columns = model.grid(*pixels.shape[:2])
    resized = rows * model.patch_side, columns * model.patch_side
    return {"output": str(output), "saliency": write_overlay(pixels, output, settings, (rows, columns), resized)}


def plan_memory(
    model: VideoLanguageModel, memory: MemorySettings, frame_tokens: int, quantized: QuantizedSettings | None = None
) -> BudgetPlan:
    """The plan of a VideoMemory with these settings, for frames of this many tokens."""
    from ros_kvstream.memory.budget import plan_budget

    return plan_budget(
        model.shape, int(memory.budget_mib * MIB), quantized,
        pinned=len(model.prefix_ids),
        reserve=len(model.suffix_ids("")) + memory.max_question_tokens + memory.max_answer_tokens,
        frame_tokens=frame_tokens * memory.block_frames,
    )  # fmt: skip


def quantized_report(plan: BudgetPlan, native_frame_slots: int) -> dict[str, Any]:
    """Slots and bytes of each precision, compared with a native memory of the same bytes."""
    return {
        "slots": {"full": plan.full_frame_slots, "int8": plan.int8_slots, "int4": plan.int4_slots},
        "bytes_per_slot": {
            "full": plan.shape.token_bytes, "int8": plan.packed_slot_bytes(8), "int4": plan.packed_slot_bytes(4),
        },
        "scale_bytes": plan.scale_bytes,
        "group": plan.group,
        "plain_frame_slots": native_frame_slots,
        "slots_ratio": plan.frame_slots / native_frame_slots if native_frame_slots else None,
    }  # fmt: skip


def budget_report(
    model: VideoLanguageModel, memory: MemorySettings, frame: tuple[int, int], fps: float,
    quantized: QuantizedSettings | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The machine-readable report."""
    from ros_kvstream.errors import BudgetError
    from ros_kvstream.memory.budget import smallest_budget

    width, height = frame
    try:
        rows, columns = model.grid(height, width)
    except ValueError as error:
        raise SettingsError(f"--frame {width}x{height}: the model cannot take it: {error}") from error
    tokens = model.frame_tokens(rows, columns)
    plan = plan_memory(model, memory, tokens, quantized)
    block_tokens = tokens * memory.block_frames
    smallest = smallest_budget(plan.shape, plan.pinned_slots, plan.reserve_slots, 2 * block_tokens, quantized)
    frames, shape = plan.frame_slots // tokens, model.shape
    report = {
        "model": model.name,
        "family": model.family,
        "trained": model.trained,
        "cache": {
            "layers": shape.layers,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "dtype": str(shape.dtype).removeprefix("torch."),
            "bytes_per_token": shape.token_bytes,
        },
        "budget_bytes": plan.budget_bytes,
        "allocated_bytes": plan.allocated_bytes,
        "smallest_budget_bytes": smallest,
        "parts": plan.parts,
        "slots": {"prompt": plan.pinned_slots, "frames": plan.frame_slots, "question_and_answer": plan.reserve_slots},
        "frame": {"width": width, "height": height, "rows": rows, "columns": columns, "tokens": tokens},
        "positions": asdict(model.positions_within(memory.position_limit, plan.reserve_slots)),
        "fps": fps,
        "frames": frames,
        "seconds": frames / fps,
    }
    if plan.quantized:
        native = 0
        with suppress(BudgetError):  # too small for a native memory
            native = plan_memory(model, memory, tokens).frame_slots
        report["quantized"] = quantized_report(plan, native)
    return report


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report."""
    if "saliency" in report:
        figures = report["saliency"]
        console.print(
            f"{figures['rows']:.0f} x {figures['columns']:.0f} patches, saliency {figures['least']:.1f} to "
            f"{figures['greatest']:.1f} grey levels; {figures['kept_share']:.0%} would be prefilled. "
            f"Picture: {report['output']}."
        )
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    cache, frame, slots, positions = (report[part] for part in ("cache", "frame", "slots", "positions"))
    untrained = "" if report["trained"] else ", [yellow]no weights: untrained[/]"
    console.print(f"\n[bold]{report['model']}[/]  {report['family']}, {cache['dtype']}{untrained}")
    console.print(f"{cache['layers']} layers x {cache['kv_heads']} KV heads x {cache['head_dim']} dimensions: "
                  f"{size(cache['bytes_per_token'])} of keys and values per token\n")  # fmt: skip

    table = Table(title=f"Budget of {size(report['budget_bytes'])}", title_justify="left", box=SIMPLE_HEAD)
    for title in ("part", "bytes", "", "share"):
        table.add_column(title, justify="left" if title == "part" else "right")
    rest = report["budget_bytes"] - report["allocated_bytes"]
    for part, count in [*report["parts"].items(), ("left over", rest)]:
        table.add_row(part, f"{count:,}", size(count), f"{count / report['budget_bytes']:.1%}")
    console.print(table)

    console.print(f"\nSlots per layer and KV head   {sum(slots.values()):>9,}")
    for name, count in (("prompt", slots["prompt"]), ("question and answer", slots["question_and_answer"]),
                        ("frames", slots["frames"])):  # fmt: skip
        console.print(f"  {name:<28}{count:>9,}")
    if "quantized" in report:
        show_quantized(report["quantized"], cache["dtype"], console)
    console.print(
        f"\nA picture of {frame['width']} x {frame['height']} takes {frame['rows']} x {frame['columns']} = "
        f"{frame['tokens']} slots: the memory holds [bold]{report['frames']:,} whole frames[/], "
        f"[bold]{duration(report['seconds'])}[/] at {report['fps']:g} per second.\n"
        f"Positions of frames stay below {positions['limit']:,} ({positions['source']}). "
        f"When it is full, the policy selects the slots to keep. "
        f"Minimum budget for these settings: {size(report['smallest_budget_bytes'])}."
    )


def show_quantized(quantized: dict[str, Any], dtype: str, console: Console) -> None:
    """Print the frame slots of each precision."""
    for precision, count in quantized["slots"].items():
        name = f"in {dtype if precision == 'full' else precision}"
        row = size(quantized["bytes_per_slot"][precision])
        console.print(f"    {name:<26}{count:>9,}   {row} of keys and values each")
    console.print(f"  scales and zero points, one per {quantized['group']} channels: {size(quantized['scale_bytes'])}")
    native, ratio = quantized["plain_frame_slots"], quantized["slots_ratio"]
    if ratio:
        console.print(f"  [bold]{ratio:.2f} times[/] the {native:,} frame slots of a native memory of the same bytes")
    else:
        console.print("  a native memory does not fit into these bytes")


def size(count: float) -> str:
    """Format a number of bytes with a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} GiB"


def duration(seconds: float) -> str:
    """Format seconds with suitable units."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"
