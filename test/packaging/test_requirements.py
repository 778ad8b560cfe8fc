# SPDX-License-Identifier: Apache-2.0
"""The requirement files: exact, explained, free of hosts, and in agreement with pyproject.toml."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("requirements*.txt"))


def lines(path: Path) -> list[tuple[str, str]]:
    """Return (requirement, reason) of every line that is not a comment."""
    parts = (line.partition("#") for line in path.read_text().splitlines() if line.strip() and not line.startswith("#"))
    return [(requirement.strip(), reason.strip()) for requirement, _, reason in parts]


def pins(*paths: Path) -> dict[tuple[str, str], Requirement]:
    """Return the requirements by name and environment marker."""
    found = [Requirement(requirement) for path in paths for requirement, _ in lines(path)]
    return {(canonicalize_name(item.name), str(item.marker or "")): item for item in found}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_requirement_is_one_exact_version_with_a_reason(path: Path) -> None:
    for requirement, reason in lines(path):
        (specifier,) = Requirement(requirement).specifier
        assert specifier.operator == "==" and "*" not in specifier.version, requirement
        assert reason, requirement


@pytest.mark.parametrize("path", [*FILES, ROOT / "pyproject.toml"], ids=lambda path: path.name)
def test_no_index_is_named(path: Path) -> None:
    assert re.search(r"https?://|--(extra-)?index-url +[a-z]|--find-links", path.read_text()) is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_required_twice_for_the_same_python(path: Path) -> None:
    assert len(pins(path)) == len(lines(path))


def test_an_isolated_build_uses_the_versions_of_the_requirement_files(project: dict[str, Any]) -> None:
    known = pins(ROOT / "requirements.txt", ROOT / "requirements-ros-jazzy.txt")
    for text in project["build-system"]["requires"]:
        item = Requirement(text)
        assert item.specifier == known[canonicalize_name(item.name), str(item.marker or "")].specifier


def test_the_tested_versions_lie_within_the_ranges_of_the_project(project: dict[str, Any]) -> None:
    items = map(Requirement, project["project"]["dependencies"])
    ranges = {canonicalize_name(item.name): item.specifier for item in items}
    tested = pins(ROOT / "requirements.txt")
    assert {name for name, _ in tested} == set(ranges)
    for (name, _), item in tested.items():
        (pin,) = item.specifier
        assert ranges[name].contains(pin.version), f"{item} is outside {ranges[name]}"


def test_every_list_of_ros_wheels_holds_the_same_packages_for_run_time() -> None:
    def at_run_time(path: Path) -> set[str]:
        names = {re.sub(r"^ros-[a-z]+-", "", name) for name, _ in pins(path)}
        return {name for name in names if name == "rclpy" or name.endswith(("-msgs", "-srvs"))}

    jazzy = at_run_time(ROOT / "requirements-ros-jazzy.txt")
    assert {"rclpy", "sensor-msgs"} <= jazzy
    assert all(at_run_time(path) == jazzy for path in ROOT.glob("requirements-ros-*.txt"))


def test_torchvision_and_torchaudio_are_not_needed() -> None:
    names = {name for path in FILES for name, _ in pins(path)}
    assert names.isdisjoint({"torchvision", "torchaudio"})
