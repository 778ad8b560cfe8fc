# SPDX-License-Identifier: Apache-2.0
"""A C++ package that uses the interfaces builds against the installed package and runs."""

from __future__ import annotations

from pathlib import Path

from support.packaging import CMAKE_ARGUMENTS, require_programs, run

CONSUMER = Path(__file__).parent / "consumer"


def test_a_cpp_package_finds_the_interfaces_and_runs(tmp_path: Path) -> None:
    require_programs("cmake", "make", "g++")
    run(["cmake", "-S", CONSUMER, "-B", tmp_path, "-G", "Unix Makefiles", *CMAKE_ARGUMENTS], tmp_path)
    run(["cmake", "--build", tmp_path], tmp_path)

    evidence, drops, frame, x, w, message_known, service_known = run([tmp_path / "consumer"], tmp_path).split()

    assert (evidence, drops) == ("2", "3")
    assert (frame, x, w) == ("map", "1.5", "1")  # the goal of the answer; w: no rotation unless set
    assert (message_known, service_known) == ("1", "1")
