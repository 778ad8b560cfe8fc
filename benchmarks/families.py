# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark families`: bytes and tokens of a frame, and frames in a budget, for every supported model.

Computed from configs (published_configs/*.json), without weights or network. Parameters are counted on torch's meta
device with transformers' classes; tokens per frame come from the family's file under models/.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from ros_kvstream.commands.inspect import frame_size, plan_memory, size
from ros_kvstream.errors import BudgetError
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.loading import describe_model
from ros_kvstream.models.weight_memory import count_parameters
from ros_kvstream.settings import MemorySettings, ModelSettings

CONFIGS = Path(__file__).parent / "published_configs"
BUDGETS_MIB = {"frames_in_256_mib": 256.0, "frames_in_1_gib": 1024.0}
DTYPE = "bfloat16"
"""Data type that all of them are published in."""
WORDS = r"\n|[0-9]|[A-Za-z]+|[^\sA-Za-z0-9]"
"""Tokens of the stand-in tokenizer: words, single digits, single signs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    families = sorted(path.stem for path in CONFIGS.glob("*.json"))
    parser.add_argument("--frame", type=frame_size, default=(640, 480), metavar="WxH", help="picture size (640x480)")
    parser.add_argument("--family", choices=families, help="only this one")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Compute all models; returns the object of ``--json``."""
    report: dict[str, Any] = {}
    for path in sorted(CONFIGS.glob("*.json")):
        if options.family in (None, path.stem):
            with console.status(f"Reading the configs of {path.stem}"):
                report[path.stem] = family_report(path, options.frame)
    return report


def family_report(path: Path, frame: tuple[int, int]) -> dict[str, Any]:
    """Figures of one family's models, from its file of published configs; ``frame``: width and height in pixels."""
    published = json.loads(path.read_text())
    models = {}
    for name, folder in model_folders(published):
        model = describe_model(ModelSettings(path=str(folder), device="cpu", dtype=DTYPE))
        given = published["models"][name]
        models[name] = {
            **model_report(model, frame),
            "published_parameters": given["published_parameters"],
            "unconfirmed": given["unconfirmed"],
        }
    return {"frame": {"width": frame[0], "height": frame[1]}, "models": models}


def model_folders(published: dict[str, Any]) -> Iterator[tuple[str, Path]]:
    """Write each model of a family to a temporary folder: config, preprocessor, and a stand-in tokenizer.

    The stand-in has the family's special tokens and one token per word: texts take about as many tokens as with the
    real one, pictures exactly as many. Placeholders in the config get the stand-in's ids.
    """
    for name, given in published["models"].items():
        with tempfile.TemporaryDirectory() as folder:
            path, tokenizer = Path(folder), _tokenizer(published["special_tokens"], published.get("chat_template"))
            ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in published["placeholders"].items()}
            (path / "config.json").write_text(json.dumps({**given["config"], **ids, "dtype": DTYPE}))
            (path / "preprocessor_config.json").write_text(json.dumps(published["preprocessor_config"]))
            tokenizer.save_pretrained(path)
            yield name, path


def _tokenizer(special: list[str], template: str | None) -> Any:
    vocabulary = {token: index for index, token in enumerate(["<unk>", *special])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": special})
    fast.chat_template = template
    return fast


def model_report(model: VideoLanguageModel, frame: tuple[int, int]) -> dict[str, Any]:
    """Figures of one model; a budget below its minimum holds 0 frames."""
    rows, columns = model.grid(frame[1], frame[0])
    tokens = model.frame_tokens(rows, columns)
    figures: dict[str, Any] = {
        "parameters": count_parameters(model.network),  # type: ignore[attr-defined]
        "bytes_per_token": model.shape.token_bytes,
        "slot_bytes": model.shape.slot_bytes,
        "rows": rows,
        "columns": columns,
        "tokens_per_frame": tokens,
        "position_limit": model.position_limit,
    }
    for name, budget in BUDGETS_MIB.items():
        try:
            figures[name] = plan_memory(model, MemorySettings(budget_mib=budget), tokens).frame_slots // tokens
        except BudgetError:
            figures[name] = 0
    return figures


COLUMNS = ("model", "parameters", "a token", "tokens a frame", "a frame", "256 MiB", "1 GiB")


def rows_of(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table's rows, families by name, models as published."""
    return [
        (
            name.split("/")[-1] + ("*" if figures["unconfirmed"] else ""),
            f"{figures['parameters'] / 1e9:.2f} B",
            size(figures["bytes_per_token"]),
            f"{figures['tokens_per_frame']}",
            size(figures["bytes_per_token"] * figures["tokens_per_frame"]),
            f"{figures['frames_in_256_mib']:,}",
            f"{figures['frames_in_1_gib']:,}",
        )
        for family in report.values()
        for name, figures in family["models"].items()
    ]


def markdown(report: dict[str, Any]) -> str:
    """The table of docs/models.md."""
    lines = [COLUMNS, ("---",) + ("--:",) * (len(COLUMNS) - 1), *rows_of(report)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def show(report: dict[str, Any], console: Console) -> None:
    """Print one table."""
    width, height = (next(iter(report.values()))["frame"][side] for side in ("width", "height"))
    title = f"Frames of {width} x {height} pixels, {DTYPE}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    rows = rows_of(report)
    headings = [column.replace("a frame", "\na frame") for column in COLUMNS]
    widths = [max(map(len, (*heading.split("\n"), *(cells[index] for cells in rows))))
              for index, heading in enumerate(headings)]  # fmt: skip
    room = console.width - sum(widths[1:]) - 2 * len(widths)
    for index, heading in enumerate(headings):  # on a narrow terminal the model's name wraps, figures do not
        width = min(widths[0], room) if index == 0 else widths[index]
        table.add_column(heading, justify="right" if index else "left", no_wrap=index > 0, overflow="fold",
                         min_width=width, max_width=width)  # fmt: skip
    for cells in rows:
        table.add_row(*cells)
    console.print(table)
    console.print("* something of its config could not be confirmed, see docs/models.md")
