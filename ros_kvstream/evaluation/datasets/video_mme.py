"""Video-MME (arXiv 2405.21075), without subtitles: its JSON by video, or the rows of its table, beside data/*.mp4.

By video: video_id, duration (short | medium | long), domain, sub_category, questions (question_id, task_type,
question, options, answer). As rows (.json, .jsonl, or .parquet where pyarrow is installed) the same fields in one
object, with videoID. Reported: accuracy over what was answered: overall, by duration, domain and task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.datasets.common import (
    Item,
    Reading,
    Score,
    by_tag,
    lettered,
    mean,
    read_json,
    right_choice,
    take,
    video_finder,
)
from ros_kvstream.evaluation.summary import Line

DURATIONS = ("short", "medium", "long")
INSTRUCTION = (
    "Select the best answer to the following multiple-choice question based on the video. Respond with only the letter "
    "(A, B, C, or D) of the correct option."
)


def read(folder: Path, reading: Reading) -> Callable[[str], Path | None]:
    """Fill the reading from the first annotation file that is found."""
    files = [
        file for pattern in ("*.json", "*.jsonl", "videomme/*.json", "videomme/*.parquet", "*.parquet")
        for file in sorted(folder.glob(pattern))
    ]  # fmt: skip
    if not files:
        reading.notes.append("no .json, .jsonl or .parquet file with the questions is there.")
        return video_finder([folder])
    content = _rows_of_parquet(files[0]) if files[0].suffix == ".parquet" else read_json(files[0], reading)
    for index, entry in enumerate(content or ()):
        where = f"{files[0].name}, entry {index}"
        for question in entry.get("questions", [entry]) if isinstance(entry, Mapping) else [entry]:
            reading.items.append(_item(entry, question, where))
    roots = [folder / name for name in ("data", "videos", "video", "videomme/data", ".")]
    return video_finder(roots, by_stem=True)


def _item(entry: Mapping[str, Any], question: Mapping[str, Any], where: str) -> Item:
    video_id, duration, domain, sub_category = take(entry, ("video_id", "duration", "domain", "sub_category"), where)
    name, task, text, options, answer = take(
        question, ("question_id", "task_type", "question", "options", "answer"), where
    )
    video = str(entry.get("videoID") or _youtube_id(str(entry.get("url", ""))) or video_id)
    prompt = "\n".join([INSTRUCTION, text, *lettered(list(options)), "The best answer is:"])
    tags = (("duration", duration), ("domain", domain), ("sub_category", sub_category))
    return Item(name, video, prompt, right_choice(answer, list(options), "first_capital", where), task, tags=tags)


def _youtube_id(url: str) -> str:
    found = re.search(r"(?:v=|youtu\.be/)([\w-]{11})", url)
    return found[1] if found else ""


def _rows_of_parquet(path: Path) -> list[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise SettingsError(f"{path}: .parquet needs the package pyarrow; or write its rows as .jsonl") from error
    rows: list[Mapping[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def score(lines: Sequence[Line]) -> list[Score]:
    """Overall, then by duration, domain and task; an answer without a letter is left out, as the benchmark does it."""
    answered = [line for line in lines if line["answer"] is not None and re.search("[ABCD]", line["answer"])]
    overall = mean(answered, "Overall")
    split = [by_tag(answered, "duration", DURATIONS), by_tag(answered, "domain"), by_tag(answered, "task")]
    return [*([overall] if overall else []), *(score for scores in split for score in scores)]
