"""Imports run one way, names are unique, and nothing grows past what a reader can hold.

Floors: retrieval < medagent (without cli) < evaluation < training < medagent/cli, the top one.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from lightning import Callback, LightningModule

from tests.support import ROOT

FLOORS = ["medagent.retrieval", "medagent", "medagent.evaluation", "medagent.training", "medagent.cli"]
FOLDERS = ("retrieval", "medagent", "evaluation", "training")
FILES = [path for package in FOLDERS for path in sorted((ROOT / package).rglob("*.py"))]
WRITTEN = [
    *FILES,
    *(p for folder in ("tests", "benchmarks", "studies", "examples", "docs") for p in (ROOT / folder).rglob("*.py")),
]
LONGEST_MODULE = 350  # lines
LONGEST_LINE = 120  # columns
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Lightning documents these.
HOOKS = {"state_dict", "load_state_dict", "validation_step"}
HOOKS |= {name for name in (*dir(Callback), *dir(LightningModule)) if name.startswith("on_")}


def module_of(path: Path) -> str:
    inside = path.relative_to(ROOT).with_suffix("")
    parts = inside.parts if inside.parts[0] == "medagent" else ("medagent", *inside.parts)
    return ".".join(parts).removesuffix(".__init__")


def floor_of(module: str) -> int:
    if module == "medagent.lazy":  # the one helper that packages of all floors need
        return 0
    inner = ".".join(module.split(".")[:2])
    return FLOORS.index(inner if inner in FLOORS else "medagent")


MODULES = {module_of(path) for path in FILES}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> list[tuple[str, ast.stmt]]:
    """The project's modules that a file imports, wherever in it; `from package import module` counts as the module."""
    found: list[tuple[str, ast.stmt]] = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the floor"
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.append((inner if inner in MODULES else base, node))
    return [(name, node) for name, node in found if name.split(".")[0] == "medagent"]


def for_type_checkers(path: Path) -> list[ast.stmt]:
    """The statements below `if TYPE_CHECKING:`, by which packages declare their lazy names."""
    tests = (node for node in tree_of(path).body if isinstance(node, ast.If))
    return [inner for node in tests if ast.unparse(node.test) == "TYPE_CHECKING" for inner in node.body]


def test_a_module_imports_only_its_own_floor_and_those_below() -> None:
    higher = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"
        for path in FILES
        for name, node in imported(path)
        if floor_of(name) > floor_of(module_of(path))
        and not (module_of(path) == "medagent" and node in for_type_checkers(path))
    ]
    assert not higher


def test_below_the_command_line_no_function_imports_the_project() -> None:
    inside = [
        f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"
        for path in FILES
        if floor_of(module_of(path)) < len(FLOORS) - 1
        for name, node in imported(path)
        if node not in [*tree_of(path).body, *for_type_checkers(path)]
    ]
    assert not inside


def test_no_import_cycles() -> None:
    # Declarations of commands import what they run inside their functions: those are no cycles at import time.
    graph = {
        module_of(path): {
            name for name, node in imported(path) if node in tree_of(path).body and name != module_of(path)
        }
        for path in FILES
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail, name])
        if name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_no_public_class_name_is_defined_twice() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module_of(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_a_public_method_is_documented_in_its_class_or_in_a_base() -> None:
    classes = {node.name: node for path in FILES for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)}

    def documented(owner: ast.ClassDef, name: str) -> bool:
        own = [each for each in owner.body if isinstance(each, FUNCTIONS) and each.name == name]
        bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in owner.bases]
        return any(map(ast.get_docstring, own)) or any(documented(classes[b], name) for b in bases if b in classes)

    assert not [
        f"{name}.{each.name}"
        for name, owner in classes.items()
        for each in owner.body
        if not name.startswith("_") and isinstance(each, FUNCTIONS) and not each.name.startswith("_")
        if each.name not in HOOKS and not documented(owner, each.name)
    ]


def test_modules_stay_small() -> None:
    long = {module_of(path): n for path in WRITTEN if (n := len(path.read_text().splitlines())) > LONGEST_MODULE}
    assert not long


def test_lines_stay_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in WRITTEN
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > LONGEST_LINE
    ]
    assert not long


def closure(module: str) -> dict[str, int]:
    """Module -> lines of everything that importing `module` loads, the packages around each included."""
    paths = {module_of(path): path for path in FILES}
    lines: dict[str, int] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        waiting += [name.rpartition(".")[0]] if "." in name else []
        if name in paths and name not in lines:
            lines[name] = len(paths[name].read_text(encoding="utf-8").splitlines())
            waiting += [other for other, node in imported(paths[name]) if node in tree_of(paths[name]).body]
    return lines


def test_a_module_pulls_in_only_so_much() -> None:
    for module, files, lines in (
        ("medagent.training.module", 46, 7_000),
        ("medagent.agent", 28, 3_300),
        ("medagent.training.run", 200, 28_100),
    ):
        found = closure(module)
        size = (len(found), sum(found.values()))
        assert size[0] <= files and size[1] <= lines, f"{module} loads {size}: {sorted(found)}"  # noqa: PT018


def test_one_optimizer_step_is_few_files_listed_in_the_docs() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    section = page.split("## One optimizer step")[1].split("\n## ")[0]
    files = [ROOT / name for name in re.findall(r"^\| `(training/[\w/]+\.py)`", section, flags=re.MULTILINE)]
    assert 10 <= len(files) <= 14
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 3_000
