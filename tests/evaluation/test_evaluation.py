from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.errors import ConfigError, InputError
from medagent.evaluation.benchmarks import PubMedQABenchmark, StarterBenchmark, pubmedqa_passages
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.grading.option_named import normalise, read_answer
from medagent.evaluation.metrics import summarize
from medagent.evaluation.rollout_files import readable, write_records
from medagent.retrieval.passages import Hit, Passage
from medagent.training.rewards import F1, OutcomeReward, TurnRewards
from medagent.types import Question, Rollout, StopReason, Turn

QUESTION = Question(
    "q", "What treats gout?", ("aspirin", "allopurinol", "heparin", "insulin"), "B", gold_passage_ids=("p1",)
)


def answered(text: str, question: Question = QUESTION, *, searched: bool = True) -> Rollout:
    hits = (Hit(Passage("p1", "gout", "allopurinol."), 1.0),)
    search = (Turn((1,), (0.0,), "<search>gout</search>", query="gout", hits=hits, observation_ids=(2,)),)
    turns = (*(search if searched else ()), Turn((3,), (0.0,), f"<answer>{text}</answer>", answer=text))
    return Rollout(question, (9,), turns, StopReason.ANSWERED)


def test_strict_parsing_never_defaults_to_a_letter() -> None:
    named = "B|(B)|B.|B) allopurinol|B: allopurinol|allopurinol (B) [1]|allopurinol (B), not otherwise (B)"
    for text in named.split("|"):
        assert read_answer(text, QUESTION.letters, QUESTION.options).strict == "B", text
    unnamed = "allopurinol|(B) or (C)|(E)|E|A patient needs it|I think so|b||both|B. or C.|B) or C) or D)|C. (B)|B, C:"
    for text in unnamed.split("|"):
        assert read_answer(text, QUESTION.letters, QUESTION.options).strict is None, text


def test_each_kind_of_answer_gets_its_verdict() -> None:
    for text, verdict in (
        ("(B)", Verdict.CORRECT),
        ("(A)", Verdict.WRONG),
        ("allopurinol", Verdict.UNPARSED),
        ("(A) (B)", Verdict.MULTIPLE),
        ("none of the above", Verdict.ABSTAINED),
    ):
        assert grade(answered(text)).verdict is verdict, text


def test_no_answer_is_never_right() -> None:
    for stop in StopReason:
        if stop is not StopReason.ANSWERED:
            rollout = Rollout(QUESTION, (9,), (Turn((3,), (0.0,), "<answer>(B)"),), stop)
            assert grade(rollout).verdict is (Verdict.ERROR if stop.failed else Verdict.UNPARSED)
            assert not grade(rollout).correct
            assert OutcomeReward()(rollout).reward == 0


OUTSIDE = [
    ("B) allopurinol", Verdict.UNPARSED, "B"),
    ("<answer>(B)</answer>\nHope this helps!", Verdict.UNPARSED, "B"),
    ("Uric acid is high.</think>\n\nAnswer: B", Verdict.UNPARSED, "B"),
    ("<think>The answer is B, but", Verdict.UNPARSED, None),
    ("I'm sorry, but I can't assist with that.", Verdict.ABSTAINED, None),
    ("It lowers the answer", Verdict.UNPARSED, None),
    ("<search>allopurinol (B)", Verdict.NO_ANSWER, None),
    (" \n", Verdict.NO_ANSWER, None),
]


@pytest.mark.parametrize(("text", "verdict", "lenient"), OUTSIDE)
def test_a_reply_outside_the_protocol_is_read_leniently_and_never_right(text: str, verdict, lenient) -> None:
    rollout = Rollout(QUESTION, (9,), (Turn((3,), (0.0,), text),), StopReason.MALFORMED)
    result = grade(rollout)
    assert (result.verdict, result.letter, result.lenient_letter) == (verdict, None, lenient)
    assert (result.correct, result.lenient_correct) == (False, lenient == QUESTION.answer)
    assert result.refused == ("sorry" in text)
    assert OutcomeReward()(rollout).reward == F1(abstained=0.5)(rollout).reward == 0


def test_an_open_question_takes_the_last_line_leniently() -> None:
    question = Question("q", "What treats gout?", (), "allopurinol")
    for text in (
        "Urate is high.\nAllopurinol.",
        "<think>zinc?</think> Allopurinol",
        "<answer>allopurinol</answer> Bye",
    ):
        result = grade(Rollout(question, (9,), (Turn((3,), (0.0,), text),), StopReason.MALFORMED))
        assert (result.verdict, result.lenient_correct) == (Verdict.UNPARSED, True)


def test_citations_of_passages_never_shown_do_not_count() -> None:
    assert grade(answered("(B) [1] [7]")).cited == (1,)
    assert grade(answered("(B) [1]", searched=False)).cited == ()


