# SPDX-License-Identifier: Apache-2.0
"""The wheel that pip builds holds everything that a user needs."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

from support.packaging import require_programs, run


def test_a_wheel_holds_modules_interfaces_libraries_and_share(source_copy: Path, tmp_path: Path) -> None:
    require_programs("cmake", "make", "g++")
    run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--disable-pip-version-check",
         "--wheel-dir", tmp_path, source_copy], tmp_path)
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        entries = {entry.filename: entry for entry in wheel.infolist()}
    prefix = next(name for name in entries if "/data/share/" in name).split("share/")[0]

    files = [path for path in (source_copy / "ros_kvstream").rglob("*") if path.is_file()]
    assert {path.relative_to(source_copy).as_posix() for path in files} <= set(entries)
    assert {"ros_kvstream/msg/__init__.py", "ros_kvstream/srv/__init__.py"} <= set(entries)
    assert any(name.startswith("ros_kvstream/") and name.endswith(".so") for name in entries)
    assert f"{prefix}lib/libros_kvstream__rosidl_typesupport_cpp.so" in entries
    assert f"{prefix}include/ros_kvstream/ros_kvstream/msg/kv_stats.hpp" in entries
    for kind in ("launch", "config"):
        for file in (source_copy / kind).iterdir():
            assert f"{prefix}share/ros_kvstream/{kind}/{file.name}" in entries
    assert f"{prefix}share/ament_index/resource_index/packages/ros_kvstream" in entries
    assert entries[f"{prefix}lib/ros_kvstream/kvstream_node"].external_attr >> 16 & 0o111
    assert f"cp{sys.version_info.major}{sys.version_info.minor}" in path.name and os.uname().machine in path.name
