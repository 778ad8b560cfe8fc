"""MLVU, development set (arXiv 2406.04264): json/N_TASK.json beside video/N_TASK/*.mp4.

Entries: video, duration, question, candidates, answer, question_type. Reported: accuracy of each multiple-choice task
and M-Avg, the mean of the tasks. The two generation tasks are judged by another model and are left out.
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
    mean_of,
    read_json,
    right_choice,
    take,
    video_finder,
)
from ros_kvstream.evaluation.summary import Line

TASKS = {
    "7_topic_reasoning": "topic_reasoning", "6_anomaly_reco": "anomaly_reco", "2_needle": "needle", "3_ego": "ego",
    "1_plotQA": "plotQA", "5_order": "order", "4_count": "count",
}  # fmt: skip
"""Files of the multiple-choice tasks, in the order of the paper's table."""
GENERATION = ("8_sub_scene", "9_summary")
INSTRUCTION = (
    "Carefully watch this video and pay attention to every detail. Based on your observations, select the best option "
    "that accurately addresses the question."
)


def read(folder: Path, reading: Reading) -> Callable[[str], Path | None]:
    """Fill the reading from the task files."""
    root = folder / "MLVU" if (folder / "MLVU" / "json").is_dir() else folder
    for stem, task in TASKS.items():
        for index, entry in enumerate(read_json(root / "json" / f"{stem}.json", reading) or ()):
            where = f"{stem}.json, entry {index}"
            video, question, candidates, answer = take(entry, ("video", "question", "candidates", "answer"), where)
            options = lettered(candidates, "({}) {}")
            prompt = "\n".join(
                [INSTRUCTION, f"Question: {question}", "Options:", *options, "Only give the best option.",
                 "Best option: ("]
            )  # fmt: skip
            expected = right_choice(answer, candidates, "before_bracket", where)
            reading.items.append(Item(f"{task}-{index}", f"video/{stem}/{video}", prompt, expected, task))
    if any((root / "json" / f"{stem}.json").is_file() for stem in GENERATION):
        reading.notes.append("sub_scene and summary are judged by another model: left out.")
    return video_finder([root])


def score(lines: Sequence[Line]) -> list[Score]:
    """Accuracy of every task, and their mean."""
    tasks = by_tag(lines, "task", tuple(TASKS.values()))
    return [*tasks, *mean_of(tasks, "M-Avg")]
