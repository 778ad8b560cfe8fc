# SPDX-License-Identifier: Apache-2.0
"""The report: self-contained, escaped, in the page's own colours, with pictures of the evidence."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from ros_kvstream.evaluation.episodes import Episode
from ros_kvstream.evaluation.grid import Cell
from ros_kvstream.evaluation.report import best_cell, collect_pictures, question_cards, thumbnail, write_report
from ros_kvstream.evaluation.summary import CellSummary, summarise
from ros_kvstream.recordings.frame_sources import StreamFrame

HOSTILE = "<script>alert('x')</script> & \"quotes\" $x_1$"


@dataclass(frozen=True)
class Greys:
    """Ten frames, one a second, each of its own grey; two cameras in turn."""

    name: str = HOSTILE

    def data(self) -> dict[str, Any]:
        return {}

    def count(self) -> int:
        return 10

    def first_stamp(self) -> float:
        return 100.0

    def frames(self, note: Any) -> Iterator[StreamFrame]:
        for index in range(10):
            yield StreamFrame(100.0 + index, ("front", "rear")[index % 2], np.full((60, 80, 3), 20 * index, np.uint8))


def results(cells: list[Cell]) -> list[CellSummary]:
    """Two questions to each cell; the first is right everywhere, the second only with more than 1 MiB."""
    runs, lines = [], []
    for index, cell in enumerate(cells):
        trace = [{"frames": n, "stamp": 100.0 + n, "used_bytes": 1000 * n, "archive_bytes": 0, "ingest_ms": 1.0 + n}
                 for n in range(1, 11)]  # fmt: skip
        runs.append({"run": str(index), "cell": cell.data(), "episode": HOSTILE, "status": "done", "reason": "",
                     "budget_bytes": int(cell.budget_mib * 2**20), "frames": 10, "first_stamp": 100.0, "trace": trace,
                     "notes": [HOSTILE], "memory": {"peak_bytes": 5000, "archive_bytes": 0}})  # fmt: skip
        for question, kind, at, evidence in (("q1", "now", 105.0, [105.0]), ("q2", "before", 109.0, [101.0, 102.0])):
            right = question == "q1" or cell.budget_mib > 1
            lines.append({
                "run": str(index), "cell": cell.data(), "episode": HOSTILE, "question": question, "text": HOSTILE,
                "expected": {"exact": HOSTILE}, "kind": kind, "task": HOSTILE, "camera": "", "at": at, "tags": {},
                "first_stamp": 100.0, "true_evidence": evidence, "answer": HOSTILE if right else "no", "error": "",
                "correct": right, "asked_at": at, "frames_before": int(at - 99),
                "evidence": [{"stamp": 103.0, "stamp_end": 103.0, "camera": "rear", "score": 1.0}],
                "latency": {"first_token_ms": 5.0 + index, "total_ms": 9.0}, "memory": None,
            })  # fmt: skip
    return summarise(runs, lines)


class Page(HTMLParser):
    """Collects tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page]:
    cells = [Cell("tiny", policy, mib) for policy in ("infinipot_v", "recent") for mib in (1.0, 2.0)]
    cells.append(Cell("tiny", "full", 2.0, archive_mib=1.0))
    path = write_report(results(cells), [Episode(Greys(), ())], tmp_path_factory.mktemp("report"))
    return path, Page(path.read_text())


def test_nothing_is_loaded_from_outside(report: tuple[Path, Page]) -> None:
    path, page = report
    text = path.read_text()
    loads = ("src", "href", "xlink:href", "action", "data")
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in loads and value]
    assert [link for link in links if not link.startswith("#")] == []
    assert re.findall(r"url\((?!#|data:image/jpeg;base64,)[^)]*\)|@import", text) == []


def test_what_users_write_is_shown_as_text_and_never_run(report: tuple[Path, Page]) -> None:
    path, page = report
    assert [tag for tag, _ in page.tags].count("script") == 1  # the page's own
    assert page.text.count(HOSTILE) >= 6
    assert "<script>alert" not in path.read_text()


def test_plots_are_there_inline_and_as_files_and_take_the_colours_of_the_page(report: tuple[Path, Page]) -> None:
    path, page = report
    figures = [attributes["id"] for tag, attributes in page.tags if tag == "figure"]
    assert figures == ["accuracy", "age", "recall", "latency", "memory"]
    assert sorted(file.stem for file in (path.parent / "plots").iterdir()) == sorted(figures)  # type: ignore[type-var]
    for name in figures:
        picture = cv2.imread(str(path.parent / "plots" / f"{name}.png"))
        assert picture is not None and picture.std() > 5
    text = path.read_text()
    drawings = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(drawings) == 5
    assert all("var(--ink)" in drawing and "var(--s-infinipot_v)" in drawing for drawing in drawings)
    assert not any("#1d2430" in drawing or "#1463c8" in drawing for drawing in drawings)
    assert "prefers-color-scheme: dark" in text


def test_ids_of_the_plots_do_not_meet(report: tuple[Path, Page]) -> None:
    ids = [attributes["id"] for _, attributes in report[1].tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    text = report[0].read_text()
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    assert {link[1:] for _, attributes in report[1].tags if (link := attributes.get("xlink:href"))} <= set(ids)


def test_pictures_are_those_of_the_evidence_and_of_what_was_looked_at(report: tuple[Path, Page]) -> None:
    data = re.findall(r"base64,([A-Za-z0-9+/=]+)", report[0].read_text())
    pictures = [cv2.imdecode(np.frombuffer(base64.b64decode(jpeg), np.uint8), 1) for jpeg in data]
    greys = [round(float(picture.mean()) / 20) for picture in pictures]
    assert sorted(greys) == [1, 2, 3, 5]  # evidence at 101, 102 and 105 s, looked at: 103 s


def test_the_best_memory_has_most_right_answers_then_fewest_bytes() -> None:
    summaries = results([Cell("tiny", "recent", mib) for mib in (1.0, 8.0, 4.0)])
    best = best_cell(summaries)
    assert best is not None and best.cell.budget_mib == 4.0
    assert best_cell([]) is None


def test_cards_hold_each_question_once_with_the_answers_of_all_memories() -> None:
    summaries = results([Cell("tiny", "recent", mib) for mib in (1.0, 2.0)])
    first, second = question_cards(summaries, summaries[1])
    assert (first["right"], first["judged"]) == (2, 2)
    assert list(first["answers"].values()) == [["recent 1 MiB", "recent 2 MiB"]]
    assert (second["right"], second["judged"]) == (1, 2)
    assert second["answers"][("no", False)] == ["recent 1 MiB"]


def test_the_number_of_pictures_is_bounded_and_a_lost_recording_gives_none() -> None:
    summaries = results([Cell("tiny", "recent", 1.0)])
    cards = question_cards(summaries, summaries[0])
    assert len(collect_pictures(cards, [Episode(Greys(), ())], 2)) == 2
    assert collect_pictures(cards, [], 9) == {}


def test_a_report_without_a_single_answer_is_still_written(tmp_path: Path) -> None:
    cell = Cell("tiny", "full", 1.0)
    runs = [{"run": "1", "cell": cell.data(), "episode": "e", "status": "refused", "reason": "too small", "trace": []}]
    path = write_report(summarise(runs, []), [], tmp_path)
    assert "refused: too small" in Page(path.read_text()).text


def test_a_thumbnail_keeps_the_shape_of_its_picture() -> None:
    data = base64.b64decode(thumbnail(np.zeros((480, 640, 3), np.uint8)))
    assert cv2.imdecode(np.frombuffer(data, np.uint8), 1).shape == (99, 132, 3)
