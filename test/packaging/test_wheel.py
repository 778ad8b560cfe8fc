# SPDX-License-Identifier: Apache-2.0
"""The wheel that pip builds holds everything that a user needs, and nothing else.

It is built in the checkout, where `make env` has compiled the interfaces: only what changed is compiled again.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest
from support.packaging import ROOT, require_programs, run

GENERATED = ("action", "msg", "srv")
COMPILED = ROOT / "build" / f"pip-{sys.implementation.cache_tag}" / "cmake" / "CMakeCache.txt"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel over the remains of an earlier version."""
    require_programs("cmake", "make", "g++")
    if not COMPILED.exists():
        pytest.skip("pip has not built the interfaces in this source folder; `make env` does")
    folder = tmp_path_factory.mktemp("wheel")
    removed = folder / "lib" / "ros_kvstream" / "removed_since.py"
    removed.parent.mkdir(parents=True)
    removed.touch()
    configuration = folder / "distutils.cfg"
    configuration.write_text(f"[build]\nbuild_base = {folder}\nbuild_lib = {folder / 'lib'}\n")
    run(["env", f"DIST_EXTRA_CONFIG={configuration}", sys.executable, "-m", "pip", "wheel", "--no-deps",
         "--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", folder, ROOT], folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def entries(wheel: Path) -> dict[str, zipfile.ZipInfo]:
    """Return the files of the wheel by name; those for the prefix begin with "data/"."""
    with zipfile.ZipFile(wheel) as archive:
        return {name.filename.partition(".data/")[2] or name.filename: name for name in archive.infolist()}


def test_it_holds_the_files_of_the_package_and_the_generated_modules(entries: dict[str, zipfile.ZipInfo]) -> None:
    package = ROOT / "ros_kvstream"
    sources = {
        path.relative_to(ROOT).as_posix() for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".so", ".pyc") and path.relative_to(package).parts[0] not in GENERATED
    }
    found = {name for name in entries if name.startswith("ros_kvstream/")}
    generated = {name for name in found if name.endswith(".so") or name.split("/")[1] in GENERATED}
    assert found - generated == sources
    assert {f"ros_kvstream/{kind}/__init__.py" for kind in GENERATED} <= generated
    assert any(name.endswith(".so") for name in generated)


def test_it_holds_headers_libraries_executable_and_share(entries: dict[str, zipfile.ZipInfo]) -> None:
    assert "data/lib/libros_kvstream__rosidl_typesupport_cpp.so" in entries
    assert "data/include/ros_kvstream/ros_kvstream/msg/kv_stats.hpp" in entries
    for kind in ("launch", "config"):
        installed = f"data/share/ros_kvstream/{kind}/"
        names = {path.name for path in (ROOT / kind).iterdir() if path.is_file()}
        assert {name.removeprefix(installed) for name in entries if name.startswith(installed)} == names
    assert "data/share/ament_index/resource_index/packages/ros_kvstream" in entries
    assert entries["data/lib/ros_kvstream/kvstream_node"].external_attr >> 16 & 0o111


def test_it_holds_no_benchmark_no_training_and_no_test(entries: dict[str, zipfile.ZipInfo]) -> None:
    assert {name.partition("/")[0] for name in entries if "dist-info/" not in name} == {"data", "ros_kvstream"}
    assert [name for name in entries if {"benchmarks", "training", "test", "tests"} & set(name.split("/"))] == []


def test_it_is_bound_to_the_version_of_python_and_the_platform(wheel: Path) -> None:
    assert f"cp{sys.version_info.major}{sys.version_info.minor}" in wheel.name and os.uname().machine in wheel.name
