"""The scripts behind the documented measurements can be started as the documents say."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.support import ROOT

SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "common")
OPTIONAL = {"against_trl": "trl"}  # the extra `bench`


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_is_a_module_that_runs(name: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name], reason="needs the extra bench")
    assert callable(importlib.import_module(f"benchmarks.{name}").main)
    text = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    assert f"python -m benchmarks.{name}" in text, "its docstring says how"


def test_the_documents_name_benchmarks_as_they_are_started() -> None:
    """As modules.

    A script's own folder would come first on the path, and benchmarks/retrieval.py hide the package retrieval.
    """
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    assert not re.findall(r"python \S*benchmarks/\w+", "\n".join(texts))
    named = {name for text in texts for name in re.findall(r"-m benchmarks\.(\w+)", text)}
    assert named - {"common"} <= set(SCRIPTS)
    assert named
