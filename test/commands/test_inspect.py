# SPDX-License-Identifier: Apache-2.0
"""``kvstream inspect``: the plan it prints is the plan that a memory makes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.model_folders import folder_without_weights

from ros_kvstream.commands.cli import main
from ros_kvstream.commands.inspect import duration, size
from ros_kvstream.settings import MemorySettings, ModelSettings, QuantizedSettings, StreamSettings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_without_weights(tmp_path_factory.mktemp("model"))


def inspected(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    assert main(["inspect", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_plan_is_the_one_that_a_memory_allocates(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ros_kvstream.stream.memory import VideoMemory

    report = inspected(capsys, model, "--budget-mib", 1.5, "--max-question-tokens", 32, "--max-answer-tokens", 16)
    memory = MemorySettings(budget_mib=1.5, max_question_tokens=32, max_answer_tokens=16)
    stats = VideoMemory(StreamSettings(ModelSettings(str(model)), memory)).stats()
    assert report["allocated_bytes"] == stats.allocated_bytes == sum(report["parts"].values())
    assert report["slots"]["frames"] == stats.slots
    assert report["budget_bytes"] == stats.budget_bytes >= report["allocated_bytes"]


def test_frames_and_seconds_follow_from_picture_and_rate(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = inspected(capsys, model, "--budget-mib", 2, "--frame", "56x56", "--fps", 2)
    fast = inspected(capsys, model, "--budget-mib", 2, "--frame", "56x56", "--fps", 8)
    assert slow["frame"]["tokens"] == slow["frame"]["rows"] * slow["frame"]["columns"] == 4
    assert slow["frames"] == fast["frames"] == slow["slots"]["frames"] // 4
    assert slow["seconds"] == 4 * fast["seconds"] == slow["frames"] / 2


def test_a_smaller_number_format_holds_more(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = inspected(capsys, model, "--budget-mib", 2)
    half = inspected(capsys, model, "--budget-mib", 2, "--dtype", "bfloat16")
    assert half["cache"]["bytes_per_token"] * 2 == full["cache"]["bytes_per_token"]
    assert half["frames"] > full["frames"]


def test_a_folder_without_weights_is_shown_as_untrained(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model), "--budget-mib", "2"]) == 0
    assert "untrained" in capsys.readouterr().out


@pytest.mark.parametrize("quantized", [(), ("--quantized",)])
def test_the_smallest_budget_works_and_one_byte_less_does_not(
    quantized: tuple[str, ...], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smallest = inspected(capsys, model, "--budget-mib", 4, *quantized)["smallest_budget_bytes"]
    assert inspected(capsys, model, "--budget-mib", smallest / 2**20, *quantized)["allocated_bytes"] <= smallest
    assert main(["inspect", str(model), "--budget-mib", str((smallest - 1) / 2**20), *quantized]) == 2
    assert "Set memory.budget_mib to at least" in capsys.readouterr().err


def test_the_quantized_plan_is_the_one_that_a_memory_allocates(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ros_kvstream.stream.memory import VideoMemory

    room = ["--budget-mib", 1.5, "--max-question-tokens", 32, "--max-answer-tokens", 16]
    quantized = ["--quantized", "--quantized-int8", 0.2, "--quantized-order", "recent"]
    report = inspected(capsys, model, *room, "--frame", "56x56", *quantized)
    memory = MemorySettings(budget_mib=1.5, max_question_tokens=32, max_answer_tokens=16)
    settings = QuantizedSettings("on", int8=0.2, order="recent")
    stream = VideoMemory(StreamSettings(ModelSettings(str(model)), memory, quantized=settings))
    stream.observe(np.zeros((56, 56, 3), np.uint8), 0.0)
    plan, steps = stream.arena.plan, report["quantized"]["slots"]
    assert report["allocated_bytes"] == stream.arena.allocated_bytes == sum(report["parts"].values())
    assert report["slots"]["frames"] == plan.frame_slots == sum(steps.values())
    assert steps == {"full": plan.full_frame_slots, "int8": plan.int8_slots, "int4": plan.int4_slots}
    tensors = stream.arena.state_dict()["tensors"]
    scales = sum(tensor.nbytes for name, tensor in tensors.items() if name.endswith(("scales", "zeros")))
    assert report["quantized"]["scale_bytes"] == scales > 0
    plain = inspected(capsys, model, *room, "--frame", "56x56")
    assert "quantized" not in plain and report["quantized"]["plain_frame_slots"] == plain["slots"]["frames"]
    assert report["quantized"]["slots_ratio"] == pytest.approx(report["slots"]["frames"] / plain["slots"]["frames"])


def test_the_precisions_are_shown_with_the_gain_in_slots(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model), "--budget-mib", "4", "--frame", "56x56", "--quantized"]) == 0
    said = capsys.readouterr().out
    assert "in int8" in said and "in int4" in said and "times" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["MODEL", "--quantized", "--quantized-int8", "0.9"], "quantized.int8 + quantized.int4"),
        (["MODEL", "--quantized-order", "size"], "quantized.order"),
        (["/no/such/folder"], "/no/such/folder"),
        (["MODEL", "--fps", "0"], "--fps"),
        (["MODEL", "--dtype", "int3"], "int3"),
        (["MODEL", "--budget-mib", "nan"], "memory.budget_mib"),
        (["MODEL", "--frame", "9000x1"], "--frame 9000x1"),
    ],
)
def test_invalid_input_is_rejected_by_name(
    arguments: list[str], said: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", *(str(model) if word == "MODEL" else word for word in arguments)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("frame", ["640", "0x480", "640x", "axb", "99999x10"])
def test_an_invalid_picture_size_is_rejected(frame: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "--frame", frame])
    assert ended.value.code == 2
    assert frame in capsys.readouterr().err


def test_an_unsupported_family_is_rejected_with_the_supported_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert main(["inspect", str(tmp_path)]) == 2
    assert "bert" in (said := capsys.readouterr().err) and "qwen2_5_vl" in said


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3 GiB")])
def test_sizes_have_suitable_units(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(12.5, "12.5 s"), (600.0, "10 min 0 s"), (9000.0, "2 h 30 min")])
def test_durations_have_suitable_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_saliency_is_drawn_on_the_models_own_grid(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import cv2
    import numpy as np

    picture = np.full((168, 224, 3), 100, np.uint8)
    picture[60:90, 60:90] = (0, 0, 255)
    cv2.imwrite(str(tmp_path / "in.png"), picture)
    report = inspected(capsys, model, "--max-frame-pixels", 224 * 168, "--saliency", tmp_path / "in.png", "--output",
                       tmp_path / "out.png", "--max-pruned", 0.9)  # fmt: skip
    assert (report["saliency"]["rows"], report["saliency"]["columns"]) == (6, 8)
    assert 0.1 <= report["saliency"]["kept_share"] < 0.6
    assert cv2.imread(str(tmp_path / "out.png")) is not None


def test_a_file_that_is_no_picture_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model), "--saliency", str(tmp_path / "missing.png")]) == 2
    assert "missing.png" in capsys.readouterr().err
