"""Imports run one way: retrieval <- medagent <- evaluation <- training; the command line alone may import all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = ["retrieval", "medagent", "evaluation", "training"]
FILES = [path for package in ORDER for path in sorted((ROOT / package).rglob("*.py"))]
CLI = {
    ROOT / "medagent" / name for name in ("cli.py", "cli_asking.py", "cli_index.py", "cli_training.py")
}  # the command line


def imported(tree: ast.AST) -> list[tuple[str, ast.stmt]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            found.append((node.module or "", node))
    return [(name, node) for name, node in found if name.split(".")[0] in ORDER]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_its_own_layer_and_those_below(path: Path) -> None:
    tree = ast.parse(path.read_text())
    layer = ORDER.index(path.relative_to(ROOT).parts[0])
    top_level = set(tree.body)
    for name, node in imported(tree):
        if path in CLI:
            if node in top_level:
                assert ORDER.index(name.split(".")[0]) <= layer, f"cli imports {name} outside its commands"
            continue
        assert ORDER.index(name.split(".")[0]) <= layer, f"{path.name} imports {name} from a higher layer"
        assert node in top_level, f"{path.name}:{node.lineno} imports {name} inside a function"


def test_no_import_cycles() -> None:
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    graph = {
        name: {target for target, _ in imported(ast.parse(path.read_text())) if target in modules and target != name}
        for name, path in modules.items()
        if path not in CLI
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


def test_files_stay_small() -> None:
    long = {path.name: n for path in FILES if (n := len(path.read_text().splitlines())) > 350}
    assert not long
