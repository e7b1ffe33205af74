"""What a run prints at its end: the figures that changed most, and rollouts before and after."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from medagent.training.callbacks.export import ProgressLine, before_and_after, changes
from tests.evaluation.viewer.support import write_run


def test_the_figures_that_changed_most_come_first() -> None:
    first = {"reward/success": 0.5, "rollout/searches": 0.2, "policy/entropy": 0.4, "policy/clip_fraction": 0.1}
    last = {"reward/success": 0.75, "rollout/searches": 1.0, "policy/entropy": 0.4}
    (told,) = changes([first, {}, last], most=2)
    assert told == "Changed most since the first iteration: searches 0.20 to 1.00, success 0.50 to 0.75."
    assert changes([first]) == []


def test_questions_whose_reward_changed_most_are_shown_before_and_after(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = before_and_after(run, most=1)
    assert lines[0] == f"See every rollout: medagent view {run}"
    assert lines[1].startswith("q")
    assert [line.split(":")[0] for line in lines[2:]] == ["  iteration 1, wrong", "  iteration 3, correct"]
    assert before_and_after(tmp_path / "none") == []


def test_a_damaged_record_does_not_end_a_run_with_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run")
    for place in (run / "rollouts").glob("*.gz"):
        place.write_bytes(place.read_bytes()[:-20])
    ProgressLine().on_train_end(SimpleNamespace(default_root_dir=run), None)
    assert "iteration_0000.jsonl.gz" in capsys.readouterr().out
