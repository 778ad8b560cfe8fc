"""`kvstream benchmark node`: how old the newest remembered frame is, and how long an answer takes, under load.

Starts the real node with the tiny model on this machine alone, with 1, 2 and 4 synthetic cameras of 640 x 480 at 30 Hz,
asks a question every other second, and tells ages, answer times, drops by cause and where the processor time goes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ros_kvstream.evaluation.processes import ProcessGroup, free_domain, require_ros, ros_environment
from ros_kvstream.settings import require_finite

CAMERAS = (1, 2, 4)
COSTED_FRAMES = 300
PROFILES = "FASTRTPS_DEFAULT_PROFILES_FILE"
"""Environment variable that names Fast DDS' settings; a set one is left alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--cameras", type=int, nargs="+", default=list(CAMERAS), help="numbers of cameras (1 2 4)")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured time of each, seconds (%(default)s)")
    parser.add_argument("--rate", type=float, default=30.0, help="frames per second of a camera (%(default)s)")
    parser.add_argument("--bag", type=Path, default=None,
                        help="recording whose pictures the cameras show (none: a drawn room)")  # fmt: skip
    parser.add_argument("--transport", choices=("pictures", "stock"), default="pictures",
                        help="Fast DDS as in config/fastdds_images.xml, or as it comes (%(default)s)")  # fmt: skip
    parser.add_argument("--model", default="tiny", help="tiny, or a folder or hub id (%(default)s)")
    parser.add_argument("--budget-mib", type=float, default=1.0, help="the memory's cap, MiB (%(default)s)")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure one number of cameras after the other; returns the report of ``--json``."""
    for count in options.cameras:
        require_finite("--cameras", count, 1, 32)
    require_finite("--seconds", options.seconds, 0.5, 3600.0)
    require_finite("--rate", options.rate, 0.1, 1000.0)
    require_ros()
    profiles = fastdds_profiles() if options.transport == "pictures" else None
    if profiles is not None:
        os.environ.setdefault(PROFILES, str(profiles))  # read when this process and the node's join DDS
    from benchmarks.frame_cost import OUTSIDE_MODEL, frame_cost
    from benchmarks.node_timing import Load, measure
    from ros_kvstream.commands.soak_cameras import Recording

    scene = Recording(options.bag, options.rate) if options.bag is not None else None
    with console.status("The worker's way of a frame, part by part"):
        cost = frame_cost(COSTED_FRAMES, options.rate, options.model, options.budget_mib, scene)
    outside = sum(cost[part] for part in OUTSIDE_MODEL) / options.rate
    rows = {}
    with tempfile.TemporaryDirectory() as logs:
        for count in options.cameras:
            load = Load(count, options.seconds, options.rate, options.model, options.budget_mib, scene)
            domain = free_domain()
            with ProcessGroup(Path(logs) / str(count), ros_environment(domain)) as processes, \
                    console.status(f"The node under {count} cameras, {options.seconds:g} s"):
                rows[str(count)] = measure(load, domain, processes, outside)
    transport = "stock" if PROFILES not in os.environ else "pictures"
    return {"transport": transport, "frame_cost": cost, "cameras": rows}


def fastdds_profiles() -> Path | None:
    """The file with Fast DDS' settings for pictures, in the source tree or where the package was installed."""
    folders = [Path(__file__).resolve().parents[1] / "config", Path(sys.prefix) / "share" / "ros_kvstream" / "config"]
    return next((found for place in folders if (found := place / "fastdds_images.xml").is_file()), None)


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report for people."""
    times = Table(title="The node under 640 x 480 cameras; ms, p50 / p95")
    shares = Table(title="Processor time, % of one core")
    for name in ("cameras", "frame age", "answer", "frames taken a second", "dropped"):
        times.add_column(name, justify="right", no_wrap=True)
    for name in ("cameras", "worker", "of it not model", "other threads", "not model, a camera"):
        shares.add_column(name, justify="right", no_wrap=True)
    for count, row in report["cameras"].items():
        age, answer, cpu = row["age_ms"], row["answer_ms"], row["cpu"]
        times.add_row(
            count, f"{age['p50']:.0f} / {age['p95']:.0f}", f"{answer['p50']:.0f} / {answer['p95']:.0f}",
            f"{row['taken_per_second']:.1f} of {row['published_per_second']:.1f}",
            ", ".join(f"{cause} {number}" for cause, number in row["dropped"].items() if number) or "none",
        )  # fmt: skip
        parts = [cpu[name] for name in ("worker", "worker_outside_model", "others", "outside_model_per_camera")]
        shares.add_row(count, *(f"{100 * share:.1f}" for share in parts))
    console.print(times)
    console.print(shares)
    console.print("Frame age: of the newest remembered frame, from its stamp. Worker: the thread that")
    console.print("converts frames and runs gate and model. Its parts under one camera, % of a core:")
    parts = [f"{part} {100 * share:.1f}" for part, share in report["frame_cost"].items() if part != "kept"]
    console.print(", ".join(parts))
