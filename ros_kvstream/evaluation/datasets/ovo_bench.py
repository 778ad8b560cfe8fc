# SPDX-License-Identifier: Apache-2.0
"""OVO-Bench (arXiv 2501.05510): ovo_bench_new.json beside src_videos, or chunked_videos (ID.mp4, ID_NUMBER.mp4).

Entries have id, task, video, realtime (seconds), question, options and gt (an index); those of forward active
responding (REC, SSR, CRR) have test_info instead, a list of moments with realtime and count, or step and type.
Reported: accuracy by task, the mean over the tasks of backward, real-time and forward, and the mean of these three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.datasets.common import (
    Reading,
    Score,
    by_tag,
    lettered,
    mean_of,
    right_choice,
    take,
)
from ros_kvstream.evaluation.scoring import Expectation, Pattern
from ros_kvstream.evaluation.summary import Line

MODES = {
    "Real-Time Visual Perception": ("OCR", "ACR", "ATR", "STU", "FPD", "OJR"),
    "Backward Tracing": ("EPM", "ASI", "HLD"),
    "Forward Active Responding": ("REC", "SSR", "CRR"),
}
"""Tasks by mode, in the order of the paper's table."""
FILES = ("ovo_bench_new.json", "ovo_bench.json")
NOTHING_ELSE = "Do not include any additional text or explanation in your response."
COUNTING = (
    "You're watching a video in which people may perform a certain type of action repetively. The person performing "
    "this kind of action are referred to as 'they' in the following statement. You're task is to count how many times "
    "have different people in the video perform this kind of action in total. One complete motion counts as one.\n"
    "Now, answer the following question: How many times did they {activity}?\n"
    "Provide your answer as a single number (e.g., 0, 1, 2, 3...) indicating the total count.\n" + NOTHING_ELSE
)
STEP = (
    "You're watching a tutorial video which contain a sequential of steps. The following is one step from the whole "
    "procedures:\n{step}\nYour task is to determine if the man or woman in the video is currently performing this "
    'step.\nAnswer only with "Yes" or "No".\n' + NOTHING_ELSE
)
ENOUGH = (
    "You're responsible of answering questions based on the video content. The following question are relevant to the "
    "latest frames, i.e. the end of the video.\n{question}\nDecide whether existing visual content, especially latest "
    "frames, i.e. frames that near the end of the video, provide enough information for answering the question.\n"
    'Answer only with "Yes" or "No".\n' + NOTHING_ELSE
)


def read(reading: Reading) -> None:
    """Read the annotation file; where the source videos are not there, the published clips, one for each question."""
    folder = reading.folder
    roots = [folder, folder / "data"]
    reading.video_folders = [root / sub for root in roots for sub in ("", "src_videos", "videos", "chunked_videos")]
    clips = next((root / "chunked_videos" for root in roots if (root / "chunked_videos").is_dir()), None)
    if any((root / "src_videos").is_dir() for root in roots):
        clips = None
    places = [root / name for root in roots for name in FILES]
    file = next((place for place in places if place.is_file()), places[0])
    for where, entry in reading.entries(file):
        with reading.omitting(where):
            identifier, task, video = take(entry, ("id", "task", "video"), where)
            mode = next((mode for mode, tasks in MODES.items() if task in tasks), "")
            if not mode:
                raise SettingsError(f"{where}: task = {task!r} is none of OVO-Bench")
            kind = "before" if mode == "Backward Tracing" else "now"
            moments = _moments(entry, str(task), where)
            for number, (at, prompt, expected) in enumerate(moments):
                name = f"{identifier}-{number}" if len(moments) > 1 else str(identifier)
                if clips is not None:  # a clip ends when its question is asked
                    video = f"{identifier}_{number}.mp4" if "test_info" in entry else f"{identifier}.mp4"
                    at = math.inf
                reading.add(video, name, prompt, expected, task, at=at, kind=kind, mode=mode)


def _moments(entry: Mapping[str, Any], task: str, where: str) -> list[tuple[float, str, Expectation]]:
    """(seconds, prompt, expected) of every moment at which an entry is asked."""
    if task not in MODES["Forward Active Responding"]:
        question, options, right, at = take(entry, ("question", "options", "gt", "realtime"), where)
        listed = "; ".join(lettered(options)) + ";"
        prompt = (f"Question: {question}\nOptions:\n{listed}\nRespond only with the letter corresponding to your "
                  f"chosen option (e.g., A, B, C).\n{NOTHING_ELSE}")  # fmt: skip
        return [(float(at), prompt, right_choice(int(right), options, "contains", where))]
    found: list[tuple[float, str, Expectation]] = []
    (infos,) = take(entry, ("test_info",), where)
    for info in infos:
        at, right = take(info, ("realtime", "count" if task == "REC" else "type"), where)
        expected = digits_pattern(int(right)) if task == "REC" else word_pattern("Yes" if int(right) else "No")
        key, prompt = {"REC": ("activity", COUNTING), "SSR": ("step", STEP), "CRR": ("question", ENOUGH)}[task]
        (value,) = take(info if task == "SSR" else entry, (key,), where)
        found.append((float(at), prompt.format(**{key: value}), expected))
    return found


def digits_pattern(count: int) -> Pattern:
    """All digits of the answer together are the count, as the benchmark scores it."""
    return Pattern(r"\A\D*" + r"\D*".join(str(count)) + r"\D*\Z")


def word_pattern(word: str) -> Pattern:
    """The answer holds the word, or is its first letter."""
    return Pattern(rf"(?-i:{word})|\A(?-i:{word[0]})\Z")


def score(lines: Sequence[Line]) -> list[Score]:
    """Each mode: accuracy of its tasks and their mean; then the mean of the modes."""
    found: list[Score] = []
    means: list[Score] = []
    for mode, tasks in MODES.items():
        own = by_tag([line for line in lines if line["task"] in tasks], "task", tasks)
        average = mean_of(own, f"{mode} Avg.")
        found += [*own, *average]
        means += average
    return [*found, *mean_of(means, "Overall Avg.")]
