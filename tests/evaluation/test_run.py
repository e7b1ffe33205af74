"""Runs: exact accuracy of scripted policies, resuming after an interruption, folders that are never mixed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.agent import Agent
from medagent.errors import ConfigError, InputError, PolicyError
from medagent.evaluation.comparison import compare
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import report_mode, summarize
from medagent.evaluation.modes import Mode
from medagent.evaluation.predictions import PredictionLog
from medagent.evaluation.rollout_files import readable, rollout_from
from medagent.evaluation.run import Plan, digest, run_plan
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.errors import NoIndexError
from medagent.types import Question
from tests.evaluation.support import QUESTIONS, ROOMY, lookup, scripted


def test_scripted_answers_get_their_exact_accuracy(tmp_path: Path) -> None:
    wrong = {question.id for question in QUESTIONS[:7]}
    predictions = run_plan(scripted(lookup(QUESTIONS, wrong)), QUESTIONS, Plan(), tmp_path, identity={})
    summary = report_mode(predictions).summary
    assert (summary.overall.accuracy, summary.overall.n) == (13 / 20, 20)
    assert {p.rollout.question.id for p in predictions if not grade(p.rollout).correct} == wrong


def test_a_plan_that_cannot_be_asked_is_refused_before_any_question(tmp_path: Path) -> None:
    asked: list[str] = []
    agent = scripted(lambda read, turn: asked.append(read) or "<answer>(A)</answer>")
    with pytest.raises(InputError, match="gold passage p0 is in neither"):
        run_plan(agent, QUESTIONS, Plan((Mode.SEARCH, Mode.GOLD)), tmp_path, identity={})
    assert not asked
    with pytest.raises(ConfigError, match="all the same"):
        Plan(samples=2)
    with pytest.raises(ConfigError, match="each once"):
        Plan(modes=(Mode.SEARCH, Mode.SEARCH))
    with pytest.raises(NoIndexError, match="--index"):
        run_plan(
            scripted(lambda read, turn: "<search>x 1</search>", retriever=NoRetriever()),
            QUESTIONS,
            Plan(),
            tmp_path / "none",
            identity={},
        )


def test_an_interrupted_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    log, asked = tmp_path / "cut" / "predictions.jsonl", list[str]()

    def script(read: str, turn: int) -> str:
        number = re.findall(r"disease (\d+)\?", read)[-1]
        asked.append(f"q{number}")
        if len(asked) == 12:
            raise KeyboardInterrupt
        return f"<answer>({'ABCD'[int(number) % 4]})</answer>"

    with pytest.raises(KeyboardInterrupt):
        run_plan(scripted(script), QUESTIONS, Plan(), log.parent, identity={}, concurrency=1)
    with log.open("ab") as file:
        file.write(b'{"mode": "search", "rotation": 0, "conf')  # as if a kill had come in the middle of a line
    finished = {prediction.rollout.question.id for prediction in PredictionLog(log).read()}
    assert 0 < len(finished) < 20
    resumed = run_plan(scripted(script), QUESTIONS, Plan(), log.parent, identity={}, concurrency=1)
    assert not finished & set(asked[12:])
    assert len(asked) - 12 == 20 - len(finished)
    whole = run_plan(scripted(script), QUESTIONS, Plan(), tmp_path / "whole", identity={})
    for predictions in (resumed, PredictionLog(log).read()):
        rollouts = sorted((p.rollout for p in predictions), key=lambda rollout: QUESTIONS.index(rollout.question))
        assert [rollout.answer for rollout in rollouts] == [p.rollout.answer for p in whole]
        assert summarize(rollouts).overall == summarize([p.rollout for p in whole]).overall


def test_a_folder_of_another_evaluation_is_refused(tmp_path: Path) -> None:
    agent = scripted(lookup(QUESTIONS, set()))
    run_plan(agent, QUESTIONS, Plan(), tmp_path, identity={"temperature": 0.0})
    with pytest.raises(ConfigError, match=r"temperature = 0\.0, now temperature = 1\.0"):
        run_plan(agent, QUESTIONS, Plan(), tmp_path, identity={"temperature": 1.0})
    with pytest.raises(ConfigError, match="questions_sha256"):
        run_plan(agent, QUESTIONS[:3], Plan(), tmp_path, identity={"temperature": 0.0})
    log = tmp_path / "predictions.jsonl"
    kept = log.read_text()
    for line, said in (("[]", "line 1: damaged"), ("{}", "line 1: found no field 'mode'.*Another version")):
        log.write_text(f"{line}\n{kept}")
        with pytest.raises(ConfigError, match=said):
            run_plan(agent, QUESTIONS, Plan(), tmp_path, identity={"temperature": 0.0})


def test_a_prediction_survives_writing_and_reading(tmp_path: Path) -> None:
    def script(read: str, turn: int) -> str:
        number = re.findall(r"disease (\d+)", read)[-1]
        return "<answer>(A) [1]</answer>" if turn else f"<search>{number}</search>"

    predictions = run_plan(scripted(script), QUESTIONS, Plan(), tmp_path, identity={})
    back = PredictionLog(tmp_path / "predictions.jsonl").read()
    assert summarize([p.rollout for p in back]) == summarize([p.rollout for p in predictions])
    summary = summarize([p.rollout for p in back])
    assert (summary.grounding.gold_all, summary.grounding.citation_recall, summary.grounding.cited_gold) == (
        1.0,
        1.0,
        1.0,
    )
    plain = {key: value for key, value in readable(predictions[0].rollout).items() if key != "turns"}
    assert {
        key: value for key, value in readable(rollout_from(readable(predictions[0].rollout))).items() if key != "turns"
    } == plain


def test_line_separators_in_a_text_do_not_break_the_log(tmp_path: Path) -> None:
    agent = scripted(lambda read, turn: "<think>one\u2028two\u0085three</think><answer>(A)</answer>")
    for _ in range(2):  # the second time everything is read back
        predictions = run_plan(agent, QUESTIONS[:3], Plan(), tmp_path, identity={})
        assert [prediction.rollout.answer for prediction in predictions] == ["(A)"] * 3
    before = (tmp_path / "predictions.jsonl").read_bytes() + b'{"cut'
    (tmp_path / "predictions.jsonl").write_bytes(before)
    compare(tmp_path, tmp_path, mode=None, seed=0)
    assert (tmp_path / "predictions.jsonl").read_bytes() == before, "a reader changes nothing"


def test_overwrite_drops_answers_of_another_identity(tmp_path: Path) -> None:
    one, two = scripted(lambda read, turn: "<answer>(A)</answer>"), scripted(lambda read, turn: "<answer>(B)</answer>")
    run_plan(one, QUESTIONS[:3], Plan(), tmp_path, identity={"agent": 1})
    kept = run_plan(two, QUESTIONS[:3], Plan(), tmp_path, identity={"agent": 1}, overwrite=True)
    assert [p.rollout.answer for p in kept] == ["(A)"] * 3, "the same evaluation goes on, overwrite or not"
    (tmp_path / "report.json").touch()
    anew = run_plan(two, QUESTIONS[:3], Plan(), tmp_path, identity={"agent": 2}, overwrite=True)
    assert [p.rollout.answer for p in anew] == ["(B)"] * 3
    assert not (tmp_path / "report.json").exists(), "which tells of the old answers"
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        run_plan(one, QUESTIONS[:3], Plan(), tmp_path, identity={"agent": 3})


def test_a_refused_first_attempt_does_not_block_the_next(tmp_path: Path) -> None:
    agent = scripted(lookup(QUESTIONS, set()))
    with pytest.raises(InputError, match="in neither"):
        run_plan(agent, QUESTIONS, Plan((Mode.SEARCH, Mode.GOLD)), tmp_path / "out", identity={"modes": 2})
    dead = Agent(RemotePolicy("http://127.0.0.1:9/v1", "m", retries=0), NoRetriever(), TagProtocol(), ROOMY)
    with pytest.raises(PolicyError):
        run_plan(dead, QUESTIONS, Plan(), tmp_path / "out", identity={"modes": 1})
    assert len(run_plan(agent, QUESTIONS, Plan(), tmp_path / "out", identity={"modes": "one"})) == 20
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        run_plan(agent, QUESTIONS, Plan(), tmp_path / "file", identity={})


def test_questions_are_others_where_anything_that_grading_reads_is_another() -> None:
    plain = Question("q", "What?", (), "gout", aliases=("podagra",))
    others = (
        replace(plain, id="r"),
        replace(plain, text="Which?"),
        replace(plain, answer="flu"),
        replace(plain, aliases=()),
        replace(plain, options=("gout", "flu")),
        replace(plain, form="ranked"),
        replace(plain, form="list", items=(("gout",),)),
    )
    assert digest([replace(plain)]) == digest([plain])
    assert len({digest([each]) for each in (plain, *others)}) == 8
    assert digest([plain, others[0]]) != digest([others[0], plain])
