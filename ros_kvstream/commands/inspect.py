"""What a byte budget holds for a model: slots, frames, seconds, bytes per part. Reads no weights.

Example: kvstream inspect Qwen/Qwen2.5-VL-3B-Instruct --budget-mib 512 --frame 640x480 --dtype bfloat16
         kvstream inspect Qwen/Qwen2.5-VL-3B-Instruct --budget-mib 1024 --dtype bfloat16 --quantized
         kvstream inspect Qwen/Qwen2.5-VL-3B-Instruct --saliency kitchen.jpg --output patches.png
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.settings import MemorySettings, ModelSettings, QuantizedSettings, SaliencySettings, require_finite

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.memory.budget import BudgetPlan
    from ros_kvstream.models.base import VideoLanguageModel

MIB = 1 << 20


def frame_size(text: str) -> tuple[int, int]:
    """Width and height of a text like 640x480."""
    match = re.fullmatch(r"\s*(\d{1,5})\s*[xX×]\s*(\d{1,5})\s*", text)
    if match is None or not all(1 <= int(side) <= 16384 for side in match.groups()):
        raise argparse.ArgumentTypeError(f"{text!r}: give WIDTHxHEIGHT in pixels, such as 640x480")
    return int(match[1]), int(match[2])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``kvstream inspect``."""
    memory, model = MemorySettings(), ModelSettings()
    add = parser.add_argument
    add("model", nargs="?", default=model.path, metavar="MODEL", help="'tiny', a local folder or a hub id (tiny)")
    add("--budget-mib", type=float, default=memory.budget_mib, metavar="N", help="memory.budget_mib (%(default)g)")
    add("--frame", type=frame_size, default=(640, 480), metavar="WxH", help="size of the pictures (640x480)")
    add("--fps", type=float, default=2.0, metavar="R", help="frames a second that reach the memory (%(default)g)")
    add("--dtype", default=model.dtype, metavar="TYPE", help="auto, float32, bfloat16 or float16 (%(default)s)")
    add("--max-frame-pixels", type=int, default=0, metavar="N", help="larger pictures are scaled down (0: no limit)")
    for name in ("block_frames", "max_question_tokens", "max_answer_tokens"):
        default = getattr(memory, name)
        add(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N", help=f"memory.{name} ({default})")
    quantized = QuantizedSettings()
    add("--quantized", action="store_true", help="plan the precision quantized and compare it with a plain memory")
    add("--quantized-int8", type=float, default=quantized.int8, metavar="SHARE", help="quantized.int8 (%(default)g)")
    add("--quantized-int4", type=float, default=quantized.int4, metavar="SHARE", help="quantized.int4 (%(default)g)")
    add("--quantized-group", type=int, default=quantized.group, metavar="N", help="quantized.group (%(default)s)")
    add("--quantized-order", default=quantized.order, metavar="ORDER", help="quantized.order (%(default)s)")
    saliency = SaliencySettings()
    add("--saliency", type=Path, metavar="IMAGE", help="instead: draw which patches of this picture would be left out")
    add("--output", type=Path, default=Path("saliency.png"), metavar="PNG", help="picture to write (%(default)s)")
    add("--threshold", type=float, default=saliency.threshold, metavar="N", help="saliency.threshold (%(default)g)")
    add("--guard", type=int, default=saliency.guard, metavar="N", help="saliency.guard (%(default)s)")
    add("--max-pruned", type=float, default=saliency.max_pruned, metavar="N", help="saliency.max_pruned (%(default)g)")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Plan the budget; raises BudgetError that names the smallest one when it is too small."""
    require_finite("--fps", options.fps, 0.001, 1000.0)
    memory = MemorySettings(
        budget_mib=options.budget_mib,
        block_frames=options.block_frames,
        max_question_tokens=options.max_question_tokens,
        max_answer_tokens=options.max_answer_tokens,
    )
    settings = ModelSettings(options.model, dtype=options.dtype, max_frame_pixels=options.max_frame_pixels)
    with console.status(f"Reading the configuration of {options.model}"):
        from ros_kvstream.models.loading import describe_model

        model = describe_model(settings)
    if options.saliency is not None:
        patches = SaliencySettings("prune", options.threshold, options.guard, options.max_pruned)
        return saliency_report(model, options.saliency, options.output, patches)
    quantized = QuantizedSettings(
        "on" if options.quantized else "off", options.quantized_int8, options.quantized_int4, options.quantized_group,
        options.quantized_order,
    )  # fmt: skip
    return budget_report(model, memory, options.frame, options.fps, quantized)


def saliency_report(
    model: VideoLanguageModel, picture: Path, output: Path, settings: SaliencySettings
) -> dict[str, Any]:
    """Draw a picture's saliency on the model's own patch grid; raises FrameError for what is no picture."""
    import cv2

    from ros_kvstream.errors import FrameError
    from ros_kvstream.vision.saliency import write_overlay

    pixels = cv2.imread(str(picture))
    if pixels is None:
        raise FrameError(f"--saliency {picture}: there is no picture that can be read")
    rows, columns = model.grid(*pixels.shape[:2])
    resized = rows * model.patch_side, columns * model.patch_side
    return {"output": str(output), "saliency": write_overlay(picture, output, settings, (rows, columns), resized)}


def plan_memory(
    model: VideoLanguageModel, memory: MemorySettings, frame_tokens: int, quantized: QuantizedSettings | None = None
) -> BudgetPlan:
    """The plan that a VideoMemory with these settings makes for frames of this many tokens."""
    from ros_kvstream.memory.budget import plan_budget

    budget, reserve = int(memory.budget_mib * MIB), len(model.suffix_ids(""))
    room = {
        "pinned": len(model.prefix_ids),
        "reserve": reserve + memory.max_question_tokens + memory.max_answer_tokens,
        "frame_tokens": frame_tokens * memory.block_frames,
    }
    return plan_budget(model.shape, budget, quantized, **room)


def smallest_plan(plan: BudgetPlan, block: int, quantized: QuantizedSettings | None) -> int:
    """Bytes of the smallest budget that works in place of this plan's, for blocks of this many tokens."""
    from ros_kvstream.memory.budget import smallest_budget

    return smallest_budget(plan.shape, plan.pinned_slots, plan.reserve_slots, 2 * block, quantized)


def quantized_report(model: VideoLanguageModel, memory: MemorySettings, plan: BudgetPlan, tokens: int) -> dict[str, Any]:
    """The steps of a quantized's plan, and a plain memory of the same bytes beside it; empty for a plain plan."""
    from ros_kvstream.errors import BudgetError

    if not plan.quantized:
        return {}
    try:
        plain = plan_memory(model, memory, tokens).frame_slots
    except BudgetError:
        plain = 0
    slots = {"full": plan.full_frame_slots, "int8": plan.int8_slots, "int4": plan.int4_slots}
    row = {"full": plan.shape.token_bytes, "int8": plan.packed_slot_bytes(8), "int4": plan.packed_slot_bytes(4)}
    return {"quantized": {
        "slots": slots, "bytes_per_slot": row, "scale_bytes": plan.scale_bytes, "group": plan.group,
        "plain_frame_slots": plain,
        "slots_ratio": plan.frame_slots / plain if plain else None,
    }}  # fmt: skip


def budget_report(
    model: VideoLanguageModel, memory: MemorySettings, frame: tuple[int, int], fps: float,
    quantized: QuantizedSettings | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The report of ``kvstream inspect`` as one JSON object."""
    width, height = frame
    try:
        rows, columns = model.grid(height, width)
    except ValueError as error:
        raise SettingsError(f"--frame {width}x{height}: the model cannot take it: {error}") from error
    tokens = model.frame_tokens(rows, columns)
    plan = plan_memory(model, memory, tokens, quantized)
    smallest = smallest_plan(plan, tokens * memory.block_frames, quantized)
    frames = plan.frame_slots // tokens
    shape = model.shape
    return {
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
        "fps": fps,
        "frames": frames,
        "seconds": frames / fps,
        **quantized_report(model, memory, plan, tokens),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report for people."""
    if "saliency" in report:
        figures = report["saliency"]
        console.print(
            f"{figures['rows']:.0f} x {figures['columns']:.0f} patches, saliency {figures['least']:.1f} to "
            f"{figures['greatest']:.1f} grey levels; {figures['kept_share']:.0%} would be prefilled. "
            f"Drawn in {report['output']}."
        )
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    cache, frame, slots = report["cache"], report["frame"], report["slots"]
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
        f"{frame['tokens']} slots: room for [bold]{report['frames']:,} whole frames[/], at {report['fps']:g} a second "
        f"[bold]{duration(report['seconds'])}[/].\nFrom then on the policy chooses what stays of them. "
        f"Smallest budget that works here: {size(report['smallest_budget_bytes'])}."
    )


def show_quantized(quantized: dict[str, Any], dtype: str, console: Console) -> None:
    """Print the steps of the quantized below the number of frame slots."""
    for step, count in quantized["slots"].items():
        name = f"in {dtype if step == 'full' else step}"
        console.print(f"    {name:<26}{count:>9,}   {size(quantized['bytes_per_slot'][step])} of keys and values each")
    console.print(f"  scales and zero points of groups of {quantized['group']} channels: {size(quantized['scale_bytes'])}")
    plain, ratio = quantized["plain_frame_slots"], quantized["slots_ratio"]
    gain = f"[bold]{ratio:.2f} times[/] the {plain:,} frame slots" if ratio else "more than the frame slots"
    console.print(f"  {gain} of a plain memory of the same bytes")


def size(count: float) -> str:
    """Bytes in the unit that reads best."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} GiB"


def duration(seconds: float) -> str:
    """Seconds in words that read well."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"
