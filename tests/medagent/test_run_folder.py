"""A folder has one writer, whatever writes there, and what others put there stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from medagent.errors import ConfigError
from medagent.run_folder import LOCK, RunFolder


def test_a_second_writer_hears_who_is_at_work_whatever_it_would_write(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "new" / "folder", "study")
    with folder.sole_writer():
        mine = rf"at work there \(study, process {os.getpid()}\).*--out"
        with pytest.raises(ConfigError, match=mine), folder.sole_writer():
            pass
        run = RunFolder(folder.path, "run", "--trainer.default_root_dir")
        theirs = r"^run folder .*at work there \(study, .*--trainer\.default_root_dir\.$"
        with pytest.raises(ConfigError, match=theirs), run.sole_writer():
            pass
    with RunFolder(folder.path, "run").sole_writer():
        assert (folder.path / LOCK).read_text() == f"run, process {os.getpid()}\n"
    assert [path.name for path in folder.path.iterdir()] == [LOCK], "a lock alone claims nothing"


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from medagent.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1]), 'run').sole_writer(): print('in', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"in\n"
        with pytest.raises(ConfigError, match=f"process {writer.pid}"), RunFolder(tmp_path, "run").sole_writer():
            pass
        writer.kill()
        writer.wait()
        with RunFolder(tmp_path, "run").sole_writer():
            pass


def test_files_of_others_are_refused_and_ours_are_known_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out", "evaluation")
    folder.refuse_others()
    assert not folder.path.exists(), "looking makes nothing"
    folder.claim()
    assert folder.is_marked
    (folder.path / "predictions.jsonl").write_text("")
    folder.claim()
    with pytest.raises(ConfigError, match=r"holds .*predictions\.jsonl that no demo of ours wrote"):
        RunFolder(folder.path, "demo").claim()


def test_a_kind_that_names_its_parts_lies_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds notes\.txt"):
        RunFolder(tmp_path, "run").claim()
    (tmp_path / "logs").mkdir()
    with pytest.raises(ConfigError, match="holds logs that no run of ours wrote"):
        RunFolder(tmp_path, "run").claim("logs", "checkpoints")
    (tmp_path / "logs").rmdir()
    RunFolder(tmp_path, "run").claim("logs", "checkpoints")
    assert RunFolder(tmp_path, "run").is_marked


def test_what_cannot_be_a_folder_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made.*--out"), RunFolder(tmp_path / "file", "study").sole_writer():
        pass
    with pytest.raises(ConfigError, match="cannot be made.*--out"):
        RunFolder(tmp_path / "file", "export").refuse_others()
