"""Runs: exact accuracy of scripted policies, resuming after a kill, folders that are never mixed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.agent import Agent
from medagent.errors import ConfigError, InputError, PolicyError
from medagent.evaluation.benchmarks.source import BenchmarkSource
from medagent.evaluation.comparison import compare
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.metrics import report_mode, summarize
from medagent.evaluation.modes import Mode
from medagent.evaluation.names import BenchmarkName
from medagent.evaluation.predictions import PredictionLog
from medagent.evaluation.rollout_files import readable, rollout_from
from medagent.evaluation.run import Plan, digest, run_plan
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.protocol import TagProtocol, neutralise
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.errors import NoIndexError
from medagent.types import Question
from tests.evaluation.support import QUESTIONS, ROOMY, lookup, scripted
from tests.support import ROOT, SHARED_DATA


def test_scripted_answers_get_their_exact_accuracy(tmp_path: Path) -> None:
    wrong = {question.id for question in QUESTIONS[:7]}
    predictions = run_plan(scripted(lookup(QUESTIONS, wrong)), QUESTIONS, Plan(), tmp_path, identity={})
    summary = report_mode(predictions).summary
    assert (summary.overall.accuracy, summary.overall.n) == (13 / 20, 20)
    assert {p.rollout.question.id for p in predictions if not grade(p.rollout).correct} == wrong


REAL = [
    ("medqa", "medqa/us_4options_dev.jsonl"),
    ("medmcqa", "medmcqa/dev_half.json"),
    ("pubmedqa", "pubmedqa/pqal_train500.json"),
    ("pubmedqa_yes_no", "pubmedqa/pqal_train500.json"),
    ("pubmedqa_with_abstract", "pubmedqa/pqal_train500.json"),
    ("mmlu", "mmlu"),
    ("bioasq", "bioasq"),
]


@pytest.mark.real_data
@pytest.mark.skipif(not SHARED_DATA.exists(), reason="the real benchmark files are not there")
@pytest.mark.parametrize(("name", "path"), REAL)
def test_a_scripted_agent_scores_its_known_accuracy_on_every_real_benchmark(
    tmp_path: Path, name: BenchmarkName, path: str
) -> None:
    questions, _, _ = BenchmarkSource(name, path=str(SHARED_DATA / path)).questions()
    unique = {
        neutralise(question.text): question for question in questions
    }  # a text asked twice has one entry in a table
    questions = list(unique.values())[:300]
    wrong = {question.id for number, question in enumerate(questions) if number % 3 == 0}
    predictions = run_plan(scripted(lookup(questions, wrong)), questions, Plan(), tmp_path, identity={})
    summary = report_mode(predictions).summary
    assert summary.overall.accuracy == (len(questions) - len(wrong)) / len(questions)
    assert summary.unparsed == summary.no_answer == 0


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


@pytest.mark.long
def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    worker = [sys.executable, str(Path(__file__).parent / "kill_worker.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    subprocess.run([*worker, str(whole)], env=environment, check=True)
    log = cut / "run" / "predictions.jsonl"
    process = subprocess.Popen([*worker, str(cut)], env=environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not log.exists() or log.read_bytes().count(b"\n") < 150):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with log.open("ab") as file:
        file.write(b'{"mode": "search", "rotation": 0, "conf')  # as if the kill had come in the middle of a line
    finished = {prediction.rollout.question.id for prediction in PredictionLog(log).read()}
    assert 150 <= len(finished) < 500
    (cut / "asked.log").rename(cut / "asked-before.log")
    subprocess.run([*worker, str(cut)], env=environment, check=True)
    asked = ["q" + line for line in (cut / "asked.log").read_text().splitlines()]
    assert not finished & set(asked)
    assert len(asked) == 500 - len(finished)
    summaries = []
    for folder in (whole, cut):
        predictions = PredictionLog(folder / "run" / "predictions.jsonl").read()
        assert len({prediction.key for prediction in predictions}) == len(predictions) == 500
        rollouts = sorted((p.rollout for p in predictions), key=lambda rollout: rollout.question.id)
        summaries.append((summarize(rollouts), [rollout.answer for rollout in rollouts]))
    assert summaries[0] == summaries[1]
    assert 0.15 < summaries[0][0].overall.accuracy < 0.35  # answers are drawn by the seed


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
    anew = run_plan(two, QUESTIONS[:3], Plan(), tmp_path, identity={"agent": 2}, overwrite=True)
    assert [p.rollout.answer for p in anew] == ["(B)"] * 3
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
