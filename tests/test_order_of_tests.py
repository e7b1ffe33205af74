"""Tests share code through conftest.py and support modules, never through one another."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.support import ROOT

FILES = sorted((ROOT / "tests").rglob("*.py"))
TEST_MODULES = [path for path in FILES if path.name.startswith("test_")]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> list[str]:
    """Everything a file imports, wherever in it; `from package import name` counts as `package.name`."""
    found: list[str] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_no_test_module_is_imported() -> None:
    modules = {name_of(each).removesuffix(".py").replace("/", ".") for each in TEST_MODULES}
    wrong = {
        name_of(path): names
        for path in FILES
        if (names := [name for name in imported(path) if name in modules or name.rpartition(".")[0] in modules])
    }
    assert not wrong, "move what is shared to a support module or to conftest.py"


def test_only_the_support_module_finds_the_repository() -> None:
    counted = [
        f"{name_of(path)}:{node.lineno}"
        for path in FILES
        if path != ROOT / "tests" / "support.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and (node.attr == "parents" or (node.attr == "parent" and isinstance(node.value, ast.Attribute)))
        and any(isinstance(inner, ast.Name) and inner.id == "__file__" for inner in ast.walk(node))
    ]
    assert not counted, "take the path from tests.support"


def test_every_test_module_lies_in_a_package() -> None:
    folders = {path.parent for path in TEST_MODULES}
    assert not [name_of(folder) for folder in folders if not (folder / "__init__.py").exists()]


def test_no_two_tests_of_a_module_have_one_name() -> None:
    """Python keeps the last of two functions with one name, so the first would never run."""
    for path in TEST_MODULES:
        names = [node.name for node in tree_of(path).body if isinstance(node, ast.FunctionDef)]
        twice = sorted({name for name in names if names.count(name) > 1})
        assert not twice, f"{name_of(path)} defines {twice} twice"
