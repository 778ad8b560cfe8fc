# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark range`: the span varies, the frames do not, and the limit follows from the figures."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from support.tiny_models import cheap_vision, qwen2_5_vl

from benchmarks import range as range_benchmark
from benchmarks.accuracy import make_stream
from benchmarks.range import full_cache_lines, largest_span, limit_of
from ros_kvstream.models.loading import TINY_FOLDER
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.stream.memory import VideoMemory


@pytest.mark.parametrize(("by_span", "limit"), [
    ({100: 1.0, 200: 0.995, 400: 0.98, 800: 1.0}, 200),
    ({100: 0.9, 200: 0.95, 400: 0.945}, 400),
    ({100: 0.9}, 100),
], ids=["ends at the first loss", "never lost", "one span"])  # fmt: skip
def test_the_limit_is_the_last_span_before_accuracy_is_lost(by_span: dict[int, float], limit: int) -> None:
    assert limit_of(by_span) == limit


@pytest.mark.parametrize("per_second", [2.0, 0.0])
def test_frames_are_spread_over_the_span(per_second: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = cheap_vision(qwen2_5_vl(layers=1, limit=4096))
    model.tokens_per_second = per_second
    stream = make_stream(PatrolWorld(PatrolSettings(frames=8)), 1)
    seen = []

    def look(memory: VideoMemory, _: object) -> list[object]:
        seen.append(memory.arena.frame_slots(0).positions[0, :, 0].unique().tolist())
        return []

    monkeypatch.setattr(range_benchmark, "ask_all", look)
    for span in (70, 3500):
        assert full_cache_lines(model, stream, span) == []
    for positions, span in zip(seen, (70, 3500), strict=True):
        assert len(positions) == 8
        assert positions[-1] - positions[0] == pytest.approx(span, abs=span / 7)
    assert largest_span(model) < 4096


def test_the_limit_is_stored_where_auto_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY_FOLDER, folder)
    monkeypatch.setattr(range_benchmark, "FRAMES", 8)
    monkeypatch.setattr(range_benchmark, "RATIO", 64.0)
    options = argparse.Namespace(model=str(folder), streams=1, questions=4, write=True)
    report = range_benchmark.run(options, Console(quiet=True))
    assert set(report) >= {"limit", "by_span"} and json.dumps(report)
    assert json.loads((folder / "kvstream.json").read_text()) == {"position_limit": report["limit"]}
    assert range_benchmark.load(str(folder)).position_range.limit == report["limit"]
    assert [float(seconds) for seconds in report["by_span"]] == sorted(map(float, report["by_span"]))
