"""What is asked in each mode, and what several answers to one question say: samples, confidence."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.agent import Agent
from medagent.errors import InputError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.evaluation.comparison import compare
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import report_mode
from medagent.evaluation.modes import Mode, agent_for, baselines, job_for, told
from medagent.evaluation.predictions import Prediction, confidence
from medagent.evaluation.reports.tables import tables
from medagent.evaluation.run import Plan, run_plan
from medagent.policies.huggingface import HFPolicy
from medagent.protocol import CLOSED_BOOK, TagProtocol
from medagent.retrieval.search import HybridRetriever
from medagent.types import Limits, Question, Rollout, StopReason, Turn
from studies.starter_base.lessons import STARTER_PROTOCOL
from tests.evaluation.support import PASSAGES, QUESTIONS, lookup, lookup_by_text, scripted


def test_runs_are_compared_by_the_first_answer_to_the_question_as_it_is(tmp_path: Path) -> None:
    always_a = scripted(lambda read, turn: "<answer>(A)</answer>")
    for name, agent in (("a", always_a), ("b", scripted(lookup_by_text()))):
        run_plan(agent, QUESTIONS, Plan(rotations=True, samples=2, temperature=1.0), tmp_path / name, identity={})
    result = compare(tmp_path / "a", tmp_path / "b", mode=None, seed=0)
    assert (result.n, result.accuracy_a, result.accuracy_b) == (20, 1.0, 1.0)


def test_each_mode_shows_the_policy_its_own_prompt(tmp_path: Path) -> None:
    prompts: dict[str, list[str]] = {}

    def noting(name: str):
        def script(read: str, turn: int) -> str:
            prompts.setdefault(name, []).append(read)
            return "(A)</answer>" if read.endswith("<answer>") else "<answer>(A) [1]</answer>"

        return script

    evidence = {passage.id: passage for passage in PASSAGES}
    for mode in Mode:
        predictions = run_plan(
            scripted(noting(mode.value)),
            QUESTIONS[3:4],
            Plan((mode,)),
            tmp_path / mode,
            identity={},
            corpus=PASSAGES,
            evidence=evidence,
        )
        rollout = predictions[0].rollout
        assert rollout.stop_reason is (StopReason.MALFORMED if mode is Mode.FORCED_SEARCH else StopReason.ANSWERED)
        shown = [hit.passage.id for hit in rollout.hits]
        assert shown == (["p3"] if mode in (Mode.GOLD, Mode.SINGLE_SHOT) else [])
    assert prompts["closed_book"][0].endswith("<answer>")
    assert prompts["forced_search"][0].endswith("<search>")
    assert "<search> What treats disease 3?</search>" in prompts["single_shot"][0]
    assert "Drug 3 treats disease 3 [1]." in prompts["gold"][0]
    assert prompts["search"] == prompts["unrelated"]


def test_an_untrained_model_is_told_that_it_cannot_search() -> None:
    agent = replace(scripted(lambda read, turn: "<answer>(A)</answer>", protocol=TagProtocol()), trained=False)
    closed = agent_for(agent, Mode.CLOSED_BOOK, ())
    assert (closed.protocol.instructions, closed.limits.max_turns) == (CLOSED_BOOK, 1)
    job = job_for(QUESTIONS[0], Mode.CLOSED_BOOK, seed=0, temperature=0, sample=0, told=told(agent), evidence={})
    assert not job.force_answer
    for mode in (Mode.GOLD, Mode.SINGLE_SHOT):
        given = agent_for(agent, mode, ())
        assert "already given" in given.protocol.instructions
        assert given.limits.max_turns == 2
    with pytest.raises(InputError, match="needs passages"):
        agent_for(agent, Mode.UNRELATED, ())


@pytest.mark.parametrize("protocol", [TagProtocol(), TagProtocol(instructions="")])
def test_a_trained_agent_keeps_its_prompt_in_every_mode(tmp_path: Path, protocol: TagProtocol) -> None:
    """A mode changes what is found, and opens a turn at most."""
    prompts, read_first = set[str](), list[str]()

    def script(read: str, turn: int) -> str:
        read_first.append(read)
        return "(A)</answer>" if read.endswith("<answer>") else "<answer>(A)</answer>"

    agent, added = scripted(script, protocol=protocol), dict[str, str]()
    evidence = {passage.id: passage for passage in PASSAGES}
    for mode in Mode:
        folder = tmp_path / mode
        read_first.clear()
        (found,) = run_plan(
            agent, QUESTIONS[3:4], Plan((mode,)), folder, identity={}, corpus=PASSAGES, evidence=evidence
        )
        prompts.add(prompt := str(agent.policy.tokenizer.decode(found.rollout.prompt_ids)))
        added[mode.value] = read_first[0].removeprefix(prompt)
    assert len(prompts) == 1
    given = "<search> What treats disease 3?</search>\n<information>\n- drug 3: Drug 3 treats disease 3 [1].\n"
    given += "</information>\n"
    assert added == {
        **dict.fromkeys(("search", "unrelated", "without_evidence", "injected"), ""),
        "forced_search": "<search>",
        "closed_book": "<answer>",
        "single_shot": given,
        "gold": given,
    }


@pytest.mark.parametrize("mode", [Mode.SINGLE_SHOT, Mode.GOLD])
def test_a_trained_agent_that_searches_on_reads_the_given_passages_again(tmp_path: Path, mode: Mode) -> None:
    said = ["<search> disease 7</search>", "<search> disease 8</search>", "<answer>(A) [3]</answer>"]
    agent = scripted(lambda read, turn: said[turn], protocol=TagProtocol())
    evidence = {passage.id: passage for passage in PASSAGES}
    (found,) = run_plan(agent, QUESTIONS[3:4], Plan((mode,)), tmp_path, identity={}, evidence=evidence)
    assert found.rollout.stop_reason is StopReason.ANSWERED
    assert [turn.query for turn in found.rollout.turns] == ["What treats disease 3?", "disease 7", "disease 8", None]
    assert [hit.passage.id for hit in found.rollout.hits] == ["p3"] * 3


def test_a_trained_agent_cannot_search_in_a_closed_book(tmp_path: Path) -> None:
    agent = scripted(lambda read, turn: "<search> disease 3</search>", protocol=TagProtocol())
    (found,) = run_plan(agent, QUESTIONS[3:4], Plan((Mode.CLOSED_BOOK,)), tmp_path, identity={})
    assert (len(found.rollout.turns), found.rollout.num_searches, found.rollout.answer) == (1, 0, None)


def test_samples_give_mean_vote_and_pass_at_k(tmp_path: Path) -> None:
    calls: dict[str, int] = {}

    def script(read: str, turn: int) -> str:  # question 0: right, right, wrong; question 1: wrong, wrong, right
        number = re.findall(r"disease (\d+)\?", read)[-1]
        calls[number] = calls.get(number, 0) + 1
        right = calls[number] < 3 if number == "0" else calls[number] == 3
        return f"<answer>({'A' if right else 'B'})</answer>"

    predictions = run_plan(
        scripted(script), QUESTIONS[:2], Plan(samples=3, temperature=1.0), tmp_path, identity={}, concurrency=1
    )
    sampling = report_mode(predictions).sampling
    assert sampling is not None
    assert (sampling.samples, sampling.mean_accuracy, sampling.majority_vote) == (3, 0.5, 0.5)
    assert sampling.pass_at_k == pytest.approx({1: 0.5, 2: (1 + 2 / 3) / 2, 3: 1.0})
    assert len({job.rollout.sample for job in predictions}) == 3


def test_confidence_is_the_probability_of_the_answer(starter, retriever: HybridRetriever, tmp_path: Path) -> None:
    agent = Agent(HFPolicy(*starter), retriever, STARTER_PROTOCOL, Limits(3, 48, 160, 512), top_k=2)
    questions = StarterBenchmark("validation", limit_per_kind=6).questions()
    predictions = run_plan(agent, questions, Plan((Mode.FORCED_SEARCH,)), tmp_path, identity={})
    sure = [p for p in predictions if p.confidence is not None]
    assert sure
    for prediction in sure:
        turn = prediction.rollout.turns[-1]
        letter = grade(prediction.rollout).letter
        text = str(agent.policy.tokenizer.decode(list(turn.token_ids)))
        start = text.index("<answer>") + len("<answer>")
        assert 0 < (prediction.confidence or 0) <= 1
        # Recomputed token by token: what lies before the tags and after the letter does not count.
        total, at = 0.0, 0
        for token, logprob in zip(turn.token_ids, turn.logprobs, strict=True):
            end = at + len(str(agent.policy.tokenizer.decode([token])))
            if end > start and at <= text.index(f"({letter})", start) + 1:
                total += logprob
            at = end
        assert prediction.confidence == pytest.approx(min(1.0, 2.718281828459045**total), rel=1e-6)
    report = report_mode(predictions)
    assert report.calibration is not None
    assert report.calibration.n == len(sure)
    assert report.selective[-1][0] == 1.0


def test_no_confidence_without_probabilities() -> None:
    agent = scripted(lambda read, turn: "<answer>(A)</answer>")
    (rollout,) = agent.run_all(
        [job_for(QUESTIONS[0], Mode.SEARCH, seed=0, temperature=0, sample=0, told=True, evidence={})]
    )
    assert confidence(rollout, agent.policy.tokenizer, agent.protocol) is None


def test_baselines_by_hand() -> None:
    simple = baselines([*QUESTIONS[:3], Question("x", "?", ("a", "b"), "B")])
    assert simple["majority"].accuracy == 0.75  # type: ignore[union-attr]
    assert simple["random"] == pytest.approx((0.25 * 3 + 0.5) / 4)
    assert baselines([Question("o", "?", (), "x")]) == {}


def test_repeated_samples_do_not_narrow_the_interval(tmp_path: Path) -> None:
    agent = scripted(lookup(QUESTIONS, {question.id for question in QUESTIONS[:10]}))
    once = report_mode(run_plan(agent, QUESTIONS, Plan(), tmp_path / "a", identity={})).summary.overall
    often = report_mode(run_plan(agent, QUESTIONS, Plan(samples=5, temperature=1.0), tmp_path / "b", identity={}))
    assert often.summary.overall == once
    assert often.sampling is not None
    assert (often.sampling.ci_low, often.sampling.ci_high) == pytest.approx((0.28, 0.72), abs=0.06)


def test_the_majority_of_open_answers(tmp_path: Path) -> None:
    questions = [Question(f"o{i}", f"What is {i}?", (), "the Spleen", aliases=("milt",)) for i in range(4)]
    agent = scripted(lambda read, turn: "<answer>spleen.</answer>")
    sampling = report_mode(run_plan(agent, questions, Plan(samples=3, temperature=1.0), tmp_path, identity={})).sampling
    assert sampling is not None
    assert (sampling.mean_accuracy, sampling.majority_vote) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("letters", "vote", "tied"),
    [
        ("AABB", 0.5, 1.0),
        ("BBAA", 0.5, 1.0),
        ("ABCD", 0.25, 1.0),
        ("AACC", 0.0, 1.0),
        ("ABB-", 1.0, 0.0),
        ("AB--", 0.5, 1.0),
        ("----", 0.0, 0.0),
    ],
)
def test_a_tied_vote_scores_what_drawing_a_winner_scores_on_average(letters: str, vote: float, tied: float) -> None:
    question = Question("q", "Which?", ("a one", "a two", "a three", "a four"), "B")
    turns = [Turn((), (), f"<answer>({letter})</answer>", answer=f"({letter})") for letter in letters]
    answers = [Rollout(question, (), (turn,), StopReason.ANSWERED, sample=n) for n, turn in enumerate(turns)]
    sampling = report_mode([Prediction("search", 0, rollout, None) for rollout in answers]).sampling
    assert sampling is not None
    assert (sampling.majority_vote, sampling.tied) == (vote, tied)


def test_a_search_that_is_not_run_is_not_counted(tmp_path: Path) -> None:
    agent = scripted(lambda read, turn: "<search>disease 1</search>")
    (prediction,) = run_plan(agent, QUESTIONS[:1], Plan((Mode.SEARCH,)), tmp_path, identity={})
    assert (prediction.rollout.num_searches, prediction.rollout.stop_reason) == (3, StopReason.MAX_TURNS)


def test_coverage_is_of_all_that_was_asked() -> None:
    """A question without a confident answer is not covered, whatever the threshold."""
    turn = Turn((1,), (-0.1,), "<answer>(A)</answer>", answer="(A)")
    answered = Rollout(QUESTIONS[0], (), (turn,), StopReason.ANSWERED)
    silent = Rollout(QUESTIONS[1], (), (), StopReason.MAX_TOTAL_TOKENS)
    report = report_mode([Prediction("search", 0, answered, 0.9), Prediction("search", 0, silent, None)])
    assert report.selective == ((0.5, float(grade(answered).correct)),)


def test_a_closed_book_has_no_figures_of_citations() -> None:
    turn = Turn((), (), "<answer>(A)</answer>", answer="(A)")
    found = {
        mode: report_mode([Prediction(mode, 0, Rollout(QUESTIONS[0], (), (turn,), StopReason.ANSWERED), None)])
        for mode in (Mode.CLOSED_BOOK, Mode.SEARCH)
    }
    closed, search = (found[mode].summary.grounding for mode in found)
    assert (closed.citation_recall, closed.cited_gold, closed.gold_all, closed.statements) == (None, None, None, 0)
    assert (search.citation_recall, search.cited_gold, search.gold_all, search.statements) == (0.0, 0.0, 0.0, 1)
    row = next(row for row in tables(found, QUESTIONS[:1])[0].rows if row[0] == "citation recall")
    assert row[1:] == ("-", "0.0%")
