# SPDX-License-Identifier: Apache-2.0
"""A minute of soak with a random model: no failure; and every kind of failure is reported."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ros_kvstream.commands import soak
from ros_kvstream.commands.soak import Fault, all_faults
from ros_kvstream.errors import KvStreamError, SettingsError

BUDGET = 0.6
"""MiB; full within the first half minute."""


def options(folder: Path, **changes: Any) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    soak.add_arguments(parser)
    given = {"minutes": 1.0, "budget_mib": BUDGET, "output": folder, **changes}
    return argparse.Namespace(**{**vars(parser.parse_args([])), **given})


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from support.model_folders import save_random_model

    folder = tmp_path_factory.mktemp("soak")
    return soak.run(options(folder, model=str(save_random_model(folder / "model"))), Console(quiet=True))


def test_a_minute_passes_without_a_failure_and_every_fault_is_survived(report: dict[str, Any]) -> None:
    assert report["failures"] == []
    assert set(report["faults"]) == {fault.name for fault in all_faults()}
    counts = report["faults"].values()
    assert all(count["injected"] == count["survived"] for count in counts)
    assert sum(count["injected"] for count in counts) >= 5


def test_frames_and_questions_are_accounted_for(report: dict[str, Any]) -> None:
    frames, questions = report["frames"], report["questions"]
    assert frames["published"] == frames["seen"] + sum(frames["dropped"].values())
    assert frames["seen"] == frames["kept"] + frames["gated"] > 50 and frames["dropped"]["encoding"] > 0
    assert questions["asked"] == questions["answered"] + questions["refused"]
    assert questions["answered"] > 0 < questions["refused"]
    assert 0 < report["memory"]["peak_bytes"] <= report["memory"]["budget_bytes"] == int(BUDGET * 2**20)


def test_the_executor_metrics_are_reported(report: dict[str, Any]) -> None:
    assert set(report["executor"]) == {"executor_lateness_ms", "image_callback_ms"}
    for figures in report["executor"].values():
        assert 0 <= figures["p50"] <= figures["p95"] <= figures["max"]


def test_every_failure_is_reported() -> None:
    fault = Fault("cut short", lambda _: None, injected=1, failures=["no frames were taken within 30 s"])
    ran = SimpleNamespace(faults=[fault], unexpected=["busy"], asked=5, answered=3, refused=1, peak_bytes=2 << 20,
                          process_bytes=[(45.0, 1000), (100.0, 1050)], passed=100.0,
                          executor={"image callback ms": {"p50": 0.1, "p95": 0.2, "max": 0.3}})
    stats = SimpleNamespace(drop_causes=["queue"], drop_counts=[1], frames_published=9, frames_seen=3, frames_kept=3,
                            frames_gated=0, queue_length=0)
    found = soak.report_of(soak.SoakSettings(budget_mib=1.0), ran, stats)
    for part in ("cut short: no frames", "question: busy", "questions lost: 1", "budget exceeded", "grew by 5.0 %",
                 "not accounted for"):
        assert any(part in failure for failure in found["failures"]), part
    with pytest.raises(KvStreamError, match="6 checks failed"):
        soak.show(found, Console(quiet=True))


@pytest.mark.parametrize("seconds", [60, 240, 1200])
@pytest.mark.parametrize(("leak", "found"), [(0.0, False), (0.1, True)])
def test_a_leak_is_distinguished_from_the_effect_of_a_round_of_faults(seconds: int, leak: float, found: bool) -> None:
    round_seconds = int(soak.FAULT_SECONDS * len(all_faults()))

    def size(at: float) -> int:
        large = seconds >= 240 and at % round_seconds < 0.3 * round_seconds  # such as larger pictures
        return round(5e8 * (1 + leak * at / seconds + 0.08 * large))

    sizes = [(at / 2, size(at / 2)) for at in range(2 * seconds)]
    assert (soak.process_growth(sizes, float(seconds), round_seconds) > soak.GROWTH_LIMIT) == found


@pytest.mark.parametrize(("option", "value"), [
    *(("minutes", value) for value in (0.0, -1.0, float("nan"))),
    *(("raw_size", value) for value in ("big", "1920", "0x0", "1920x1080x3")),
])  # fmt: skip
def test_an_invalid_option_is_rejected_by_name(option: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--" + option.replace("_", "-")):
        soak.run(options(tmp_path, **{option: value}), Console(quiet=True))
