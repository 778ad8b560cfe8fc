"""LongVideoBench, validation split (arXiv 2407.15754), without subtitles: lvb_val.json beside videos/*.mp4.

Entries: id, video_id, video_path, question, candidates, correct_choice (an index), duration, duration_group (15, 60,
600, 3600), question_category, topic_category, level. Reported: overall, by duration group, by category and level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

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

GROUPS = {"15": "8-15 s", "60": "15-60 s", "600": "180-600 s", "3600": "900-3600 s"}
INSTRUCTION = "Answer with the option's letter from the given choices directly."


def read(folder: Path, reading: Reading) -> Callable[[str], Path | None]:
    """Fill the reading from lvb_val.json."""
    unanswered = 0
    for index, entry in enumerate(read_json(folder / "lvb_val.json", reading) or ()):
        where = f"lvb_val.json, entry {index}"
        name, video, question, candidates = take(entry, ("id", "video_path", "question", "candidates"), where)
        if "correct_choice" not in entry:
            unanswered += 1
            continue
        prompt = "\n".join([f"Question: {question}", *lettered(candidates), INSTRUCTION])
        tags = (
            ("duration_group", GROUPS.get(str(entry.get("duration_group", "")), str(entry.get("duration_group", "")))),
            ("level", str(entry.get("level", ""))),
        )
        expected = right_choice(int(entry["correct_choice"]), candidates, "letter", where)
        task = str(entry.get("question_category", ""))
        reading.items.append(Item(str(name), str(video), prompt, expected, task, tags=tags))
    if unanswered:
        reading.notes.append(f"{unanswered} questions have no published answer: left out.")
    return video_finder([folder / "videos", folder])


def score(lines: Sequence[Line]) -> list[Score]:
    """Overall, by duration group, level and category."""
    overall = mean(lines, "Overall")
    split = [by_tag(lines, "duration_group", tuple(GROUPS.values())), by_tag(lines, "level"), by_tag(lines, "task")]
    return [*([overall] if overall else []), *(score for scores in split for score in scores)]