def test_open_questions_by_normalised_exact_match() -> None:
    question = Question("q", "What treats gout?", (), "The Allopurinol")
    assert grade(answered("allopurinol. [1]", question)).correct
    assert not grade(answered("not allopurinol", question)).correct
    assert grade(answered("[1]", question)).verdict is Verdict.UNPARSED
    assert normalise("The  quick, brown fox!") == "quick brown fox"
    for one, other in (("Rh+", "Rh-"), (">5 cm", "<5 cm"), ("hepatitis A", "hepatitis"), ("1.5 mg", "15 mg")):
        assert normalise(one) != normalise(other)
    assert normalise("Allopurinol.") == normalise("allopurinol")


def test_the_reward_is_the_grade() -> None:
    reward = OutcomeReward(correct=2.0, well_formed=0.5)
    assert [reward(answered(text)).reward for text in ("(B)", "(A)", "none")] == [2.0, 0.5, 0.0]
    assert [reward(answered(text)).success for text in ("(B)", "(A)", "none")] == [True, False, False]


def test_turn_rewards_by_hand() -> None:
    question = replace(QUESTION, gold_passage_ids=("p1", "p2"))
    one, two, other = (Hit(Passage(name, "t", "x."), 1.0) for name in ("p1", "p2", "p9"))

    def search(*hits: Hit) -> Turn:
        return Turn((1,), (0.0,), "<search>x</search>", query="x", hits=hits, observation_ids=(2,))

    answer = Turn((3,), (0.0,), "<answer>B</answer>", answer="B")
    rollout = Rollout(
        question, (9,), (search(other), search(one, other), search(one, two), search(two), answer), StopReason.ANSWERED
    )
    graded = TurnRewards(OutcomeReward(), gold_hit=0.3, search_cost=0.05)(rollout)
    assert [turn.reward for turn in graded.turns] == pytest.approx([-0.05, 0.25, 0.25, -0.05, 0.0])
    assert graded.reward == 1.0
    assert graded.total_reward == pytest.approx(1.4)
    assert graded.success
    with pytest.raises(ConfigError, match="gold_hit"):
        TurnRewards(gold_hit=-1)


def test_summary_counts() -> None:
    two_hop = Question("r", "?", ("a", "b"), "A", kind="two_hop")
    rollouts = [
        answered("(B) [1]"),
        answered("(A)", searched=False),
        answered("hm"),
        Rollout(two_hop, (9,), (), StopReason.MAX_TURNS),
    ]
    summary = summarize(rollouts)
    assert (summary.overall.accuracy, summary.overall.n) == (0.25, 4)
    assert (summary.unparsed, summary.no_answer) == (1, 1)
    assert summary.by_type["two_hop"].n == 1
    assert summary.searches_per_question == 0.5
    assert summary.cited_share == 0.25
    assert summary.grounding.gold_all == pytest.approx(2 / 3)
    assert summary.stop_reasons == {"answered": 3, "max_turns": 1}
    row = summary.to_json()
    assert row["accuracy"] == 0.25
    json.dumps(row)
    assert summarize([]).overall.accuracy == 0


def test_pubmedqa_passages_hold_no_conclusion(tmp_path: Path) -> None:
    entry = {"QUESTION": "Does it?", "CONTEXTS": ["First.", "Second."], "LONG_ANSWER": "SECRET", "YEAR": "2001"}
    path = tmp_path / "pqal.json"
    path.write_text(json.dumps({"11": {**entry, "final_decision": "maybe"}, "12": {**entry, "final_decision": "yes"}}))
    passages = pubmedqa_passages(str(path))
    assert [p.id for p in passages] == ["pubmed:11", "pubmed:12"]
    assert passages[0].text == "First. Second."
    assert "2001" in passages[0].source
    assert "SECRET" not in passages[0].indexed_text
    for text in ("[[]]", "{", '{"1": {"QUESTION": "q"}}'):
        path.write_text(text)
        with pytest.raises(InputError, match="wanted"):
            PubMedQABenchmark(str(path)).questions()


def test_starter_benchmark_takes_a_split() -> None:
    ids = [
        {q.meta["condition"] for q in StarterBenchmark(split).questions()} for split in ("train", "validation", "test")
    ]
    assert not ids[0] & ids[1]
    assert not (ids[0] | ids[1]) & ids[2]


def test_records_can_be_read_back(tmp_path: Path) -> None:
    rollout = OutcomeReward()(answered("(B) [1]"))
    write_records(tmp_path / "deep" / "r.jsonl", [rollout])
    row = json.loads((tmp_path / "deep" / "r.jsonl").read_text())
    assert row == json.loads(json.dumps(readable(rollout)))
    assert row["verdict"] == "correct"
    assert row["turns"][0]["passages"][0]["id"] == "p1"
    assert row["options"]["B"] == "allopurinol"
