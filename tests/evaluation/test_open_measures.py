"""BioASQ's measures and those of open answers, by hand, and where reports show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.errors import InputError
from medagent.evaluation.benchmarks import JsonlBenchmark
from medagent.evaluation.evaluator import Evaluation
from medagent.evaluation.metrics import report_mode, summarize
from medagent.evaluation.modes import Mode
from medagent.evaluation.open_measures import MEASURES, macro_f1, open_measures
from medagent.evaluation.predictions import Prediction
from medagent.evaluation.reports.tables import markdown, open_table, tables
from medagent.evaluation.rollout_files import readable, rollout_from
from medagent.evaluation.statistics import wilson_interval
from medagent.types import Limits, Question, Rollout, StopReason, Turn

YES, NO = (Question(name, "?", options=("yes", "no"), answer=letter) for name, letter in (("y", "A"), ("n", "B")))


def rollout(question: Question, answer: str | None) -> Rollout:
    stop = StopReason.MALFORMED if answer is None else StopReason.ANSWERED
    return Rollout(question, (1,), (Turn((2,), (0.0,), "", answer=answer),), stop)


def factoid(answer: str | None) -> Rollout:
    return rollout(Question("f", "?", answer="left ventricle", aliases=("LV",), form="ranked"), answer)


def listed(answer: str | None) -> Rollout:
    return rollout(Question("l", "?", answer="a; b", form="list", items=(("a", "alpha"), ("b",))), answer)


def test_factoid_measures_by_hand() -> None:
    answers = ["LV [1]", "atrium; lv", "a; b; c; the left ventricle", "x; y; z; u; v; LV", None]
    found = open_measures([factoid(answer) for answer in answers])
    assert found["factoid_strict"].value == 1 / 5  # the first alone
    assert found["factoid_lenient"].value == 3 / 5  # the fourth has it in place six
    assert found["factoid_mrr"].value == pytest.approx((1 + 1 / 2 + 1 / 4 + 0 + 0) / 5)
    assert (found["factoid_strict"].ci_low, found["factoid_strict"].ci_high) == wilson_interval(1, 5)
    assert found["factoid_mrr"].ci_low < found["factoid_mrr"].value < found["factoid_mrr"].ci_high
    assert {measure.n for measure in found.values()} == {5}
    assert found["exact_match"].value == found["contains_answer"].value == 1 / 5  # of the first answers


def test_questions_without_a_gold_answer_such_as_an_environments_have_no_measures() -> None:
    assert open_measures([rollout(Question("e", "?"), answer) for answer in ("A", "", None)]) == {}


def test_list_measures_by_hand() -> None:
    found = open_measures([listed("alpha; b"), listed("a"), listed("a; c; d; alpha"), listed(None)])
    # precision 1, 1, 1/4, 0; recall 1, 1/2, 1/2, 0; F1 1, 2/3, 1/3, 0
    assert found["list_precision"].value == pytest.approx(2.25 / 4)
    assert found["list_recall"].value == pytest.approx(2 / 4)
    assert found["list_f1"].value == pytest.approx(2 / 4)
    assert set(found) == {"list_precision", "list_recall", "list_f1"}, "a list is no single text"


def test_yes_no_measures_by_hand() -> None:
    rollouts = [rollout(YES, "(A)"), rollout(YES, "(A)"), rollout(YES, "(B)"), rollout(NO, "(B)"), rollout(NO, None)]
    found = open_measures(rollouts)
    assert found["yes_no_accuracy"].value == 3 / 5
    # yes: 2 right, 2 chosen, 3 gold: 4/5. no: 1 right, 2 chosen, 2 gold: 2/4
    assert found["yes_no_macro_f1"].value == pytest.approx((4 / 5 + 1 / 2) / 2)
    assert found["yes_no_macro_f1"].ci_low <= 0.65 <= found["yes_no_macro_f1"].ci_high


def test_macro_f1_at_its_ends() -> None:
    assert macro_f1([("yes", "yes"), ("no", "no")]).value == 1
    assert macro_f1([("yes", "yes")]).value == 0.5, "a class that never occurs has F1 0"
    assert macro_f1([("yes", None), ("no", "yes")]).value == 0
    one, two = (macro_f1([("yes", "yes"), ("no", "yes")] * 10) for _ in range(2))
    assert one == two, "its bootstrap is seeded"
    assert one.value == pytest.approx((2 / 3 + 0) / 2)


def test_a_missing_answer_is_wrong_where_the_right_one_is_an_article() -> None:
    found = open_measures([rollout(Question("v", "Which vitamin?", answer="A"), answer) for answer in (None, "A")])
    assert found["exact_match"].value == found["f1"].value == 1 / 2


def test_squads_measures_of_texts() -> None:
    text = Question("t", "?", answer="Hemochromatosis")
    found = open_measures([rollout(text, "hereditary hemochromatosis [1]"), rollout(text, "gout"), rollout(text, None)])
    assert found["exact_match"].value == 0
    assert found["f1"].value == pytest.approx(2 / 3 / 3)
    assert found["contains_answer"].value == 1 / 3
    assert open_measures([]) == {}
    assert open_measures([rollout(Question("c", "?", options=("gout", "lupus"), answer="A"), "(A)")]) == {}


def test_reports_show_the_measures_with_intervals(tmp_path: Path) -> None:
    rollouts = [factoid("LV"), listed("a; b"), rollout(YES, "(A)")]
    predictions = [Prediction("search", 0, each, None) for each in rollouts]
    reports = {Mode.SEARCH: report_mode(predictions), Mode.CLOSED_BOOK: report_mode(predictions[:1])}
    questions = [each.question for each in rollouts]
    table = open_table(reports)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["factoid: mean reciprocal rank (n = 1)"] == ("100.0% [100.0, 100.0]",) * 2
    assert rows["factoid: strict accuracy (n = 1)"] == ("100.0% [20.7, 100.0]",) * 2  # Wilson for 1 of 1
    assert rows["yes/no: macro F1 (n = 1)"] == ("50.0% [50.0, 50.0]", "-")
    assert len(rows) == len(MEASURES)
    assert table.title in {each.title for each in tables(reports, questions)}
    settings = {"benchmark": "b", "agent": "a", "temperature": 0, "seed": 0}
    Evaluation(settings, questions, [], reports, {}, {}, Limits()).write(tmp_path)
    row = json.loads((tmp_path / "report.json").read_text())
    assert row["modes"]["search"]["measures"]["list_f1"] == {"value": 1.0, "ci_low": 1.0, "ci_high": 1.0, "n": 1}
    assert row["measures"]["factoid_mrr"]["value"] == 1.0
    for name in ("report.md", "report.html"):
        assert "factoid: mean reciprocal rank (n = 1)" in (tmp_path / name).read_text()
    assert "| list: mean F1 (n = 1) | 100.0% [100.0, 100.0] | - |" in markdown("t", {}, reports, questions)


def test_reports_of_multiple_choice_have_no_such_table() -> None:
    choice = rollout(Question("c", "?", options=("gout", "lupus"), answer="A"), "(A)")
    reports = {Mode.SEARCH: report_mode([Prediction("search", 0, choice, None)])}
    assert not open_table(reports).rows
    assert "Open" not in " ".join(table.title for table in tables(reports, [choice.question]))


def test_a_prediction_keeps_the_form_and_the_items() -> None:
    for each in (factoid("LV"), listed("a; b"), rollout(YES, "(A)")):
        kept = rollout_from(json.loads(json.dumps(readable(each))))
        assert kept.question == each.question
        assert summarize([kept]).measures == summarize([each]).measures
    assert not {"form", "items"} & readable(rollout(YES, "(A)")).keys(), "old files hold neither"


def test_of_ranked_answers_the_first_votes() -> None:
    votes = ["LV; atrium", "lv", "atrium; LV"]
    predictions = [
        Prediction("search", 0, rollout_from({**readable(factoid(vote)), "sample": number}), None)
        for number, vote in enumerate(votes)
    ]
    sampling = report_mode(predictions).sampling
    assert sampling is not None
    assert (sampling.majority_vote, sampling.mean_accuracy) == (1.0, pytest.approx(2 / 3))


def own(tmp_path: Path, row: dict[str, object]) -> Question:
    (tmp_path / "mine.jsonl").write_text(json.dumps({"question": "?", **row}))
    (question,) = JsonlBenchmark(str(tmp_path / "mine.jsonl")).questions()
    return question


def test_questions_of_ones_own_take_a_form(tmp_path: Path) -> None:
    for row, form, answer, items in (
        ({"answer": ["gout", "podagra"], "form": "ranked"}, "ranked", "gout", ()),
        ({"answer": ["gout", "podagra"]}, "text", "gout", ()),
        ({"answer": ["a", [" b ", "beta"]], "form": "list"}, "list", "a; b", (("a",), ("b", "beta"))),
    ):
        question = own(tmp_path, row)
        assert (question.form, question.answer, question.items) == (form, answer, items)


def test_a_form_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1: .*found the form 'essay', wanted one of text, ranked, list"):
        own(tmp_path, {"answer": "a", "form": "essay"})
    with pytest.raises(InputError, match="line 1: .*with options only select_all"):
        own(tmp_path, {"answer": "A", "options": ["x", "y"], "form": "list"})
    for answer in ("a", [], ["a", []], ["a", [" "]], ["a", 3]):
        with pytest.raises(InputError, match="line 1: .*wanted a list of entries"):
            own(tmp_path, {"answer": answer, "form": "list"})


def test_a_record_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="form: found 'essay', wanted one of text, ranked, list"):
        rollout_from({**readable(factoid("LV")), "form": "essay"})
