# SPDX-License-Identifier: Apache-2.0
"""StreamingBench (arXiv 2411.03628): questions_{real,omni,sqa}.json, a list of parts of videos, or of lists of parts.

A part: video_path, time, video_categories, questions (task_type, question, time_stamp "HH:MM:SS", options, answer (a
letter), required_ability). Every question is asked at its time stamp. The prompt of a sequential question (sqa) holds
the questions before it about the same video, with their right answers. An answer is right where its first character is
the letter; an empty one is not counted. Reported: accuracy by task, and of each group over all of its questions. The
videos are videos/sample_N_TASK.mp4 or, as unpacked, TASK/sample_N/video.mp4. Proactive output, where the model itself
chooses the moment, is left out; sound is not used.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.datasets.common import (
    Reading,
    Score,
    accuracy,
    by_tag,
    lettered,
    right_choice,
    take,
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


FIELDS = ("task_type", "question", "time_stamp", "options", "answer")


def read(reading: Reading) -> None:
    """Read the files that exist."""
    roots = [reading.folder / name for name in ("", "StreamingBench", "src/data", "data", "StreamingBench/data")]
    reading.video_folders = [root / name for root in roots for name in ("", "videos", "omni")]
    for group in GROUPS:
        name = f"questions_{group}.json"
        file = next((root / name for root in roots if (root / name).is_file()), roots[0] / name)
        told: dict[str, list[str]] = {}  # what was asked before, by video
        for index, (where, entry) in enumerate(reading.entries(file, "part")):
            parts = entry if isinstance(entry, list) else [entry]  # of one video, where they are listed together
            if isinstance(entry, list):
                told = {}
            numbers = itertools.count()
            for part in parts:
                with reading.omitting(where):
                    video, questions = take(part, ("video_path", "questions"), where)
                    video = str(video).removeprefix("./")
                    reading.other_names[video] = unpacked_names(video)
                    for question in questions:
                        number = next(numbers)
                        with reading.omitting(where):
                            _add(reading, group, video, f"{group}-{index}-{number}", question,
                                 told.setdefault(video, []), f"{where}, question {number}")  # fmt: skip
    if any((root / "questions_proactive.json").is_file() for root in roots):
        reading.notes.append("questions_proactive.json: the model would choose the moment itself; left out.")


def _add(
    reading: Reading, group: str, video: str, name: str, entry: Mapping[str, Any], context: list[str], where: str
) -> None:
    """Add a question, and to the context what later questions about the video are told of it."""
    task, text, stamp, options, answer = take(entry, FIELDS, where)
    listed, ability = lettered(options), str(entry.get("required_ability", ""))
    expected, at = right_choice(str(answer), options, "first_character", where), seconds(str(stamp), where)
    prompt = "\n".join([*_instructions(group, context), f"Question: {text}", "Options:", *listed,
                        "The best option is:"])  # fmt: skip
    kind = "before" if ability == "episodic memory" else "now"
    reading.add(video, name, prompt, expected, task, at=at, kind=kind, group=GROUPS[group], ability=ability)
    context.append(f"At timestamp {stamp}, the following question and answer occurred: Question: {text}; "
                   f"Options: {', '.join(listed)}; Answer: {answer};")  # fmt: skip


def unpacked_names(video: str) -> tuple[str, ...]:
    """Paths of a video in the unpacked archives, TASK/sample_N/video.mp4; empty for a name of another form."""
    match = re.fullmatch(r"(?:.*/)?(sample_\d+)_(.+)\.mp4", video)
    tasks = dict.fromkeys((match[2], match[2].replace("_", " "))) if match else ()
    return tuple(f"{task}/{match[1]}/video.mp4" for task in tasks) if match else ()


def _instructions(group: str, context: Sequence[str]) -> list[str]:
    if group != "sqa":
        return [PLAIN]
    return [SEQUENTIAL, *([CONTEXT, *context] if context else []),
            "Here is the question. Answer it and don't confuse it with the previous conversation."]  # fmt: skip


def seconds(stamp: str, where: str) -> float:
    """Seconds of a time stamp HH:MM:SS or MM:SS; raises SettingsError for anything else."""
    try:
        parts = [float(part) for part in stamp.split(":")]
        if not 2 <= len(parts) <= 3:
            raise ValueError
    except ValueError as error:
        raise SettingsError(f"{where}: time_stamp = {stamp!r}: must be HH:MM:SS") from error
    return sum(part * 60**power for power, part in enumerate(reversed(parts)))


def score(lines: Sequence[Line]) -> list[Score]:
    """Each group: accuracy of its tasks, then of all of its questions together."""
    found: list[Score] = []
    for group in GROUPS.values():
        own = [line for line in lines if line["tags"].get("group") == group and line["answer"] != ""]
        found += [*by_tag(own, "task"), *accuracy(own, group)]
    return found
