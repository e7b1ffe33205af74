"""A process that is killed while it writes records, and files that were damaged on the disk."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import shutil
import signal
import sys
from itertools import count
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from medagent.errors import InputError
from medagent.evaluation.viewer.recorded import RecordedRun, read_metrics
from medagent.evaluation.viewer.server import make_viewer
from medagent.training.callbacks.records import write_iteration
from medagent.training.command import train_command
from tests.evaluation.viewer.support import rollout, write_run
from tests.training.support import arguments

WRITERS = ("write_iteration", "write_lines", "write_summaries", "write_whole")


def rows_of_attempt(attempt: int) -> list[dict]:
    return [rollout(f"q{n}", 0, right=False) | {"reward": float(attempt)} for n in range(4)]


def write_until(line: int, run: Path) -> None:
    """Write a second attempt at an iteration, and kill -9 before that line of the functions that write."""
    left = line

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_name not in WRITERS:
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    write_iteration(run, 0, rows_of_attempt(1))


def test_kill_9_before_any_line_leaves_no_torn_record(tmp_path: Path) -> None:
    shown = []
    for line in count(1):
        run = tmp_path / str(line)
        write_iteration(run, 0, rows_of_attempt(0))
        process = multiprocessing.get_context("fork").Process(target=write_until, args=(line, run))
        process.start()
        process.join()
        recorded = RecordedRun(run)
        told = recorded.overview()["parts"].get("0")
        if told:
            rows = list(map(json.loads, gzip.decompress(recorded.lines("0")).splitlines()))
            assert [row["reward"] for row in rows] == [row["reward"] for row in told["rollouts"]], "of one attempt"
            assert len(rows) == 4
        shown.append(rows[0]["reward"] if told else None)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        write_iteration(run, 0, rows_of_attempt(2))
        assert recorded.rollout("0", "q3", 0)["reward"] == 2
    assert len(shown) >= 20
    assert [shown[0], shown[-1]] == [0, 1]
    assert set(shown) == {0, None, 1}


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", ["iteration_0001.jsonl.gz", "iteration_0001.summary.json"])
def test_a_run_killed_while_it_writes_records_resumes_and_completes_them(
    train_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    replace, run = os.replace, tmp_path / "run"

    def killed(part, place):
        if Path(place).name == killed_at:
            raise KeyboardInterrupt
        replace(part, place)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            train_command(arguments(run, train_index, epochs=2))
    assert (run / "rollouts" / f"{killed_at}.part").exists(), "as after kill -9"
    assert RecordedRun(run).parts() == ["0"]
    train_command(arguments(run, train_index, epochs=2))
    recorded = RecordedRun(run)
    assert sorted(path.name for path in (run / "rollouts").iterdir()) == [
        f"iteration_000{n}.{end}" for n in range(2) for end in ("jsonl.gz", "summary.json")
    ]
    for name, told in recorded.overview()["parts"].items():
        rows = list(map(json.loads, gzip.decompress(recorded.lines(name)).splitlines()))
        assert len(rows) == len(told["rollouts"]) == 16
        assert {row["policy_version"] for row in rows} == {int(name)}
        assert all(len(turn["numbers"]["ratio"]) == turn["tokens"] for row in rows for turn in row["turns"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def client(run: Path) -> TestClient:
    return TestClient(make_viewer([RecordedRun(run)]), base_url="http://127.0.0.1")


@pytest.mark.parametrize("harm", ["half", "empty", "other"])
def test_damaged_rollouts_are_named_and_the_others_shown(run: Path, harm: str) -> None:
    place = run / "rollouts" / "iteration_0001.jsonl.gz"
    place.write_bytes({"half": place.read_bytes()[: place.stat().st_size // 2], "empty": b"", "other": b"PK\x03"}[harm])
    answer = client(run).get("/data/0/parts/1")
    assert answer.status_code == 422
    assert str(place) in answer.json()["error"]
    assert client(run).get("/data/0/parts/2").status_code == 200
    with pytest.raises(InputError, match=r"iteration_0001\.jsonl\.gz: found damage"):
        RecordedRun(run).rollout("1", "q0", 0)


@pytest.mark.parametrize("content", ['{"rollouts": [', "", "[]", '{"rollouts": []}', "\x00\xff"])
def test_a_damaged_summary_is_warned_of_and_left_out(run: Path, content: str) -> None:
    (run / "rollouts" / "iteration_0001.summary.json").write_text(content, encoding="latin-1")
    with pytest.warns(UserWarning, match=r"iteration_0001\.summary\.json: found damage.*iteration 1 is not shown"):
        assert list(client(run).get("/data/0/overview").json()["parts"]) == ["0", "2"]


@pytest.mark.parametrize("name", ["iteration_x.jsonl.gz", "iteration_0001 (copy).jsonl.gz", "iteration_.jsonl.gz"])
def test_a_foreign_file_among_the_records_is_left_out(run: Path, name: str) -> None:
    for end in (".jsonl.gz", ".summary.json"):
        shutil.copy(run / "rollouts" / f"iteration_0001{end}", run / "rollouts" / name.replace(".jsonl.gz", end))
    assert list(client(run).get("/data/0/overview").json()["parts"]) == ["0", "1", "2"]


def test_a_damaged_answer_of_an_evaluation_is_named_by_its_line(tmp_path: Path) -> None:
    whole = json.dumps({"mode": "search", "rotation": 0, **rollout("q0", 0, right=True)})
    for harm in (whole[:40], '{"mode": "search"}', "[]"):
        (tmp_path / "predictions.jsonl").write_text(f"{whole}\n{harm}\n{whole}\n")
        answer = client(tmp_path).get("/data/0/overview")
        assert answer.status_code == 422
        assert "predictions.jsonl, line 2: found damage" in answer.json()["error"]


def test_a_torn_line_of_metrics_is_left_out(run: Path) -> None:
    with (run / "logs" / "version_0" / "metrics.csv").open("a") as log:
        log.write("3,3,0.")
    assert [row["epoch"] for row in read_metrics(run)] == [0, 1, 2]
