"""How much of the project a module pulls in: a reader, and a process that starts, must take it all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import ROOT


@cache
def path_of(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()), None)


@cache
def imported(path: Path) -> frozenset[str]:
    """The project's modules that a file imports while it is loaded, the packages around them included."""
    found = set()
    for node in at_import(ast.parse(path.read_text(encoding="utf-8")).body):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            found |= {".".join(parts[: size + 1]) for size in range(len(parts))}
    return frozenset(name for name in found if name.split(".")[0] == "medagent" and path_of(name))


def at_import(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If | ast.Try) and "TYPE_CHECKING" not in ast.unparse(node).split("\n")[0]:
            yield from at_import([each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom)])


def closure(module: str) -> dict[str, int]:
    """Module -> lines of everything that importing `module` loads."""
    lines: dict[str, int] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in lines and (path := path_of(name)):
            lines[name] = len(path.read_text(encoding="utf-8").splitlines())
            waiting += imported(path)
    return lines


@pytest.mark.parametrize(
    ("module", "files", "lines"),
    [("medagent.training.module", 45, 7_000), ("medagent.agent", 23, 2_900), ("medagent.training.run", 180, 26_000)],
)
def test_a_module_pulls_in_only_so_much(module: str, files: int, lines: int) -> None:
    found = closure(module)
    sizes = ", ".join(sorted(found))
    assert len(found) <= files, f"{module} loads {len(found)} modules: {sizes}"
    assert sum(found.values()) <= lines, f"{module} loads {sum(found.values())} lines: {sizes}"


def test_one_optimizer_step_is_few_files_listed_in_the_docs() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    section = page.split("## One optimizer step")[1].split("\n## ")[0]
    files = [ROOT / name for name in re.findall(r"^\| `(training/[\w/]+\.py)`", section, flags=re.MULTILINE)]
    assert 10 <= len(files) <= 14
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 3_000
