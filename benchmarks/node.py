# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark node`: age of the newest remembered frame and answer time of a node under cameras.

Starts the node with the tiny model on this machine, with 1, 2 and 4 synthetic cameras of 640 x 480 at 30 Hz, asks a
question every two seconds, and reports ages, answer times, drops by cause and processor time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import figures_table
from ros_kvstream.evaluation.processes import ProcessGroup, free_domain, require_ros, ros_environment
from ros_kvstream.settings import require_finite

CAMERAS = (1, 2, 4)
COSTED_FRAMES = 300
PROFILES = "FASTRTPS_DEFAULT_PROFILES_FILE"
"""Environment variable that names Fast DDS' settings; a value that is set already stays."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--cameras", type=int, nargs="+", default=list(CAMERAS), help="numbers of cameras (1 2 4)")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured time of each, seconds (%(default)s)")
    parser.add_argument("--rate", type=float, default=30.0, help="frames per second of a camera (%(default)s)")
    parser.add_argument("--bag", type=Path, default=None,
                        help="recording whose pictures the cameras show (none: a drawn room)")  # fmt: skip
    parser.add_argument("--transport", choices=("pictures", "stock"), default="pictures",
                        help="Fast DDS as in config/fastdds_images.xml, or its defaults (%(default)s)")  # fmt: skip
    parser.add_argument("--model", default="tiny", help="tiny, or a folder or hub id (%(default)s)")
    parser.add_argument("--budget-mib", type=float, default=1.0, help="the memory's cap, MiB (%(default)s)")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure one number of cameras after the other; returns the object of ``--json``."""
    for count in options.cameras:
        require_finite("--cameras", count, 1, 32)
    require_finite("--seconds", options.seconds, 0.5, 3600.0)
    require_finite("--rate", options.rate, 0.1, 1000.0)
    require_ros()
    profiles = fastdds_profiles() if options.transport == "pictures" else None
    if profiles is not None:
        os.environ.setdefault(PROFILES, str(profiles))  # read when this process and the node's join DDS
    from benchmarks.node_load import OUTSIDE_MODEL, Load, Recording, frame_cost, measure

    scene = Recording(options.bag, options.rate) if options.bag is not None else None
    with console.status("The worker's time for a frame, part by part"):
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
    """File with Fast DDS' settings for pictures, in the source tree or in the installed package."""
    folders = [Path(__file__).resolve().parents[1] / "config", Path(sys.prefix) / "share" / "ros_kvstream" / "config"]
    return next((found for folder in folders if (found := folder / "fastdds_images.xml").is_file()), None)


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report for people."""
    times, shares = [], []
    for count, row in report["cameras"].items():
        age, answer, cpu = row["age_ms"], row["answer_ms"], row["cpu"]
        times.append((
            count, f"{age['p50']:.0f} / {age['p95']:.0f}", f"{answer['p50']:.0f} / {answer['p95']:.0f}",
            f"{answer['unanswered']} of {answer['n'] + answer['unanswered']}",
            f"{row['taken_per_second']:.1f} of {row['published_per_second']:.1f}",
            ", ".join(f"{cause} {number}" for cause, number in row["dropped"].items() if number) or "none",
        ))  # fmt: skip
        parts = [cpu[name] for name in ("worker", "worker_outside_model", "others", "outside_model_per_camera")]
        shares.append((count, *(f"{100 * share:.1f}" for share in parts)))
    console.print(figures_table(
        "The node under 640 x 480 cameras; ms, p50 / p95",
        ("cameras", "frame age", "answer", "unanswered", "taken per second", "dropped"), times,
    ))  # fmt: skip
    console.print(figures_table("Processor time, % of one core",
                                ("cameras", "worker", "of it not model", "other threads", "not model, per camera"),
                                shares))  # fmt: skip
    console.print("Frame age: of the newest remembered frame, from its stamp. Worker: the thread that")
    console.print("converts frames and runs gate and model. Its parts under one camera, % of a core:")
    costs = [f"{part} {100 * share:.1f}" for part, share in report["frame_cost"].items() if part != "kept"]
    console.print(", ".join(costs))
