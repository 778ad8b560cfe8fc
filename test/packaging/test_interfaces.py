# SPDX-License-Identifier: Apache-2.0
"""The interface definitions: documented, listed for the build, and complete against the records they carry."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from rosidl_adapter.parser import Field, parse_action_file, parse_message_file, parse_service_file

from ros_kvstream import records

ROOT = Path(__file__).parents[2]
INTERFACES = sorted([*ROOT.glob("action/*.action"), *ROOT.glob("msg/*.msg"), *ROOT.glob("srv/*.srv")])


def parsed_fields(path: Path) -> list[Field]:
    """Return the fields of a message, of a service's request and response, or of an action's three parts."""
    if path.suffix == ".msg":
        return list(parse_message_file("ros_kvstream", str(path)).fields)
    if path.suffix == ".action":
        action = parse_action_file("ros_kvstream", str(path))
        return [*action.goal.fields, *action.result.fields, *action.feedback.fields]
    service = parse_service_file("ros_kvstream", str(path))
    return [*service.request.fields, *service.response.fields]


@pytest.mark.parametrize("path", INTERFACES, ids=lambda path: path.name)
def test_every_field_has_a_comment(path: Path) -> None:
    comments = {field.name: "".join(field.annotations.get("comment", [])).strip() for field in parsed_fields(path)}
    silent = [name for name, comment in comments.items() if not comment]
    assert silent == []


@pytest.mark.parametrize("path", INTERFACES, ids=lambda path: path.name)
def test_every_number_with_a_unit_in_its_name_says_the_unit(path: Path) -> None:
    for field in parsed_fields(path):
        comment = " ".join(field.annotations["comment"])
        if field.name.endswith("_ms"):
            assert "ms" in comment.split() or "ms." in comment or "ms;" in comment, field.name
        if field.name.endswith("bytes"):
            assert "bytes" in comment.lower(), field.name


def test_cmake_generates_exactly_the_files_that_exist() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    listed = re.findall(r'"((?:action|msg|srv)/\w+\.\w+)"', cmake)
    assert listed == [path.relative_to(ROOT).as_posix() for path in INTERFACES]


IN_DIAGNOSTICS = {"camera_slots", "archive_problem", "position_limit", "position_source"}
"""Figures that the node reports in words, on /diagnostics, and not in ~/stats."""


@pytest.mark.parametrize(("record", "message", "renamed"), [
    (records.FrameEvidence, "FrameEvidence", {"base_end": "base_pose_end"}),
    (records.LatencyBreakdown, "LatencyBreakdown", {}),
    (records.MemoryStats, "KvStats", {}),
    (records.Answer, "Answer", {"text": "answer", "asked_at": "header"}),
])
def test_a_message_carries_every_field_of_its_record(record: type, message: str, renamed: dict[str, str]) -> None:
    names = {field.name for field in parsed_fields(ROOT / "msg" / f"{message}.msg")}
    assert {renamed.get(field.name, field.name) for field in fields(record)} - IN_DIAGNOSTICS <= names


def test_an_answer_message_and_a_query_response_carry_the_same() -> None:
    answer = {field.name for field in parsed_fields(ROOT / "msg" / "Answer.msg")} - {"header"}
    query = {field.name for field in parsed_fields(ROOT / "srv" / "Query.srv")}
    assert answer <= query


def test_generated_classes_have_the_fields_of_the_definitions() -> None:
    from ros_kvstream.msg import KvStats

    defined = [field.name for field in parsed_fields(ROOT / "msg" / "KvStats.msg")]
    assert list(KvStats.get_fields_and_field_types()) == defined
