# SPDX-License-Identifier: Apache-2.0
"""Test modules that `colcon test` can collect: pytest's plugin launch_testing imports each of them by its bare name.

An exception in that import, a skip included, ends the collection of all tests.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

MODULES = sorted(Path(__file__).parents[1].rglob("test_*.py"))


def test_names_of_test_modules_are_unique() -> None:
    assert [name for name, count in Counter(path.name for path in MODULES).items() if count > 1] == []


def test_no_module_is_skipped_while_it_is_imported() -> None:
    assert [path.name for path in MODULES if names_at_import(path) & {"importorskip", "skip"}] == []


def names_at_import(path: Path) -> set[str]:
    """Return the attributes that a module's statements outside functions and classes use."""
    statements = [node for node in ast.parse(path.read_text(encoding="utf-8")).body
                  if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return {node.attr for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
