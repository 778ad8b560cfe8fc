# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of multiple-choice questions about whole videos: MLVU, Video-MME, LongVideoBench and EgoSchema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.datasets.common import (
    VIDEO_SUFFIXES,
    Reading,
    Score,
    accuracy,
    by_tag,
    lettered,
    mean_of,
    right_choice,
    take,
)
from ros_kvstream.evaluation.summary import Line

LETTER_ONLY = "Answer with the option's letter from the given choices directly."

MLVU_TASKS = {
    "7_topic_reasoning": "topic_reasoning", "6_anomaly_reco": "anomaly_reco", "2_needle": "needle", "3_ego": "ego",
    "1_plotQA": "plotQA", "5_order": "order", "4_count": "count",
}  # fmt: skip
"""Files of the multiple-choice tasks, in the order of the paper's table."""
MLVU_INSTRUCTION = (
    "Carefully watch this video and pay attention to every detail. Based on your observations, select the best option "
    "that accurately addresses the question."
)


def read_mlvu(reading: Reading) -> None:
    """Read MLVU, development set (arXiv 2406.04264): json/N_TASK.json, video/N_TASK/*.mp4.

    Entries: video, duration, question, candidates, answer, question_type. The two generation tasks are judged by
    another model and are left out.
    """
    root = reading.folder / "MLVU" if (reading.folder / "MLVU" / "json").is_dir() else reading.folder
    reading.video_folders = [root]
    for stem, task in MLVU_TASKS.items():
        for index, (where, entry) in enumerate(reading.entries(root / "json" / f"{stem}.json")):
            with reading.omitting(where):
                video, question, options, answer = take(entry, ("video", "question", "candidates", "answer"), where)
                prompt = [MLVU_INSTRUCTION, f"Question: {question}", "Options:", *lettered(options, "({}) {}"),
                          "Only give the best option.", "Best option: ("]  # fmt: skip
                expected = right_choice(answer, options, "before_bracket", where)
                reading.add(f"video/{stem}/{video}", f"{task}-{index}", "\n".join(prompt), expected, task)
    if any((root / "json" / f"{stem}.json").is_file() for stem in ("8_sub_scene", "9_summary")):
        reading.notes.append("sub_scene and summary are judged by another model: left out.")


def score_mlvu(lines: Sequence[Line]) -> list[Score]:
    """Accuracy of every task, and M-Avg, their mean."""
    tasks = by_tag(lines, "task", tuple(MLVU_TASKS.values()))
    return [*tasks, *mean_of(tasks, "M-Avg")]


VIDEO_MME_INSTRUCTION = (
    "Select the best answer to the following multiple-choice question based on the video. Respond with only the letter "
    "(A, B, C, or D) of the correct option."
)


def read_video_mme(reading: Reading) -> None:
    """Read Video-MME (arXiv 2405.21075), without subtitles: its JSON by video, or the rows of its table; videos as
    data/*.mp4 or videos_chunked_NN/data/*.mp4.

    By video: video_id, duration (short | medium | long), domain, sub_category, questions (question_id, task_type,
    question, options, answer). As rows (.json, .jsonl, or .parquet where pyarrow is installed) the same fields in one
    object, with videoID.
    """
    reading.suffixes = VIDEO_SUFFIXES
    roots = [reading.folder / name for name in ("", "videos", "videomme")]
    chunks = [chunk / sub for root in roots for chunk in sorted(root.glob("videos_chunked_*")) for sub in ("data", "")]
    reading.video_folders = [*(reading.folder / name for name in ("data", "videos", "video", "videomme/data", "")),
                             reading.folder / "videos" / "data", *chunks]  # fmt: skip
    patterns = ("*.json", "*.jsonl", "videomme/*.json", "videomme/*.parquet", "*.parquet")
    files = [file for pattern in patterns for file in sorted(reading.folder.glob(pattern))]
    if not files:
        reading.notes.append("no .json, .jsonl or .parquet file with the questions is there.")
        return
    content = _rows_of_parquet(files[0]) if files[0].suffix == ".parquet" else reading.read_json(files[0])
    for index, entry in enumerate(content or ()):
        where = f"{files[0].name}, entry {index}"
        with reading.omitting(where):
            video, *values = take(entry, ("video_id", "duration", "domain", "sub_category"), where)
            tags = dict(zip(("duration", "domain", "sub_category"), values, strict=True))
            youtube = re.search(r"(?:v=|youtu\.be/)([\w-]{11})", str(entry.get("url", "")))
            video = str(entry.get("videoID") or (youtube[1] if youtube else video))
            for question in entry.get("questions", [entry]):
                with reading.omitting(where):
                    keys = ("question_id", "task_type", "question", "options", "answer")
                    name, task, text, options, answer = take(question, keys, where)
                    prompt = "\n".join([VIDEO_MME_INSTRUCTION, text, *lettered(list(options)), "The best answer is:"])
                    expected = right_choice(answer, list(options), "first_capital", where)
                    reading.add(video, name, prompt, expected, task, **tags)


