# SPDX-License-Identifier: Apache-2.0
"""The table of families: published figures are met exactly, and arithmetic holds for each model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import families as families_benchmark
from benchmarks.families import CONFIGS, markdown, run, show
from ros_kvstream.models.families import FAMILIES

PUBLISHED_BYTES = {
    "Qwen/Qwen2-VL-7B-Instruct": 57_344,
    "Qwen/Qwen2.5-VL-7B-Instruct": 57_344,
    "Qwen/Qwen2.5-VL-3B-Instruct": 36_864,
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": 12_288,
    "Qwen/Qwen3-VL-8B-Instruct": 147_456,
}
"""Bytes per token that papers and repositories state for these."""
PUBLISHED_TOKENS = {
    "llava-hf/LLaVA-NeXT-Video-7B-hf": 144,
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": 196,
    "llava-hf/llava-v1.6-mistral-7b-hf": 576 + 1,
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": 64 + 12,
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct": 81 + 12,
    "Qwen/Qwen2.5-VL-7B-Instruct": 17 * 23,
}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return run(argparse.Namespace(frame=(640, 480), family=None), Console(quiet=True))


@pytest.fixture(scope="module")
def models(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: figures for family in report.values() for name, figures in family["models"].items()}


def test_every_supported_family_has_its_published_configs(report: dict[str, Any]) -> None:
    assert set(report) == set(FAMILIES) == {path.stem for path in CONFIGS.glob("*.json")}
    assert all(len(family["models"]) >= 2 for family in report.values())


def test_parameters_are_those_that_were_published(models: dict[str, dict[str, Any]]) -> None:
    known = {name: figures for name, figures in models.items() if figures["published_parameters"]}
    assert len(known) >= 12
    assert {name: figures["parameters"] for name, figures in known.items()} == {
        name: figures["published_parameters"] for name, figures in known.items()
    }


def test_what_is_not_confirmed_is_said(models: dict[str, dict[str, Any]]) -> None:
    for name, figures in models.items():
        if not figures["published_parameters"] and "500M" not in name:
            assert figures["unconfirmed"], name


def test_bytes_per_token_and_tokens_per_frame_are_the_known_ones(models: dict[str, dict[str, Any]]) -> None:
    assert {name: models[name]["bytes_per_token"] for name in PUBLISHED_BYTES} == PUBLISHED_BYTES
    assert {name: models[name]["tokens_per_frame"] for name in PUBLISHED_TOKENS} == PUBLISHED_TOKENS


def test_frames_that_fit_take_no_more_than_the_budget(models: dict[str, dict[str, Any]]) -> None:
    for name, figures in models.items():
        for key, budget in (("frames_in_256_mib", 256 << 20), ("frames_in_1_gib", 1 << 30)):
            assert figures[key] * figures["tokens_per_frame"] * figures["slot_bytes"] <= budget, name
    assert all(figures["frames_in_1_gib"] >= 2 for figures in models.values())
    assert models["Qwen/Qwen2-VL-72B-Instruct"]["frames_in_256_mib"] == 0


def test_one_family_can_be_chosen_and_its_larger_pictures_take_more_tokens(models: dict[str, dict[str, Any]]) -> None:
    parser = argparse.ArgumentParser()
    families_benchmark.add_arguments(parser)
    large = run(parser.parse_args(["--family", "qwen2_vl", "--frame", "1280x960"]), Console(quiet=True))
    assert list(large) == ["qwen2_vl"] and large["qwen2_vl"]["frame"] == {"width": 1280, "height": 960}
    name = "Qwen/Qwen2-VL-2B-Instruct"
    assert large["qwen2_vl"]["models"][name]["tokens_per_frame"] == 4 * models[name]["tokens_per_frame"]


def test_the_report_is_json_and_can_be_shown(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    console = Console(record=True, width=120, quiet=False)
    with console.capture() as shown:
        show(report, console)
    assert "Qwen2.5-VL-7B-Instruct" in shown.get() and "640 x 480" in shown.get()


def test_the_table_in_the_documentation_is_the_one_that_is_computed(report: dict[str, Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert markdown(report) in page
