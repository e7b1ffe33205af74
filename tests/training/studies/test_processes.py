"""The processes of a study: what they inherit, and that all of them end."""

from __future__ import annotations

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from medagent.training.studies.processes import Children


def test_a_run_stopped_before_its_start_never_starts(tmp_path: Path) -> None:
    children = Children()
    children.stop()
    assert children.run(["touch", str(tmp_path / "made")], log=tmp_path / "log", environment={}) == 1
    assert not (tmp_path / "made").exists()


def test_a_process_that_ignores_termination_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medagent.training.studies.processes.GRACE_S", 0.2)
    children, ready = Children(), tmp_path / "log"
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(children.run, [sys.executable, "-c", deaf], log=ready, environment={})
        while not (ready.exists() and ready.read_text()):
            time.sleep(0.02)
        children.stop()
        assert ended.result(timeout=10) == -signal.SIGKILL


def test_a_run_inherits_only_the_kept_file_descriptors(tmp_path: Path) -> None:
    with (tmp_path / "kept").open("w") as file:
        command = [sys.executable, "-c", f"import os; os.write({file.fileno()}, b'here')"]
        assert Children([file.fileno()]).run(command, log=tmp_path / "log", environment={}) == 0
        assert Children().run(command, log=tmp_path / "log", environment={}) != 0, "others are closed to them"
    assert (tmp_path / "kept").read_text() == "here"
