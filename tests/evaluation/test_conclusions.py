"""What a report says on top: each sentence where it holds, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.evaluation.metrics import report_mode
from medagent.evaluation.modes import Mode
from medagent.evaluation.reports.conclusions import conclusions
from medagent.evaluation.run import Plan, run_plan
from tests.evaluation.support import PASSAGES, QUESTIONS, lookup, scripted


def said(folder: Path, script, *, modes=(Mode.SEARCH,), trained_here: bool = True) -> str:
    predictions = run_plan(scripted(script), QUESTIONS, Plan(modes), folder, identity={}, corpus=PASSAGES)
    reports = {mode: report_mode([p for p in predictions if p.mode == mode.value]) for mode in modes}
    return " ".join(conclusions(reports, QUESTIONS, benchmark="ours", trained_here=trained_here))


def test_what_was_found_and_for_what_it_holds(tmp_path: Path) -> None:
    found = said(tmp_path, lookup(QUESTIONS, {"q1", "q2"}))
    assert "On 20 questions of ours, in mode search, 90.0% are answered right" in found
    assert "expect 69.9 to 97.2% (95% interval)" in found
    assert "not shown to be better than naming the most frequent letter every time, which is right for 100.0%" in found
    assert "20 questions are few" in found
    assert "It cannot be concluded that the agent is safe to use" in found
    assert "Whether the model saw these questions" not in found
    assert "name no one option" not in found


def test_what_only_some_reports_say(tmp_path: Path) -> None:
    found = said(tmp_path / "a", lambda read, turn: "<answer>hm</answer>", trained_here=False)
    assert "100% of the replies name no one option and count as wrong" in found
    assert "Whether the model saw these questions in its training is not known" in found
    modes = (Mode.SEARCH, Mode.WITHOUT_EVIDENCE, Mode.INJECTED)
    found = said(tmp_path / "b", lambda read, turn: "<answer>(A)</answer>", modes=modes)
    assert "Without the evidence it answers all the same for 100.0%." in found
    assert "passages with orders" not in found  # it never searched, so none was shown


@pytest.mark.parametrize("mode", [Mode.WITHOUT_EVIDENCE, Mode.INJECTED])
def test_sentences_of_trust_need_their_mode(tmp_path: Path, mode: Mode) -> None:
    script = lambda read, turn: "<answer>(A)</answer>" if turn else "<search>disease 3</search>"  # noqa: E731
    found = said(tmp_path, script, modes=(mode,))
    assert ("Without the evidence" in found) == (mode is Mode.WITHOUT_EVIDENCE)
    assert ("Of 20 passages with orders that it was shown, 0.0%" in found) == (mode is Mode.INJECTED)
