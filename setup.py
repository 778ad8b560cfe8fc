# SPDX-License-Identifier: Apache-2.0
"""Build the ROS interfaces for pip: install the CMake project into a staging folder and add the result to the wheel.

colcon does not use this file. The metadata is in pyproject.toml.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.build import build

NAME = "ros_kvstream"
SOURCE = Path(__file__).resolve().parent
WORK = SOURCE / "build" / f"pip-{sys.implementation.cache_tag}"
STAGE = WORK / "stage"
TOOLS = {"cmake": "cmake", "make": "make", "g++": "g++"}


def ros_prefix() -> Path:
    """Return the install prefix of ROS 2: the prefix of rosidl_cli, also in an isolated build."""
    spec = importlib.util.find_spec("rosidl_cli")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "ros_kvstream needs ROS 2 to build its interfaces: source /opt/ros/<distribution>/setup.bash, "
            "or pip install -r requirements-ros-jazzy.txt, or let pip build in isolation."
        )
    return Path(spec.origin).resolve().parents[4]


def require_tools() -> None:
    """Exit with the install command if a program of the C++ tool chain is missing."""
    missing = [package for program, package in TOOLS.items() if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"missing to build the interfaces; on Debian or Ubuntu: sudo apt install {' '.join(missing)}")


def build_environment(prefix: Path) -> dict[str, str]:
    """Return the environment of the CMake calls: ROS 2's prefix first, and the import path of this Python."""
    def joined(name: str, *first: str) -> str:
        return os.pathsep.join([*first, *filter(None, os.environ.get(name, "").split(os.pathsep))])

    return {
        **os.environ,
        "PATH": joined("PATH", str(Path(sys.executable).parent), str(prefix / "bin")),
        "LD_LIBRARY_PATH": joined("LD_LIBRARY_PATH", str(prefix / "lib")),
        "AMENT_PREFIX_PATH": joined("AMENT_PREFIX_PATH", str(prefix)),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def build_interfaces() -> None:
    """Configure, compile and install the CMake project into STAGE."""
    require_tools()
    prefix = ros_prefix()
    environment = build_environment(prefix)
    shutil.rmtree(STAGE, ignore_errors=True)
    configure = [
        "cmake", "-S", str(SOURCE), "-B", str(WORK / "cmake"), "-G", "Unix Makefiles",
        "-Wno-dev", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_TESTING=OFF",
        f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_INSTALL_PREFIX={sys.prefix}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        f"-DCMAKE_PROJECT_INCLUDE={SOURCE / 'cmake' / 'wheel_prefix.cmake'}",
    ]
    build = ["cmake", "--build", str(WORK / "cmake"), "--parallel", str(os.cpu_count() or 1)]
    install = ["cmake", "--install", str(WORK / "cmake"), "--prefix", str(STAGE)]
    for command in (configure, build, install):
        subprocess.run(command, check=True, env=environment)


def staged_data_files() -> list[tuple[str, list[str]]]:
    """List the files for the prefix besides the modules: headers, libraries, the executable, share/."""
    folders: dict[str, list[str]] = {}
    for path in sorted(STAGE.rglob("*")):
        relative = path.relative_to(STAGE)
        if path.is_file() and not {"site-packages", "dist-packages"} & set(relative.parts):
            folders.setdefault(str(relative.parent), []).append(str(path.relative_to(SOURCE)))
    return list(folders.items())


class BuildInterfaces(Command):
    """Sub-command of build that adds the generated modules to the package (editable install: to the source folder)."""

    description = "build the ROS interfaces"
    user_options: list[tuple[str, str, str]] = []

    def initialize_options(self) -> None:
        """Declare what setuptools sets."""
        self.build_lib: str | None = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Take the folder of the modules from the build command."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Build the interfaces, then add their modules and data files to the distribution."""
        build_interfaces()
        self.distribution.data_files = staged_data_files()
        target = SOURCE / NAME if self.editable_mode else Path(str(self.build_lib)) / NAME
        for module in self._modules():
            path = target / module.relative_to(self._generated())
            path.parent.mkdir(parents=True, exist_ok=True)
            # Replace the library instead of overwriting it: a running node has it mapped.
            fresh = path.with_name(path.name + ".new")
            shutil.copy2(module, fresh)
            fresh.replace(path)

    def _generated(self) -> Path:
        (folder,) = {path.parents[1] for path in STAGE.rglob(f"{NAME}/msg/__init__.py")}
        return folder

    def _modules(self) -> list[Path]:
        patterns = ("action/*.py", "msg/*.py", "srv/*.py", "*.so")
        return [path for pattern in patterns for path in sorted(self._generated().glob(pattern))]

    def get_source_files(self) -> list[str]:
        """List the files for a source distribution: none."""
        return []

    def get_outputs(self) -> list[str]:
        """List the files that run() wrote below build_lib."""
        if self.editable_mode:
            return []
        return [str(Path(str(self.build_lib), NAME, path.relative_to(self._generated()))) for path in self._modules()]

    def get_output_mapping(self) -> dict[str, str]:
        """Map outputs to sources: empty, since the modules are generated."""
        return {}


class Build(build):
    """The build command with the interfaces as its last sub-command."""

    sub_commands = [*build.sub_commands, ("build_interfaces", None)]

    def run(self) -> None:
        """Build into an empty folder: modules of an earlier version would end up in the wheel."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BinaryDistribution(Distribution):
    """A distribution for one platform and one version of Python."""

    def has_ext_modules(self) -> bool:
        """Return True: the interfaces are extension modules."""
        return True

    def has_data(self) -> bool:
        """Return whether there are data files; editable installs call this name, which distutils lacks."""
        return bool(self.has_data_files())


setup(cmdclass={"build": Build, "build_interfaces": BuildInterfaces}, distclass=BinaryDistribution)
