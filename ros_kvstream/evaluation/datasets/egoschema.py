"""EgoSchema (arXiv 2308.09126): questions.json and subset_answers.json beside videos/Q_UID.mp4.

Entries of the first: q_uid, question, "option 0" to "option 4"; the second is q_uid -> index for the 500 questions
whose answers are published. Reported: accuracy on this subset; the others are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ros_kvstream.evaluation.datasets.common import (
    Item,
    Reading,
    Score,
    lettered,
    mean,
    read_json,
    right_choice,
    take,
    video_finder,
)
from ros_kvstream.evaluation.summary import Line

OPTIONS = [f"option {index}" for index in range(5)]
INSTRUCTION = "Answer with the option's letter from the given choices directly."


def read(folder: Path, reading: Reading) -> Callable[[str], Path | None]:
    """Fill the reading from both files."""
    answers = read_json(folder / "subset_answers.json", reading) or {}
    entries = read_json(folder / "questions.json", reading) or ()
    unanswered = 0
    for index, entry in enumerate(entries):
        where = f"questions.json, entry {index}"
        uid, question, *options = take(entry, ("q_uid", "question", *OPTIONS), where)
        if uid not in answers:
            unanswered += 1
            continue
        prompt = "\n".join([question, *lettered(options), INSTRUCTION])
        expected = right_choice(int(answers[uid]), options, "letter", where)
        reading.items.append(Item(uid, uid, prompt, expected, "subset"))
    if unanswered:
        reading.notes.append(f"{unanswered} questions have no published answer: left out.")
    return video_finder([folder / "videos", folder / "good_clips_git", folder], by_stem=True)


def score(lines: Sequence[Line]) -> list[Score]:
    """Accuracy on the subset."""
    subset = mean(lines, "Subset")
    return [subset] if subset else []
