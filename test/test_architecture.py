# SPDX-License-Identifier: Apache-2.0
"""The architecture of docs/architecture.md: layers, no import circles, no private access, licence lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ros_kvstream"
GENERATED = {"msg", "srv", "action"}
SOURCES = {
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in GENERATED
}
GROUND = {"settings", "records", "poses", "errors"}
"""Modules that every layer may import."""
ALLOWED = {
    "settings": {"errors"},
    "records": {"poses"},
    "poses": {"errors"},
    "errors": set(),
    "memory": GROUND,
    "vision": GROUND | {"memory"},
    "models": GROUND | {"memory", "vision"},
    "retrieval": GROUND | {"memory", "vision", "models"},
    "stream": GROUND | {"memory", "vision", "models", "retrieval"},
    "node": GROUND | {"memory", "vision", "models", "retrieval", "stream"},
    "recordings": GROUND | {"node"},
    "patrol": GROUND | {"recordings"},
    "evaluation": GROUND | {"memory", "vision", "models", "retrieval", "stream", "recordings", "patrol", "node"},
    "commands": GROUND
    | {"memory", "vision", "models", "retrieval", "stream", "recordings", "patrol", "evaluation", "node"},
}
"""Folders and modules of the package that each layer may import besides itself."""


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imported_modules(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports anywhere, also within functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ros_kvstream"):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in SOURCES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("ros_kvstream."))


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_to_lower_layers_only(module: str) -> None:
    layer = layer_of(module)
    for imported in imported_modules(SOURCES[module]):
        target = layer_of(imported)
        if target and target != layer and target not in GENERATED:
            assert target in ALLOWED[layer], f"{module} imports {imported}"


def test_no_two_modules_import_each_other() -> None:
    graph = {module: set(imported_modules(path)) & set(SOURCES) - {module} for module, path in SOURCES.items()}
    finished: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, "import circle: " + " -> ".join((*trail[trail.index(module) :], module))
        if module not in finished:
            for imported in sorted(graph[module]):
                visit(imported, (*trail, module))
            finished.add(module)

    for module in graph:
        visit(module, ())


def private_accesses(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that use a private attribute of something other than the file's own classes, or import a private name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {
        name
        for node in ast.walk(tree)
        for name in (
            [node.name]
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            else [node.attr]
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            else [node.target.id]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            else [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else []
        )
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_exit"  # os._exit is documented


COMPATIBILITY_FILES = {"rclpy_compat.py", "torch_compat.py", "transformers_compat.py"}
"""Each lists the private names of one library that cannot be avoided, with the reason and the versions tried."""


@pytest.mark.parametrize("module", SOURCES)
def test_no_module_uses_private_names_of_another(module: str) -> None:
    if SOURCES[module].name not in COMPATIBILITY_FILES:
        assert list(private_accesses(SOURCES[module])) == []


def test_memory_knows_no_model_and_no_ros_and_the_node_no_torch() -> None:
    forbidden = {
        "memory": ("transformers", "rclpy", "sensor_msgs"),
        "node": ("torch", "transformers"),
        "settings": ("torch", "rclpy"),
        "records": ("torch", "rclpy"),
    }
    for module, path in SOURCES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in forbidden.get(layer_of(module), ()), f"{module} imports {name}"


def test_every_source_file_names_its_licence() -> None:
    folders = "ros_kvstream benchmarks training test tools launch msg srv action cmake config".split()
    suffixes = {".py", ".sh", ".msg", ".srv", ".action", ".cmake"}
    files = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes and not {*GENERATED} & set(path.relative_to(ROOT).parts[1:2])
    ]
    files += [ROOT / "setup.py", ROOT / "CMakeLists.txt", ROOT / "Makefile", ROOT / "lib/ros_kvstream/kvstream_node"]
    missing = [
        str(path.relative_to(ROOT))
        for path in files
        if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(path.read_text(encoding="utf-8").splitlines()[:3])
        and path.stat().st_size > 0
    ]
    assert missing == []
