"""RVS-Ego and RVS-Movie (VStream-QA, arXiv 2406.08085), open questions about streams.

Two layouts are read: by video (ego/ego4d_oe.json, movie/movienet_oe.json: video_id, video_path, duration,
conversations of question, answer, start_time, end_time), or as published (test_qa_ego4d.json, test_qa_movienet.json:
id, video_id, question, answer, answer_type, start_time, end_time). A question is asked at its end_time. The papers let
another language model judge the answers; here the figures are the share of equal answers and the overlap of words (F1),
which are lower and not comparable with theirs: results.jsonl has question, answer and prediction for such a judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ros_kvstream.evaluation.datasets.common import (
    Item,
    Reading,
    Score,
    by_tag,
    mean,
    read_json,
    take,
    video_finder,
)
from ros_kvstream.evaluation.scoring import Exact, words
from ros_kvstream.evaluation.summary import Line

BY_VIDEO = ("ego/ego4d_oe.json", "movie/movienet_oe.json", "ego4d_oe.json", "movienet_oe.json")
PUBLISHED = (
    ("test_qa_ego4d.json", "rvs_ego.json"), ("test_qa_movienet.json", "rvs_movie.json"),
    ("vstream-realtime/test_qa_ego4d.json", "vstream-realtime/rvs_ego.json"),
    ("vstream-realtime/test_qa_movienet.json", "vstream-realtime/rvs_movie.json"),
)  # fmt: skip
"""(questions, clips with their start in the original video)."""


def read(folder: Path, reading: Reading) -> Callable[[str], Path | None]:
    """Fill the reading from the first layout that is found."""
    reading.notes.append("RVS is judged by another language model in the papers: see the module's description.")
    for name in BY_VIDEO:
        if (folder / name).is_file():
            _read_by_video(read_json(folder / name, reading), name, reading)
            return video_finder([folder, folder / "ego" / "videos", folder / "movie" / "videos", folder / "videos"])
    for name, clips in PUBLISHED:
        if (folder / name).is_file():
            starts = {clip["video_id"]: float(clip["start_time"]) for clip in read_json(folder / clips, reading) or ()}
            for index, entry in enumerate(read_json(folder / name, reading)):
                (video,) = take(entry, ("video_id",), f"{name}, entry {index}")
                _add(entry, f"{entry.get('id', index)}", str(video), starts.get(video, 0.0), name, reading)
            return video_finder([folder, folder / "videos", (folder / name).parent / "videos"], by_stem=True)
    known = [*BY_VIDEO[:2], *(name for name, _ in PUBLISHED[:2])]
    reading.notes.append(f"none of {', '.join(known)} is there.")
    return video_finder([folder])


def _read_by_video(entries: Sequence[Mapping[str, Any]], where: str, reading: Reading) -> None:
    for index, entry in enumerate(entries):
        here = f"{where}, entry {index}"
        video, conversations = take(entry, ("video_path", "conversations"), here)
        for number, question in enumerate(conversations):
            _add(question, f"{index}-{number}", str(video), 0.0, f"{here}, question {number}", reading)


def _add(entry: Mapping[str, Any], name: str, video: str, start: float, where: str, reading: Reading) -> None:
    text, answer, end = take(entry, ("question", "answer", "end_time"), where)
    if not words(str(answer)):
        reading.notes.append(f"{where}: the answer holds no word: left out.")
        return
    task = str(entry.get("answer_type") or entry.get("task") or "")
    item = Item(name, video, str(text), Exact(str(answer)), task, max(0.0, float(end) - start))
    reading.items.append(item)


def overlap(prediction: str, answer: str) -> float:
    """F1 of the words that two texts share."""
    found, wanted = Counter(words(prediction)), Counter(words(answer))
    shared = sum((found & wanted).values())
    return 2 * shared / (found.total() + wanted.total()) if shared else 0.0


def score(lines: Sequence[Line]) -> list[Score]:
    """Share of equal answers and mean overlap of words; by type where the file has types."""
    equal = mean(lines, "Equal answers")
    asked = [line for line in lines if line["answer"] is not None]
    shares = [overlap(line["answer"], line["expected"]["exact"]) for line in asked]
    found = [Score("Word F1", sum(shares) / len(shares), len(shares))] if shares else []
    return [*([equal] if equal else []), *found, *by_tag(lines, "task", prefix="Equal answers, ")]
