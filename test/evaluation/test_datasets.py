# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: small files of the exact published layouts, with videos written here, read, asked and scored."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from ros_kvstream.errors import KvStreamError, SettingsError
from ros_kvstream.evaluation.datasets import BENCHMARKS, find_benchmark, read_benchmark
from ros_kvstream.evaluation.datasets.common import Reading, lettered, right_choice
from ros_kvstream.evaluation.datasets.ovo_bench import digits_pattern, word_pattern
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.recordings.video_frames import VideoSource, video_seconds


def write_video(path: Path, seconds: float = 4.0, rate: int = 5, size: int = 64) -> Path:
    """A video whose grey level rises with time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        for index in range(round(seconds * rate)):
            pixels = np.full((size, size, 3), 20 + 10 * index, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def questions(reading: Reading) -> list[EvaluationQuestion]:
    return [question for episode in reading.episodes for question in episode.questions]


def lines(reading: Reading, answers: Sequence[str]) -> list[dict[str, Any]]:
    """Result lines as a run would give them for these answers."""
    asked = questions(reading)
    assert len(asked) == len(answers)
    return [
        {"task": q.task, "tags": dict(q.tags), "answer": answer, "correct": q.expected.accepts(answer),
         "expected": q.expected.data()}
        for q, answer in zip(asked, answers, strict=True)
    ]  # fmt: skip


def scores(name: str, reading: Reading, answers: Sequence[str]) -> dict[str, float]:
    return {score.name: score.value for score in find_benchmark(name).score(lines(reading, answers))}


# -- videos -----------------------------------------------------------------------------------------------------------


def test_a_video_gives_frames_at_the_rate_on_their_own_stamps(tmp_path: Path) -> None:
    source = VideoSource(write_video(tmp_path / "a.mp4"), "a", rate_hz=1.0)
    frames = list(source.frames(lambda _: None))
    assert [frame.stamp for frame in frames] == pytest.approx([0.0, 1.0, 2.0, 3.0])
    assert frames[0].picture.shape == (64, 64, 3)
    assert [round(float(frame.picture.mean()) / 10) for frame in frames] == [2, 7, 12, 17]
    assert source.count() == 4 and video_seconds(source.path) == pytest.approx(4.0)


def test_a_slow_video_gives_all_it_has_and_a_part_of_it_only_that_part(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    assert len(list(VideoSource(path, "a", rate_hz=30.0).frames(lambda _: None))) == 20
    part = VideoSource(path, "a", 5.0, start=1.0, end=2.0)
    assert [frame.stamp for frame in part.frames(lambda _: None)] == pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8, 2.0])


def test_a_file_that_is_no_video_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video at all")
    with pytest.raises(KvStreamError, match=r"a\.mp4"):
        list(VideoSource(tmp_path / "a.mp4", "a").frames(lambda _: None))
    assert video_seconds(tmp_path / "a.mp4") == 0.0


# -- MLVU -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mlvu(tmp_path: Path) -> Path:
    entry = {"video": "movie101_66.mp4", "duration": 480.0, "question": "What color is the hat?",
             "candidates": ["Yellow", "Red", "Green", "Blue"], "answer": "Red", "question_type": "plotQA"}  # fmt: skip
    needle = {**entry, "video": "needle_1.mp4", "answer": "Blue", "question_type": "findNeedle"}
    write(tmp_path / "json" / "1_plotQA.json", [entry, {**entry, "answer": "Green"}])
    write(tmp_path / "json" / "2_needle.json", [needle])
    write(tmp_path / "json" / "9_summary.json", [])
    write_video(tmp_path / "video" / "1_plotQA" / "movie101_66.mp4")
    write_video(tmp_path / "video" / "2_needle" / "needle_1.mp4")
    return tmp_path


def test_mlvu_asks_its_prompt_and_averages_over_tasks(mlvu: Path) -> None:
    reading = read_benchmark("mlvu", mlvu, 1.0)
    asked = questions(reading)
    assert len(reading.episodes) == 2 and all(math.isinf(question.at) for question in asked)
    plot = next(question for question in asked if question.task == "plotQA")
    assert plot.prompt.splitlines()[1:] == [
        "Question: What color is the hat?", "Options:", "(A) Yellow", "(B) Red", "(C) Green", "(D) Blue",
        "Only give the best option.", "Best option: (",
    ]  # fmt: skip
    by_task = {question.name: "D) Blue" if question.task == "needle" else "B" for question in asked}
    found = scores("mlvu", reading, [by_task[question.name] for question in asked])
    assert found == {"needle": 1.0, "plotQA": 0.5, "M-Avg": 0.75}
    assert any("judged by another model" in note for note in reading.notes)
    assert any("4_count.json is not there" in note for note in reading.notes)


def test_missing_videos_are_named_and_the_others_are_asked_about(mlvu: Path) -> None:
    (mlvu / "video" / "2_needle" / "needle_1.mp4").unlink()
    reading = read_benchmark("mlvu", mlvu, 1.0)
    assert [episode.name for episode in reading.episodes] == ["1_plotQA/movie101_66.mp4"]
    assert any("1 of 2 videos are not there: video/2_needle/needle_1.mp4" in note for note in reading.notes)
    (mlvu / "video" / "1_plotQA" / "movie101_66.mp4").unlink()
    with pytest.raises(SettingsError, match="2 of 2 videos are not there"):
        read_benchmark("mlvu", mlvu, 1.0)


@pytest.mark.parametrize("found", ["105.mp4", "a/105.mp4"])
def test_a_video_of_the_same_name_is_not_taken_for_another(found: str, tmp_path: Path) -> None:
    entry = {"id": 0, "task": "OCR", "question": "Who?", "options": ["a man", "a woman"], "gt": 0, "realtime": 1}
    write(tmp_path / "ovo_bench_new.json", [{**entry, "video": f"{folder}/105.mp4"} for folder in "ab"])
    write_video(tmp_path / found)
    if found == "105.mp4":
        with pytest.raises(SettingsError, match="2 of 2 videos are not there"):
            read_benchmark("ovo-bench", tmp_path, 1.0)
        return
    reading = read_benchmark("ovo-bench", tmp_path, 1.0)
    assert [episode.name for episode in reading.episodes] == ["a/105.mp4"]
    assert any(f"1 of 2 videos are not there: b/105.mp4; the folders searched: {tmp_path}" in note
               for note in reading.notes)  # fmt: skip


# -- Video-MME --------------------------------------------------------------------------------------------------------

VIDEO_MME = {
    "video_id": "001", "duration": "short", "domain": "Knowledge", "sub_category": "Humanity & History",
    "url": "https://www.youtube.com/watch?v=fFjv93ACGo8",
    "questions": [
        {"question_id": "001-1", "task_type": "Counting Problem", "question": "How many?", "answer": "C",
         "options": ["A. Apples.", "B. Candles.", "C. Berries.", "D. The three kinds are of the same number."]},
        {"question_id": "001-2", "task_type": "Object Recognition", "question": "What?", "answer": "A",
         "options": ["A. Apples.", "B. Candles.", "C. Berries.", "D. None."]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "folder"),
    [("by video", "data"), ("rows", "data"), ("rows", "videos_chunked_01/data"), ("rows", "videos/videos_chunked_20")],
)
def test_video_mme_is_read_in_all_layouts_and_scored_over_what_was_answered(
    layout: str, folder: str, tmp_path: Path
) -> None:
    if layout == "by video":
        write(tmp_path / "videomme.json", [VIDEO_MME])
    else:
        shared = {key: value for key, value in VIDEO_MME.items() if key != "questions"}
        rows = [{**shared, "videoID": "fFjv93ACGo8", **question} for question in VIDEO_MME["questions"]]  # type: ignore
        (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_video(tmp_path / folder / "fFjv93ACGo8.mp4")
    reading = read_benchmark("video-mme", tmp_path, 1.0)
    first, second = questions(reading)
    assert first.prompt.splitlines()[1:] == ["How many?", *VIDEO_MME["questions"][0]["options"],  # type: ignore
                                             "The best answer is:"]  # fmt: skip
    assert scores("video-mme", reading, ["The best answer is C.", "I do not know"]) == {
        "Overall": 1.0, "short": 1.0, "Knowledge": 1.0, "Counting Problem": 1.0,
    }  # fmt: skip
    assert second.task == "Object Recognition"


# -- LongVideoBench ---------------------------------------------------------------------------------------------------


def test_longvideobench_is_split_by_duration_group_level_and_category(tmp_path: Path) -> None:
    entry = {
        "id": "86CxyhFV9MI_0", "video_id": "86CxyhFV9MI", "video_path": "86CxyhFV9MI.mp4", "question": "Which one?",
        "question_wo_referring_query": "Which?", "candidates": ["a cat", "a dog", "a cow"], "correct_choice": 1,
        "position": [3], "topic_category": "NP-News", "question_category": "S2E", "level": "L1-Perc",
        "subtitle_path": "86CxyhFV9MI_en.json", "duration_group": 15, "duration": 10.1, "view_count": 1,
        "starting_timestamp_for_subtitles": 0,
    }  # fmt: skip
    unanswered = {key: value for key, value in entry.items() if key != "correct_choice"}
    other = {**entry, "id": "86CxyhFV9MI_1", "duration_group": 600, "question_category": "T3O", "correct_choice": 0}
    write(tmp_path / "lvb_val.json", [entry, other, unanswered])
    write_video(tmp_path / "videos" / "86CxyhFV9MI.mp4")
    reading = read_benchmark("longvideobench", tmp_path, 1.0)
    assert questions(reading)[0].prompt.splitlines()[:3] == ["Question: Which one?", "A. a cat", "B. a dog"]
    assert scores("longvideobench", reading, ["B", "B"]) == {
        "Overall": 0.5, "8-15 s": 1.0, "180-600 s": 0.0, "L1-Perc": 0.5, "S2E": 1.0, "T3O": 0.0,
    }  # fmt: skip
    assert any("1 questions have no published answer" in note for note in reading.notes)


# -- EgoSchema --------------------------------------------------------------------------------------------------------


def test_egoschema_asks_what_has_a_published_answer(tmp_path: Path) -> None:
    options = {f"option {index}": f"C does thing {index}." for index in range(5)}
    entries = [{"q_uid": uid, "google_drive_id": "x", "question": "What is C doing?", **options} for uid in "pq"]
    write(tmp_path / "questions.json", entries)
    write(tmp_path / "subset_answers.json", {"p": 4})
    write_video(tmp_path / "videos" / "p.mp4")
    reading = read_benchmark("egoschema", tmp_path, 1.0)
    (question,) = questions(reading)
    assert question.prompt.splitlines()[5] == "E. C does thing 4."
    assert scores("egoschema", reading, ["E"]) == {"Subset": 1.0}
    assert any("1 questions have no published answer" in note for note in reading.notes)


# -- StreamingBench ---------------------------------------------------------------------------------------------------


def streamingbench_part(video: str, stamps: Sequence[str], task: str) -> dict[str, Any]:
    return {
        "time": "[0:00:00 - 0:01:00]", "video_categories": "playing_card", "video_path": f"./videos/{video}",
        "questions": [
            {"task_type": task, "question": f"What at {stamp}?", "time_stamp": stamp, "answer": "B",
             "options": ["A. one", "B. two", "C. three", "D. four"], "required_ability": "working memory"}
            for stamp in stamps
        ],
    }  # fmt: skip


def test_streamingbench_asks_at_its_time_stamps_and_tells_sequential_questions_what_was_before(tmp_path: Path) -> None:
    write(tmp_path / "questions_real.json", [
        streamingbench_part("sample_1_real.mp4", ["00:00:02"], "Object Perception"),
        streamingbench_part("sample_1_real.mp4", ["00:00:03"], "Causal Reasoning"),
    ])  # fmt: skip
    write(tmp_path / "questions_sqa.json", [
        streamingbench_part("sample_1_sqa.mp4", ["00:00:01", "0:00:03"], "Sequential Question Answering")
    ])  # fmt: skip
    write(tmp_path / "questions_proactive.json", [])
    for video in ("sample_1_real.mp4", "sample_1_sqa.mp4"):
        write_video(tmp_path / "videos" / video)
    reading = read_benchmark("streamingbench", tmp_path, 1.0)
    assert [(episode.name, [question.at for question in episode.questions]) for episode in reading.episodes] == [
        ("sample_1_real.mp4", [2.0, 3.0]), ("sample_1_sqa.mp4", [1.0, 3.0]),
    ]  # fmt: skip
    first, second = reading.episodes[1].questions
    assert "following question and answer occurred" not in first.prompt
    assert "At timestamp 00:00:01, the following question and answer occurred" in second.prompt
    assert second.prompt.endswith("The best option is:") and "What at 0:00:03?" in second.prompt
    assert scores("streamingbench", reading, ["B", "A", "B", "B"]) == {
        "Causal Reasoning": 0.0, "Object Perception": 1.0, "Real-Time Visual Understanding": 0.5,
        "Sequential Question Answering": 1.0, "Contextual Understanding": 1.0,
    }  # fmt: skip
    assert any("proactive" in note for note in reading.notes)
    assert any("questions_omni.json is not there" in note for note in reading.notes)


def test_streamingbench_as_published_lists_sequential_parts_by_video_and_tells_what_was_asked(tmp_path: Path) -> None:
    task = "Sequential Question Answering"
    parts = {video: [streamingbench_part(f"sample_{video}_sqa.mp4", [f"00:00:0{second}"], task) for second in (1, 2, 3)]
             for video in (1, 2)}  # fmt: skip
    listed, flat = [parts[1], parts[2]], [part for pair in zip(parts[1], parts[2], strict=True) for part in pair]
    for layout, content in (("listed", listed), ("flat", flat)):
        write(tmp_path / layout / "questions_sqa.json", content)
        for video in (1, 2):
            write_video(tmp_path / layout / "data" / "sqa" / f"sample_{video}" / "video.mp4")
        reading = read_benchmark("streamingbench", tmp_path / layout, 1.0)
        told = [question.prompt.count("question and answer occurred") for question in questions(reading)]
        assert told == [0, 1, 2, 0, 1, 2] and len({question.name for question in questions(reading)}) == 6


def test_streamingbench_judges_the_first_character_and_leaves_out_empty_answers(tmp_path: Path) -> None:
    stamps = [f"00:00:0{second}" for second in range(1, 6)]
    write(tmp_path / "questions_real.json", [streamingbench_part("sample_1_real.mp4", stamps, "Counting")])
    write_video(tmp_path / "data" / "real" / "sample_1" / "video.mp4")
    reading = read_benchmark("streamingbench", tmp_path, 1.0)
    found = scores("streamingbench", reading, ["B", "Because", "The answer is B", "(B)", ""])
    assert found["Counting"] == found["Real-Time Visual Understanding"] == 0.5


def test_unpacked_streamingbench_videos_are_found_by_task_and_sample(tmp_path: Path) -> None:
    task = "Misleading Context Understanding"
    write(tmp_path / "src" / "data" / "questions_omni.json", [
        streamingbench_part(f"sample_2_{name.replace(' ', '_')}.mp4", ["00:00:02"], name)
        for name in (task, "Emotion Recognition")
    ])  # fmt: skip
    write_video(tmp_path / "data" / "omni" / task / "sample_2" / "video.mp4")
    reading = read_benchmark("streamingbench", tmp_path, 1.0)
    assert [episode.name for episode in reading.episodes] == ["sample_2_Misleading_Context_Understanding.mp4"]
    (note,) = [note for note in reading.notes if "1 of 2 videos are not there" in note]
    assert "sample_2_Emotion_Recognition.mp4" in note and str(tmp_path / "data" / "omni") in note


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (["A. one", "", "B. two", "C. three", "", "D. four"], ("one", "two", "three", "four")),
        (["A. one", "B. two", "and more", "C. three", "D. four"], ("one", "two, and more", "three", "four")),
        (["A. one", "B. two", "C. three", "D. four", "D. five"], ("one", "two", "three", "four")),
        (["A. one", "C. three", "D. four"], ("one", "", "three", "four")),
        (["one", "", "three", "four"], ("one", "", "three", "four")),
        (["A. Smith", "J. Doe", "three", "four"], ("Smith", "Doe", "three", "four")),
    ],
)
def test_options_keep_their_letters_where_one_is_empty_split_or_missing(
    options: list[str], texts: tuple[str, ...]
) -> None:
    assert right_choice("C", options, "letter", "here").choices == texts
    assert [text.partition(". ")[0] for text in lettered(options)] == list("ABCD")


def test_a_time_stamp_that_is_none_is_refused_with_its_place(tmp_path: Path) -> None:
    write(tmp_path / "questions_real.json", [streamingbench_part("a.mp4", ["noon"], "OP")])
    with pytest.raises(SettingsError, match=r"questions_real.json, part 0, question 0: time_stamp = 'noon'"):
        read_benchmark("streamingbench", tmp_path, 1.0)


# -- OVO-Bench --------------------------------------------------------------------------------------------------------


def test_ovo_bench_asks_every_moment_and_averages_tasks_then_modes(tmp_path: Path) -> None:
    choice = {"video": "Ego4D/videos/a.mp4", "question": "Who?", "answer": "a man", "options": ["a man", "a woman"],
              "gt": 0, "realtime": 3}  # fmt: skip
    write(tmp_path / "data" / "ovo_bench_new.json", [
        {"id": 0, "task": "EPM", **choice}, {"id": 1, "task": "EPM", **choice, "gt": 1},
        {"id": 2, "task": "HLD", **choice}, {"id": 3, "task": "OCR", **choice},
        {"id": 4, "task": "REC", "video": "Ego4D/videos/a.mp4", "activity": "jump",
         "test_info": [{"realtime": 1, "count": 0}, {"realtime": 3, "count": 12}]},
        {"id": 5, "task": "SSR", "video": "Ego4D/videos/a.mp4", "tutorial": "x",
         "test_info": [{"realtime": 2, "step": "stir", "type": 1}]},
        {"id": 6, "task": "CRR", "video": "Ego4D/videos/a.mp4", "question": "Is it done?", "answer": "yes",
         "ask_time": 1, "test_info": [{"realtime": 2, "type": 0}]},
    ])  # fmt: skip
    write_video(tmp_path / "data" / "src_videos" / "Ego4D" / "videos" / "a.mp4")
    reading = read_benchmark("ovo-bench", tmp_path, 1.0)
    asked = {question.name: question for question in questions(reading)}
    assert {name: question.at for name, question in asked.items()} == {
        "0": 3.0, "1": 3.0, "2": 3.0, "3": 3.0, "4-0": 1.0, "4-1": 3.0, "5": 2.0, "6": 2.0,
    }  # fmt: skip
    assert "A. a man; B. a woman;" in asked["0"].prompt and "stir" in asked["5"].prompt
    assert "How many times did they jump?" in asked["4-1"].prompt and "Is it done?" in asked["6"].prompt
    found = scores("ovo-bench", reading, ["A", "A", "A", "B", "0", "about 12 times", "Y", "No."])
    assert found == pytest.approx({
        "EPM": 0.5, "HLD": 1.0, "Backward Tracing Avg.": 0.75, "OCR": 0.0, "Real-Time Visual Perception Avg.": 0.0,
        "REC": 1.0, "SSR": 1.0, "CRR": 1.0, "Forward Active Responding Avg.": 1.0, "Overall Avg.": 1.75 / 3,
    })  # fmt: skip


def test_ovo_bench_is_asked_at_the_end_of_its_published_clips(tmp_path: Path) -> None:
    write(tmp_path / "ovo_bench_new.json", [
        {"id": 7, "task": "OCR", "video": "a.mp4", "question": "Who?", "options": ["a man", "a woman"], "gt": 0,
         "realtime": 9.5},
        {"id": 8, "task": "REC", "video": "a.mp4", "activity": "jump",
         "test_info": [{"realtime": 1, "count": 0}, {"realtime": 3, "count": 2}]},
    ])  # fmt: skip
    for clip in ("7", "8_0", "8_1"):
        write_video(tmp_path / "chunked_videos" / f"{clip}.mp4")
    reading = read_benchmark("ovo-bench", tmp_path, 1.0)
    assert [(episode.name, [question.name for question in episode.questions]) for episode in reading.episodes] == [
        ("7.mp4", ["7"]), ("8_0.mp4", ["8-0"]), ("8_1.mp4", ["8-1"]),
    ]  # fmt: skip
    assert all(math.isinf(question.at) for question in questions(reading))


def test_ovo_bench_counts_and_words_are_matched_as_its_scoring_does() -> None:
    twelve, no = digits_pattern(12), word_pattern("No")
    assert twelve.accepts("They did it 12 times") and not twelve.accepts("112") and not digits_pattern(2).accepts("")
    assert no.accepts("No, not yet") and no.accepts("N") and not no.accepts("Yes")
    assert not word_pattern("Yes").accepts("yes") and not no.accepts("Night")


# -- RVS --------------------------------------------------------------------------------------------------------------


def test_rvs_is_read_by_video_and_as_published_with_times_of_the_clip(tmp_path: Path) -> None:
    conversation = {"question": "What is on the table?", "answer": "A red cup.", "start_time": 0, "end_time": 2}
    write(tmp_path / "one" / "ego" / "ego4d_oe.json", [
        {"video_id": "v", "video_path": "data/rvs/ego/videos/v.mp4", "duration": 4, "conversations": [conversation]}
    ])  # fmt: skip
    write_video(tmp_path / "one" / "ego" / "videos" / "v.mp4")
    by_video = read_benchmark("rvs-ego", tmp_path / "one", 1.0)
    (question,) = questions(by_video)
    assert (question.at, question.text) == (2.0, "What is on the table?")
    write(tmp_path / "two" / "test_qa_movienet.json", [
        {"id": "q1", "video_id": "v", "question": "What?", "answer": "A cup.", "answer_type": "Scene Summary",
         "start_time": 60, "end_time": 63}
    ])  # fmt: skip
    write(tmp_path / "two" / "rvs_movie.json", [{"video_id": "v", "start_time": 60, "end_time": 64}])
    write_video(tmp_path / "two" / "videos" / "v.mp4")
    published = read_benchmark("rvs-movie", tmp_path / "two", 1.0)
    assert questions(published)[0].at == 3.0
    found = scores("rvs-ego", by_video, ["a blue cup"])
    assert found["Equal answers"] == 0.0 and found["Word F1"] == pytest.approx(0.5)
    assert scores("rvs-movie", published, ["the cup"])["Equal answers, Scene Summary"] == 1.0
    assert any("judged by another language model" in note for note in by_video.notes)


# -- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BENCHMARKS)
def test_an_empty_folder_says_which_files_are_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"holds no question.*is (not )?there"):
        read_benchmark(name, tmp_path, 1.0)
    with pytest.raises(SettingsError, match="no such folder"):
        read_benchmark(name, tmp_path / "nowhere", 1.0)


def test_an_entry_that_lacks_a_field_is_named_with_its_place(tmp_path: Path) -> None:
    write(tmp_path / "lvb_val.json", [{"id": "a", "question": "b"}])
    with pytest.raises(SettingsError, match=r"lvb_val.json, entry 0: lacks video_path, candidates"):
        read_benchmark("longvideobench", tmp_path, 1.0)
    (tmp_path / "lvb_val.json").write_text("{")
    with pytest.raises(SettingsError, match="is no JSON file"):
        read_benchmark("longvideobench", tmp_path, 1.0)


def test_an_answer_that_is_none_of_the_options_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "questions.json", [{"q_uid": "p", "question": "What?", **{f"option {i}": "x" for i in range(5)}}])
    write(tmp_path / "subset_answers.json", {"p": 7})
    with pytest.raises(SettingsError, match="the answer 7 is none of the options"):
        read_benchmark("egoschema", tmp_path, 1.0)


def test_a_name_that_is_no_benchmark_is_refused_with_those_that_are() -> None:
    with pytest.raises(SettingsError, match=r"--benchmark mvbench.*mlvu.*ovo-bench"):
        find_benchmark("mvbench")
