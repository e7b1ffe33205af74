"""The scripts behind the documented measurements can be started as the documents say."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import ROOT

SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "common")
RIVALS = {"ours": "torch", "trl": "trl", "agilerl": "agilerl"}  # what each needs


def test_a_benchmark_is_a_module_that_runs() -> None:
    installed = [f"rivals.{rival}" for rival, library in RIVALS.items() if find_spec(library)]
    for name in (*SCRIPTS, *installed):
        assert callable(importlib.import_module(f"benchmarks.{name}").main), name
        text = (ROOT / "benchmarks" / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert f"python -m benchmarks.{name}" in text, "its docstring says how"


@pytest.mark.long
@pytest.mark.parametrize("critic", ["evidence", "adapter"])
def test_our_side_of_the_step_does_its_job(critic: str, index_folder: Path) -> None:
    arguments = ["--index", str(index_folder), "--model", "starter", "--questions", "2", "--critic", critic]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.rivals.ours", *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    found = json.loads(run.stdout.decode().strip().splitlines()[-1])
    assert len(found["steps"]) == 2
    for step in found["steps"]:
        assert step["sampled"] == 2 * 8 * 3 * 32, "questions, samples, turns, tokens"
        assert step["sampled"] < step["distinct"] < step["tokens"]
        assert sum(step["phases"].values()) < step["seconds"]
        assert {"prefill", "decode", "policy forward", "backward", "optimizer"} <= step["phases"].keys()
        assert ("reference" in step["phases"]) == (critic == "adapter")


def test_the_documents_name_benchmarks_as_they_are_started() -> None:
    """As modules.

    A script's own folder would come first on the path, and benchmarks/retrieval.py hide the package retrieval.
    """
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    assert not re.findall(r"python \S*benchmarks/\w+", "\n".join(texts))
    named = {name for text in texts for name in re.findall(r"-m benchmarks\.([\w.]+)", text)}
    assert named <= {*SCRIPTS, *(f"rivals.{rival}" for rival in RIVALS)}
    assert named
