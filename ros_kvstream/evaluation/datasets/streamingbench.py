"""StreamingBench (arXiv 2411.03628): questions_{real,omni,sqa}.json, each a list of parts of videos.

A part: video_path, time, video_categories, questions (task_type, question, time_stamp "HH:MM:SS", options, answer (a
letter), required_ability). Every question is asked at its time stamp. A sequential question (sqa) is told of the
questions before it about the same part, with their right answers. Reported: accuracy by task, and of each group over
all of its questions. Proactive output, where the model itself chooses the moment, is left out; sound is not heard.
"""

from __future__ import annotations

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

GROUPS = {
    "real": "Real-Time Visual Understanding", "omni": "Omni-Source Understanding", "sqa": "Contextual Understanding"
}  # fmt: skip
INSTRUCTION = (
    "You are an advanced video question-answering AI assistant. You have been provided with {what} and a "
    "multiple-choice question related to the video. Your task is to carefully analyze the video and {task}, choosing "
    "from the four options provided. Respond with only the letter (A, B, C, or D) of the correct option."
)
PLAIN = INSTRUCTION.format(what="some frames from the video", task="provide the best answer to question")
SEQUENTIAL = INSTRUCTION.format(what="a video", task="the provided context to answer the question")
CONTEXT = (
    "Here are the contextual information related to the video. Please answer the questions based on the contextual "
    "information:"
)


def read(folder: Path, reading: Reading) -> Callable[[str], Path | None]:
    """Fill the reading from the files that are there."""
    roots = [folder, folder / "StreamingBench", folder / "src" / "data", folder / "data"]
    for group in GROUPS:
        name = f"questions_{group}.json"
        file = next((root / name for root in roots if (root / name).is_file()), folder / name)
        for index, part in enumerate(read_json(file, reading) or ()):
            _read_part(part, group, f"{name}, part {index}", index, reading)
    if any((root / "questions_proactive.json").is_file() for root in roots):
        reading.notes.append("questions_proactive.json: the model would choose the moment itself; left out.")
    return video_finder([*roots, folder / "videos"])


def _read_part(part: Mapping[str, Any], group: str, where: str, index: int, reading: Reading) -> None:
    video, questions = take(part, ("video_path", "questions"), where)
    told: list[str] = []
    for number, entry in enumerate(questions):
        here = f"{where}, question {number}"
        task, text, stamp, options, answer = take(
            entry, ("task_type", "question", "time_stamp", "options", "answer"), here
        )
        listed = lettered(options)
        head = [PLAIN] if group != "sqa" else [SEQUENTIAL, *([CONTEXT, *told] if told else []),
                "Here is the question. Answer it and don't confuse it with the previous conversation."]  # fmt: skip
        prompt = "\n".join([*head, f"Question: {text}", "Options:", *listed, "The best option is:"])
        expected = right_choice(str(answer), options, "letter", here)
        tags = (("group", GROUPS[group]), ("ability", str(entry.get("required_ability", ""))))
        reading.items.append(
            Item(f"{group}-{index}-{number}", str(video).removeprefix("./"), prompt, expected, str(task),
                 seconds(str(stamp), here), "before" if entry.get("required_ability") == "episodic memory" else "now",
                 tags)
        )  # fmt: skip
        told.append(f"At timestamp {stamp}, the following question and answer occurred: Question: {text}; "
                    f"Options: {', '.join(listed)}; Answer: {answer};")  # fmt: skip


def seconds(stamp: str, where: str) -> float:
    """Seconds of a time stamp HH:MM:SS or MM:SS; raises SettingsError for anything else."""
    try:
        parts = [float(part) for part in stamp.split(":")]
    except ValueError as error:
        raise SettingsError(f"{where}: time_stamp = {stamp!r}: must be HH:MM:SS") from error
    if not 2 <= len(parts) <= 3:
        raise SettingsError(f"{where}: time_stamp = {stamp!r}: must be HH:MM:SS")
    return sum(part * 60**power for power, part in enumerate(reversed(parts)))


def score(lines: Sequence[Line]) -> list[Score]:
    """Each group: its tasks, then all of its questions together."""
    found: list[Score] = []
    for group in GROUPS.values():
        own = [line for line in lines if line["tags"].get("group") == group]
        everything = mean(own, group)
        found += [*by_tag(own, "task"), *([everything] if everything else [])]
    return found