def _rows_of_parquet(path: Path) -> list[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise SettingsError(f"{path}: .parquet needs the package pyarrow; or write its rows as .jsonl") from error
    rows: list[Mapping[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def score_video_mme(lines: Sequence[Line]) -> list[Score]:
    """Accuracy overall, by duration, domain and task; as in the benchmark, answers without a letter are left out."""
    answered = [line for line in lines if line["answer"] is not None and re.search("[ABCD]", line["answer"])]
    return [*accuracy(answered, "Overall"), *by_tag(answered, "duration", ("short", "medium", "long")),
            *by_tag(answered, "domain"), *by_tag(answered, "task")]  # fmt: skip


LONGVIDEOBENCH_GROUPS = {"15": "8-15 s", "60": "15-60 s", "600": "180-600 s", "3600": "900-3600 s"}


def read_longvideobench(reading: Reading) -> None:
    """Read LongVideoBench, validation split (arXiv 2407.15754), without subtitles: lvb_val.json, videos/*.mp4.

    Entries: id, video_id, video_path, question, candidates, correct_choice (an index), duration, duration_group (15,
    60, 600, 3600), question_category, topic_category, level.
    """
    reading.video_folders = [reading.folder / "videos", reading.folder]
    for where, entry in reading.entries(reading.folder / "lvb_val.json"):
        with reading.omitting(where):
            name, video, question, options = take(entry, ("id", "video_path", "question", "candidates"), where)
            if "correct_choice" not in entry:
                reading.unanswered += 1
                continue
            group, level, task = (str(entry.get(key, "")) for key in ("duration_group", "level", "question_category"))
            prompt = "\n".join([f"Question: {question}", *lettered(options), LETTER_ONLY])
            expected = right_choice(int(entry["correct_choice"]), options, "letter", where)
            group = LONGVIDEOBENCH_GROUPS.get(group, group)
            reading.add(video, name, prompt, expected, task, duration_group=group, level=level)


def score_longvideobench(lines: Sequence[Line]) -> list[Score]:
    """Accuracy overall, by duration group, level and category."""
    groups = by_tag(lines, "duration_group", tuple(LONGVIDEOBENCH_GROUPS.values()))
    return [*accuracy(lines, "Overall"), *groups, *by_tag(lines, "level"), *by_tag(lines, "task")]


def read_egoschema(reading: Reading) -> None:
    """Read EgoSchema (arXiv 2308.09126): questions.json, subset_answers.json, videos/Q_UID.mp4.

    Entries of the first: q_uid, question, "option 0" to "option 4"; the second is q_uid -> index for the 500 questions
    whose answers are published.
    """
    folder, reading.suffixes = reading.folder, VIDEO_SUFFIXES
    reading.video_folders = [folder / "videos", folder / "good_clips_git", folder]
    answers = reading.read_json(folder / "subset_answers.json") or {}
    for where, entry in reading.entries(folder / "questions.json"):
        with reading.omitting(where):
            uid, question, *options = take(entry, ("q_uid", "question", *(f"option {i}" for i in range(5))), where)
            if uid not in answers:
                reading.unanswered += 1
                continue
            prompt = "\n".join([question, *lettered(options), LETTER_ONLY])
            expected = right_choice(int(answers[uid]), options, "letter", where)
            reading.add(uid, uid, prompt, expected, "subset")


def score_egoschema(lines: Sequence[Line]) -> list[Score]:
    """Accuracy on the subset with published answers."""
    return accuracy(lines, "Subset")
