# SPDX-License-Identifier: Apache-2.0
"""colcon builds the package in a workspace of its own, and the sources stay editable with --symlink-install."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from support.packaging import CMAKE_ARGUMENTS, NOT_SOURCE, ROOT, require_programs, ros_prefixes, run

IMPORTS = """
import ros_kvstream.settings
from ros_kvstream.msg import KvStats
from ros_kvstream.srv import Query
from ament_index_python.packages import get_package_prefix
KvStats.__class__.__import_type_support__()
print(ros_kvstream.settings.__file__, get_package_prefix("ros_kvstream"), KvStats._TYPE_SUPPORT is not None)
"""


def test_colcon_builds_and_installs_the_package(tmp_path: Path) -> None:
    require_programs("colcon", "cmake", "make", "g++")
    workspace = tmp_path / "workspace"
    source = workspace / "ros_kvstream"
    shutil.copytree(ROOT, source, ignore=NOT_SOURCE)
    for folder in ("action", "msg", "srv"):
        shutil.rmtree(source / "ros_kvstream" / folder, ignore_errors=True)
    run(["colcon", "build", "--symlink-install", "--cmake-args", *CMAKE_ARGUMENTS], workspace)
    installed = workspace / "install" / "ros_kvstream"

    node = installed / "lib" / "ros_kvstream" / "kvstream_node"
    assert node.resolve() == source / "lib" / "ros_kvstream" / "kvstream_node" and os.access(node, os.X_OK)
    for kind in ("launch", "config"):
        names = {path.name for path in (source / kind).iterdir()}
        assert names == {path.name for path in (installed / "share" / "ros_kvstream" / kind).iterdir()}
    sourced = f'. "{workspace}/install/local_setup.sh" && exec "{sys.executable}" -c "$0"'
    settings, prefix, has_type_support = run(["sh", "-c", sourced, IMPORTS], tmp_path).split()
    assert Path(settings).resolve() == source / "ros_kvstream" / "settings.py"
    assert Path(prefix) == installed and str(installed) not in ros_prefixes()
    assert has_type_support == "True"
