# SPDX-License-Identifier: Apache-2.0
"""The node under cameras, for some seconds, with a random model; how threads and values are summed up."""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks import node as node_benchmark
from benchmarks.node_load import (
    OUTSIDE_MODEL,
    PARTS,
    Meter,
    Recording,
    frame_cost,
    percentiles,
    processor_shares,
)
from ros_kvstream.errors import SettingsError
from ros_kvstream.node.worker import THREAD_NAME


def options(**changes: Any) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    node_benchmark.add_arguments(parser)
    return argparse.Namespace(**{**vars(parser.parse_args([])), **changes})


def test_frames_answers_and_processor_time_of_a_running_node_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.model_folders import save_random_model

    monkeypatch.setattr(node_benchmark, "COSTED_FRAMES", 20)
    monkeypatch.setenv(node_benchmark.PROFILES, str(node_benchmark.fastdds_profiles()))
    model = str(save_random_model(tmp_path / "model"))
    report = node_benchmark.run(options(cameras=[1], seconds=4.0, rate=10.0, model=model), Console(quiet=True))
    row = report["cameras"]["1"]
    assert report["transport"] == "pictures"
    assert row["published_per_second"] > 0 and row["taken_per_second"] > 0
    assert row["age_ms"]["n"] > 0 and row["age_ms"]["p95"] >= row["age_ms"]["p50"] > 0
    assert row["answer_ms"]["n"] > 0 and row["answer_ms"]["p50"] > 0
    assert {"queue", "sequence_gap"} <= set(row["dropped"])
    assert row["cpu"]["worker"] > 0 and row["cpu"]["others"] > 0
    own = sum(report["frame_cost"][part] for part in OUTSIDE_MODEL) * row["taken_per_second"] / 10.0
    assert row["cpu"]["outside_model_per_camera"] == pytest.approx(row["cpu"]["others"] + own)
    console = Console(record=True, width=160)
    node_benchmark.show(report, console)
    assert "answer" in console.export_text()


def test_the_cost_of_a_frame_adds_up_part_by_part(tmp_path: Path) -> None:
    from support.model_folders import save_random_model

    cost = frame_cost(5, 30.0, str(save_random_model(tmp_path / "model")), 1.0)
    assert set(cost) == {*PARTS, "kept"} and 0 < cost["kept"] <= 1
    assert all(cost[part] > 0 for part in ("conversion", "gate", "resize", "vision tower", "prefill", "the rest"))


def test_a_recordings_pictures_come_in_the_size_asked_for_over_and_over() -> None:
    scene = Recording(Path(__file__).parents[1] / "data" / "yard", 10.0, most=3)
    first, second = scene.picture(0.0, 64, 48), scene.picture(0.1, 64, 48)
    assert first.shape == (48, 64, 3) and first.dtype == np.uint8 and (first != second).any()
    assert scene.picture(0.35, 64, 48) is first
    assert scene.picture(0.0, 32, 24).shape == (24, 32, 3)


def test_a_call_inside_another_counts_for_itself_alone() -> None:
    meter = Meter()
    inner = meter.wrap("inner", lambda: sum(range(300_000)))
    outer = meter.wrap("outer", lambda: [inner(), inner()])
    outer()
    assert meter.seconds["inner"] > 20 * meter.seconds["outer"]


@pytest.mark.parametrize("bad", [{"cameras": [0]}, {"seconds": 0.0}, {"rate": float("nan")}])
def test_a_load_that_cannot_be_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="--"):
        node_benchmark.run(options(**bad), Console(quiet=True))


def test_shares_are_of_what_was_used_in_between() -> None:
    before = {THREAD_NAME: 1.0, "python": 2.0, "dds": 0.5}
    after = {THREAD_NAME: 3.0, "python": 2.5, "dds": 0.5, "new": 0.25}
    shares = processor_shares(before, after, 4.0, 2)
    assert shares == {"worker": 0.5, "others": 0.1875, "others_per_camera": 0.09375}


def test_percentiles_have_the_middle_and_the_ninety_fifth_of_a_hundred() -> None:
    assert percentiles([float(value) for value in range(101)]) == {"p50": 50.0, "p95": 95.0, "n": 101}
    assert percentiles([]) == {"p50": 0.0, "p95": 0.0, "n": 0}


def test_the_transport_settings_have_room_for_two_large_pictures() -> None:
    found = node_benchmark.fastdds_profiles()
    assert found is not None
    sizes = [int(element.text or 0) for element in ElementTree.parse(found).iter() if element.tag.endswith("_size")]
    assert sizes and min(sizes) >= 2 * 3 * 1920 * 1080
