# SPDX-License-Identifier: Apache-2.0
"""RVS-Ego and RVS-Movie (VStream-QA, arXiv 2406.08085), open questions about streams.

Two layouts are read: by video (ego/ego4d_oe.json, movie/movienet_oe.json: video_id, video_path, duration,
conversations of question, answer, start_time, end_time), or as published (test_qa_ego4d.json, test_qa_movienet.json:
id, video_id, question, answer, answer_type, start_time, end_time). A question is asked at its end_time. In the papers
another language model judges the answers; here the scores are the share of equal answers and the overlap of words
(F1), which are lower and not comparable with theirs. results.jsonl has what such a judge needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.datasets.common import (
    VIDEO_SUFFIXES,
    Reading,
    Score,
    accuracy,
    by_tag,
    take,
)
from ros_kvstream.evaluation.scoring import Exact, words
from ros_kvstream.evaluation.summary import Line

BY_VIDEO = ("ego/ego4d_oe.json", "movie/movienet_oe.json", "ego4d_oe.json", "movienet_oe.json")
PUBLISHED = {
    f"{folder}test_qa_{questions}.json": f"{folder}rvs_{clips}.json"
    for folder in ("", "vstream-realtime/")
    for questions, clips in (("ego4d", "ego"), ("movienet", "movie"))
}
"""Files of questions, and of the clips with their start in the original video."""


def read(reading: Reading) -> None:
    """Read the first layout that is found."""
    folder = reading.folder
    reading.notes.append("RVS is judged by another language model in the papers: see the module's description.")
    for name in BY_VIDEO:
        if (folder / name).is_file():
            for index, (where, entry) in enumerate(reading.entries(folder / name)):
                with reading.omitting(where):
                    video, conversations = take(entry, ("video_path", "conversations"), where)
                    for number, question in enumerate(conversations):
                        _add(question, f"{index}-{number}", str(video), 0.0, f"{where}, question {number}", reading)
            folders = ("", "ego/videos", "movie/videos", "videos")
            reading.video_folders = [folder / name for name in folders]
            return
    for name, clips in PUBLISHED.items():
        if (folder / name).is_file():
            starts = {clip["video_id"]: float(clip["start_time"]) for clip in reading.read_json(folder / clips) or ()}
            for index, (where, entry) in enumerate(reading.entries(folder / name)):
                with reading.omitting(where):
                    (video,) = take(entry, ("video_id",), where)
                    _add(entry, f"{entry.get('id', index)}", str(video), starts.get(video, 0.0), where, reading)
            reading.video_folders = [folder, folder / "videos", (folder / name).parent / "videos"]
            reading.suffixes = VIDEO_SUFFIXES
            return
    reading.notes.append(f"none of {', '.join([*BY_VIDEO[:2], *list(PUBLISHED)[:2]])} is there.")


def _add(entry: Mapping[str, Any], name: str, video: str, start: float, where: str, reading: Reading) -> None:
    with reading.omitting(where):
        text, answer, end = take(entry, ("question", "answer", "end_time"), where)
        if not words(str(answer)):
            raise SettingsError(f"{where}: the answer holds no word")
        task = str(entry.get("answer_type") or entry.get("task") or "")
        reading.add(video, name, str(text), Exact(str(answer)), task, at=max(0.0, float(end) - start))


def overlap(prediction: str, answer: str) -> float:
    """F1 of the words that two texts share."""
    found, wanted = Counter(words(prediction)), Counter(words(answer))
    shared = sum((found & wanted).values())
    return 2 * shared / (found.total() + wanted.total()) if shared else 0.0


def score(lines: Sequence[Line]) -> list[Score]:
    """Share of equal answers and mean overlap of words; by type where the file has types."""
    asked = [line for line in lines if line["answer"] is not None]
    shares = [overlap(line["answer"], line["expected"]["exact"]) for line in asked]
    f1 = [Score("Word F1", sum(shares) / len(shares), len(shares))] if shares else []
    return [*accuracy(lines, "Equal answers"), *f1, *by_tag(lines, "task", prefix="Equal answers, ")]
