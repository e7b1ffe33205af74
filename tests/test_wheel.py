"""The wheel installs one name, and works from an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT

pytest.importorskip("setuptools")
FOLDERS = ("medagent", "training", "retrieval", "evaluation", "configs")
CONFIGS_WORK = """
import medagent
from medagent.config_files import config_path
assert config_path("demo.yaml").is_file()
print(medagent.__file__)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, built, unpacked = (tmp_path_factory.mktemp(name) for name in ("source", "built", "unpacked"))
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*pip, "-w", str(built), str(source)], check=True)
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(unpacked)
    return unpacked


def run_installed(unpacked: Path, folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
def test_the_wheel_installs_medagent_alone_and_works_from_an_empty_folder(unpacked: Path, tmp_path: Path) -> None:
    (top_level,) = unpacked.glob("*.dist-info/top_level.txt")
    assert top_level.read_text().split() == ["medagent"]
    assert Path(run_installed(unpacked, tmp_path, "-c", CONFIGS_WORK).strip()).parent == unpacked / "medagent"
    usage = run_installed(unpacked, tmp_path, "-m", "medagent.cli.main", "--help")
    assert "serve" in usage
    assert "demo" in usage
