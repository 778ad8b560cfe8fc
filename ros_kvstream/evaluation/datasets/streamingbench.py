# SPDX-License-Identifier: Apache-2.0
"""StreamingBench (arXiv 2411.03628): questions_{real,omni,sqa}.json, each a list of parts of videos.

A part: video_path, time, video_categories, questions (task_type, question, time_stamp "HH:MM:SS", options, answer (a
letter), required_ability). Every question is asked at its time stamp. The prompt of a sequential question (sqa) holds
the questions before it about the same part, with their right answers. Reported: accuracy by task, and of each group
over all of its questions. Proactive output, where the model itself chooses the moment, is left out; sound is not used.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    roots = [reading.folder / name for name in ("", "StreamingBench", "src/data", "data")]
    reading.video_folders = [*roots, reading.folder / "videos"]
    for group in GROUPS:
        name = f"questions_{group}.json"
        file = next((root / name for root in roots if (root / name).is_file()), roots[0] / name)
        for index, (where, part) in enumerate(reading.entries(file, "part")):
            video, questions = take(part, ("video_path", "questions"), where)
            context: list[str] = []
            for number, entry in enumerate(questions):
                here = f"{where}, question {number}"
                task, text, stamp, options, answer = take(entry, FIELDS, here)
                listed, ability = lettered(options), str(entry.get("required_ability", ""))
                prompt = "\n".join([*_instructions(group, context), f"Question: {text}", "Options:", *listed,
                                    "The best option is:"])  # fmt: skip
                reading.add(
                    str(video).removeprefix("./"), f"{group}-{index}-{number}", prompt,
                    right_choice(str(answer), options, "letter", here), task, at=seconds(str(stamp), here),
                    kind="before" if ability == "episodic memory" else "now", group=GROUPS[group], ability=ability,
                )  # fmt: skip
                context.append(f"At timestamp {stamp}, the following question and answer occurred: Question: {text}; "
                               f"Options: {', '.join(listed)}; Answer: {answer};")  # fmt: skip
    if any((root / "questions_proactive.json").is_file() for root in roots):
        reading.notes.append("questions_proactive.json: the model would choose the moment itself; left out.")


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
        own = [line for line in lines if line["tags"].get("group") == group]
        found += [*by_tag(own, "task"), *accuracy(own, group)]
    return found
