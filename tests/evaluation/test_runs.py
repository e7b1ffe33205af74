"""Runs: exact accuracy of scripted policies, modes, rotations, resuming after a kill, reports, comparison."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from evaluation.benchmarks import StarterBenchmark
from evaluation.command import evaluate_agent, fingerprint, index_fingerprint
from evaluation.comparing import compare_runs, comparison_text
from evaluation.grading import grade
from evaluation.metrics import report_mode, summarize
from evaluation.modes import CLOSED_BOOK, Mode, agent_for, baselines, job_for, rotate
from evaluation.predictions import Prediction, PredictionLog, confidence
from evaluation.records import readable, rollout_from
from evaluation.report import write_evaluation_html
from evaluation.run import Plan, run_plan
from evaluation.source import Source
from medagent.agent import Agent, Limits
from medagent.cli import main
from medagent.errors import ConfigError, InputError, PolicyError
from medagent.hf_policy import HFPolicy
from medagent.names import BenchmarkName, ModeName
from medagent.protocol import Protocol, neutralise
from medagent.records import LETTERS, Question, StopReason
from medagent.remote import RemotePolicy, byte_tokenizer
from medagent.scripted import ScriptedPolicy
from medagent.starter.lessons import STARTER_PROTOCOL
from retrieval.errors import NoIndexError
from retrieval.passages import Hit, Passage
from retrieval.search import HybridRetriever, NoRetriever

ROOMY = Limits(4, 4_000, 4_000, 100_000)
PASSAGES = [Passage(f"p{i}", f"drug {i}", f"Drug {i} treats disease {i}.") for i in range(20)]
QUESTIONS = [
    Question(
        f"q{i}",
        f"What treats disease {i}?",
        tuple(f"drug {(i + k) % 20}" for k in range(4)),
        "A",
        gold_passage_ids=(f"p{i}",),
    )
    for i in range(20)
]


class Finds:
    """Answers every search with the passage of the disease it names."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        return [[Hit(PASSAGES[int(re.findall(r"\d+", query)[-1])], 1.0)] for query in queries]


def scripted(script, *, protocol: Protocol | None = None, retriever=None) -> Agent:
    return Agent(
        ScriptedPolicy(byte_tokenizer(), script), retriever or Finds(), protocol or Protocol(instructions=""), ROOMY
    )


def lookup(questions: Sequence[Question], wrong: set[str]):
    """A policy that knows every answer by the question's text, and answers those in `wrong` wrongly."""
    table = {neutralise(question.text): question for question in questions}

    def script(read: str, turn: int) -> str:
        text = read.split("Question: ", 1)[1].split("\nOptions:")[0].split("\n")[0]
        question = table[text]
        if not question.options:
            return f"<answer>{'wrong' if question.id in wrong else question.answer}</answer>"
        letters = [letter for letter in question.letters if (letter == question.answer) != (question.id in wrong)]
        return f"<answer>({letters[0]})</answer>"

    return script


def test_a_lookup_table_gets_exactly_the_accuracy_it_should(tmp_path: Path) -> None:
    wrong = {question.id for question in QUESTIONS[:7]}
    predictions = run_plan(scripted(lookup(QUESTIONS, wrong)), QUESTIONS, Plan(), tmp_path, identity={})
    summary = report_mode(predictions).summary
    assert (summary.overall.accuracy, summary.overall.n) == (13 / 20, 20)
    assert {p.rollout.question.id for p in predictions if not grade(p.rollout).correct} == wrong


DATA = Path(__file__).parents[3] / "shared" / "data"
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
@pytest.mark.skipif(not DATA.exists(), reason="the real benchmark files are not there")
@pytest.mark.parametrize(("name", "path"), REAL)
def test_a_lookup_table_on_every_real_benchmark(tmp_path: Path, name: BenchmarkName, path: str) -> None:
    questions, _, _ = Source(name, path=str(DATA / path)).questions()
    unique = {
        neutralise(question.text): question for question in questions
    }  # a text asked twice has one entry in a table
    questions = list(unique.values())[:300]
    wrong = {question.id for number, question in enumerate(questions) if number % 3 == 0}
    predictions = run_plan(scripted(lookup(questions, wrong)), questions, Plan(), tmp_path, identity={})
    summary = report_mode(predictions).summary
    assert summary.overall.accuracy == (len(questions) - len(wrong)) / len(questions)
    assert summary.unparsed == summary.no_answer == 0


def test_always_a_shows_in_the_rotations(tmp_path: Path) -> None:
    agent = scripted(lambda read, turn: "<answer>(A)</answer>")
    predictions = run_plan(agent, QUESTIONS, Plan(rotations=True), tmp_path, identity={})
    rotations = report_mode(predictions).rotations
    assert rotations is not None
    assert rotations.accuracy == (1.0, 0.0, 0.0, 0.0)  # the right option stands first, then moves to the end
    assert (rotations.changed, rotations.n) == (1.0, 20)
    steady = run_plan(scripted(lookup_by_text()), QUESTIONS, Plan(rotations=True), tmp_path / "steady", identity={})
    found = report_mode(steady).rotations
    assert found is not None
    assert (found.accuracy, found.changed) == ((1.0,) * 4, 0.0)


def lookup_by_text():
    def script(read: str, turn: int) -> str:
        number = re.findall(r"treats disease (\d+)\?", read)[-1]
        letter = re.findall(rf"([A-D])\) drug {number}\n", read)[-1]
        return f"<answer>({letter})</answer>"

    return script


def test_rotation_by_hand() -> None:
    question = Question("q", "?", ("w", "x", "y", "z"), "C")
    assert [(rotate(question, by).options, rotate(question, by).answer) for by in (0, 1, 3, 4)] == [
        (("w", "x", "y", "z"), "C"),
        (("x", "y", "z", "w"), "B"),
        (("z", "w", "x", "y"), "D"),
        (("w", "x", "y", "z"), "C"),
    ]


def test_modes_ask_what_they_say(tmp_path: Path) -> None:
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
    assert "<search>What treats disease 3?</search>" in prompts["single_shot"][0]
    assert "Drug 3 treats disease 3 [1]." in prompts["gold"][0]
    assert prompts["search"] == prompts["unrelated"]


def test_an_instructed_agent_is_told_that_it_cannot_search() -> None:
    agent = scripted(lambda read, turn: "<answer>(A)</answer>", protocol=Protocol())
    closed = agent_for(agent, Mode.CLOSED_BOOK, ())
    assert (closed.protocol.instructions, closed.limits.max_turns) == (CLOSED_BOOK, 1)
    job = job_for(QUESTIONS[0], Mode.CLOSED_BOOK, seed=0, temperature=0, sample=0, instructed=True, evidence={})
    assert not job.force_answer
    assert "already given" in agent_for(agent, Mode.GOLD, ()).protocol.instructions
    with pytest.raises(InputError, match="needs passages"):
        agent_for(agent, Mode.UNRELATED, ())


def test_what_cannot_be_asked_is_said_before_anything_is(tmp_path: Path) -> None:
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


def test_a_killed_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    worker = [sys.executable, str(Path(__file__).parent / "kill_worker.py")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
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


def test_a_folder_is_not_mixed(tmp_path: Path) -> None:
    agent = scripted(lookup(QUESTIONS, set()))
    run_plan(agent, QUESTIONS, Plan(), tmp_path, identity={"temperature": 0.0})
    with pytest.raises(ConfigError, match=r"temperature = 0\.0, now temperature = 1\.0"):
        run_plan(agent, QUESTIONS, Plan(), tmp_path, identity={"temperature": 1.0})
    with pytest.raises(ConfigError, match="questions_sha256"):
        run_plan(agent, QUESTIONS[:3], Plan(), tmp_path, identity={"temperature": 0.0})
    log = tmp_path / "predictions.jsonl"
    log.write_text("{}\n" + log.read_text())
    with pytest.raises(ConfigError, match="line 1: damaged"):
        run_plan(agent, QUESTIONS, Plan(), tmp_path, identity={"temperature": 0.0})


def test_a_prediction_comes_back_as_it_went(tmp_path: Path) -> None:
    def script(read: str, turn: int) -> str:
        number = re.findall(r"disease (\d+)", read)[-1]
        return "<answer>(A) [1]</answer>" if turn else f"<search>{number}</search>"

    predictions = run_plan(scripted(script), QUESTIONS, Plan(), tmp_path, identity={})
    back = PredictionLog(tmp_path / "predictions.jsonl").read()
    assert summarize([p.rollout for p in back]) == summarize([p.rollout for p in predictions])
    summary = summarize([p.rollout for p in back])
    assert (summary.hit_rate, summary.grounding.citation_recall, summary.grounding.cited_gold) == (1.0, 1.0, 1.0)
    plain = {key: value for key, value in readable(predictions[0].rollout).items() if key != "turns"}
    assert {
        key: value for key, value in readable(rollout_from(readable(predictions[0].rollout))).items() if key != "turns"
    } == plain


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
        [job_for(QUESTIONS[0], Mode.SEARCH, seed=0, temperature=0, sample=0, instructed=True, evidence={})]
    )
    assert confidence(rollout, agent.policy.tokenizer) is None


def test_baselines_by_hand() -> None:
    simple = baselines([*QUESTIONS[:3], Question("x", "?", ("a", "b"), "B")])
    assert simple["majority"].accuracy == 0.75  # type: ignore[union-attr]
    assert simple["random"] == pytest.approx((0.25 * 3 + 0.5) / 4)
    assert baselines([Question("o", "?", (), "x")]) == {}


def test_the_command_line_names_every_benchmark_and_mode() -> None:
    for name in get_args(BenchmarkName):
        Source(name, path=None if name == "starter" else "somewhere").open()
    assert set(get_args(ModeName)) == {mode.value for mode in Mode}


def test_evaluate_compare_and_resume_from_the_command_line(
    index_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    arguments = [
        "evaluate",
        "--agent",
        "starter",
        "--index",
        str(index_folder),
        "--limit",
        "6",
        "--split",
        "validation",
    ]
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert main([*arguments, "--out", a, "--modes", '["search", "unrelated"]']) == 0
    assert main([*arguments, "--out", b, "--modes", '["forced_search"]']) == 0
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert set(report["modes"]) == {"search", "unrelated"}
    assert report["n"] == 6
    assert report["baselines"]["random"] == pytest.approx(0.25, abs=0.1)
    page = (tmp_path / "a" / "report.html").read_text()
    assert "<script" not in page
    assert 'id="mode-2"' in page
    assert page.count('class="rollout') == 12
    assert "| accuracy, strict |" in (tmp_path / "a" / "report.md").read_text()
    capsys.readouterr()
    assert main(["compare", a, b]) == 1
    assert "none in common. Name one of each" in capsys.readouterr().err
    modes = ["--mode", "search", "--mode_b", "forced_search"]
    assert main(["compare", a, b, *modes]) == 0
    out = capsys.readouterr().out
    assert "McNemar" in out
    assert f"B: {b}, forced_search" in out
    assert main(["compare", a, a, "--mode", "search", "--mode_b", "unrelated"]) == 0
    capsys.readouterr()
    assert main(["compare", a, b, *modes, "--json", "true"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 6
    before = (tmp_path / "a" / "predictions.jsonl").read_text()
    assert main([*arguments, "--out", a, "--modes", '["search", "unrelated"]']) == 0
    assert (tmp_path / "a" / "predictions.jsonl").read_text() == before
    assert main([*arguments, "--out", a, "--seed", "1"]) == 1
    assert "Give another --out" in capsys.readouterr().err
    assert main([*arguments, "--out", a, "--seed", "1", "--overwrite", "true"]) == 0


def test_comparison_refuses_other_questions(tmp_path: Path) -> None:
    for name, questions in (("a", QUESTIONS[:5]), ("b", QUESTIONS[3:8]), ("c", QUESTIONS[10:])):
        run_plan(scripted(lookup(questions, set())), questions, Plan(), tmp_path / name, identity={})
    result = compare_runs(tmp_path / "a", tmp_path / "b", mode=None, seed=0)
    assert (result.n, result.difference, result.p_mcnemar) == (2, 0.0, 1.0)
    assert "cannot be told apart" in comparison_text(result)
    with pytest.raises(InputError, match="no question in common"):
        compare_runs(tmp_path / "a", tmp_path / "c", mode=None, seed=0)
    with pytest.raises(InputError, match=r"no answers of mode 'gold', only of search"):
        compare_runs(tmp_path / "a", tmp_path / "b", mode="gold", seed=0)
    with pytest.raises(InputError, match=r"no predictions\.jsonl"):
        compare_runs(tmp_path / "nothing", tmp_path / "b", mode=None, seed=0)


def test_evaluate_says_what_is_wrong_first(tmp_path: Path) -> None:
    plan, common = (
        Plan(),
        {"index": None, "model": "", "limits": {}, "concurrency": 4, "overwrite": False, "out": tmp_path / "x"},
    )
    with pytest.raises(InputError, match="--path"):
        evaluate_agent("starter", Source("medqa"), plan, **common)
    with pytest.raises(InputError, match="found split 'dev'"):
        evaluate_agent("starter", Source("starter", split="dev"), plan, **common)
    with pytest.raises(InputError, match="--model"):
        evaluate_agent("http://localhost:1/v1", Source(), plan, **common)
    with pytest.raises(InputError, match="no index to search"):
        evaluate_agent("http://localhost:1/v1", Source(), plan, **{**common, "model": "m"})
    with pytest.raises(InputError, match="limits: found"):
        evaluate_agent(
            "http://localhost:1/v1",
            Source(),
            Plan((Mode.CLOSED_BOOK,)),
            **{**common, "model": "m", "limits": {"turns": 3}},
        )
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no evaluation"):
        evaluate_agent(
            "http://localhost:1/v1", Source(), Plan((Mode.CLOSED_BOOK,)), **{**common, "model": "m", "overwrite": True}
        )
    assert (tmp_path / "x" / "thesis.txt").exists()


def test_letters_cover_the_largest_benchmark() -> None:
    assert len(LETTERS) == 10


def test_prediction_keys_tell_askings_apart() -> None:
    agent = scripted(lookup(QUESTIONS, set()))
    (rollout,) = agent.run_all(
        [job_for(QUESTIONS[0], Mode.SEARCH, seed=0, temperature=0, sample=2, instructed=True, evidence={})]
    )
    assert Prediction("search", 1, rollout, None).key == ("search", "q0", 1, 2)


def test_line_separators_in_a_text_do_not_break_the_log(tmp_path: Path) -> None:
    agent = scripted(lambda read, turn: "<think>one\u2028two\u0085three</think><answer>(A)</answer>")
    for _ in range(2):  # the second time everything is read back
        predictions = run_plan(agent, QUESTIONS[:3], Plan(), tmp_path, identity={})
        assert [prediction.rollout.answer for prediction in predictions] == ["(A)"] * 3
    before = (tmp_path / "predictions.jsonl").read_bytes() + b'{"cut'
    (tmp_path / "predictions.jsonl").write_bytes(before)
    compare_runs(tmp_path, tmp_path, mode=None, seed=0)
    assert (tmp_path / "predictions.jsonl").read_bytes() == before, "a reader changes nothing"


def test_answers_never_stand_under_other_settings(tmp_path: Path) -> None:
    one, two = scripted(lambda read, turn: "<answer>(A)</answer>"), scripted(lambda read, turn: "<answer>(B)</answer>")
    run_plan(one, QUESTIONS[:3], Plan(), tmp_path, identity={"agent": 1})
    kept = run_plan(two, QUESTIONS[:3], Plan(), tmp_path, identity={"agent": 1}, overwrite=True)
    assert [p.rollout.answer for p in kept] == ["(A)"] * 3, "the same evaluation goes on, overwrite or not"
    anew = run_plan(two, QUESTIONS[:3], Plan(), tmp_path, identity={"agent": 2}, overwrite=True)
    assert [p.rollout.answer for p in anew] == ["(B)"] * 3
    (tmp_path / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        run_plan(one, QUESTIONS[:3], Plan(), tmp_path, identity={"agent": 3})


def test_what_an_evaluation_is_of_can_be_told(index_folder: Path, train_index: Path, tmp_path: Path) -> None:
    shutil.copytree(index_folder, tmp_path / "copy")
    prints = [
        index_fingerprint(HybridRetriever(str(folder))) for folder in (index_folder, tmp_path / "copy", train_index)
    ]
    assert prints[0] == prints[1] != prints[2]
    assert index_fingerprint(NoRetriever()) == fingerprint("http://localhost/v1") == ""
    before = fingerprint(f"hf:{tmp_path / 'copy'}")
    (tmp_path / "copy" / "more").write_text("x")
    assert fingerprint(f"hf:{tmp_path / 'copy'}") != before
    assert len(fingerprint("starter")) == 64


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


def test_the_page_shows_every_mode_and_verdict(tmp_path: Path) -> None:
    wrong = {question.id for question in QUESTIONS[::2]}
    plan = Plan((Mode.SEARCH, Mode.SINGLE_SHOT))
    predictions = run_plan(scripted(lookup(QUESTIONS, wrong)), QUESTIONS, plan, tmp_path, identity={})
    write_evaluation_html(
        tmp_path / "r.html", title="t", summary="s", tables=[], curves=[], predictions=predictions, most=8
    )
    page = (tmp_path / "r.html").read_text()
    assert page.count('class="rollout') == 8
    for name in ("correct", "wrong", "search", "single_shot"):
        assert f"> {name}</label>" in page
    assert "Reward" not in page


def test_a_search_that_is_not_run_is_not_counted(tmp_path: Path) -> None:
    agent = scripted(lambda read, turn: "<search>disease 1</search>")
    (prediction,) = run_plan(agent, QUESTIONS[:1], Plan((Mode.SEARCH,)), tmp_path, identity={})
    assert (prediction.rollout.num_searches, prediction.rollout.stop_reason) == (3, StopReason.MAX_TURNS)


def test_a_refused_first_attempt_does_not_block_the_next(tmp_path: Path) -> None:
    agent = scripted(lookup(QUESTIONS, set()))
    with pytest.raises(InputError, match="in neither"):
        run_plan(agent, QUESTIONS, Plan((Mode.SEARCH, Mode.GOLD)), tmp_path / "out", identity={"modes": 2})
    dead = Agent(RemotePolicy("http://127.0.0.1:9/v1", "m", retries=0), Finds(), Protocol(), ROOMY)
    with pytest.raises(PolicyError):
        run_plan(dead, QUESTIONS, Plan(), tmp_path / "out", identity={"modes": 1})
    assert len(run_plan(agent, QUESTIONS, Plan(), tmp_path / "out", identity={"modes": "one"})) == 20
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made a folder"):
        run_plan(agent, QUESTIONS, Plan(), tmp_path / "file", identity={})


def test_rotations_of_questions_with_other_numbers_of_options_are_left_out(tmp_path: Path) -> None:
    questions = [*QUESTIONS[:4], Question("two", "What treats disease 9?", ("drug 9", "drug 1"), "A")]
    report = report_mode(run_plan(scripted(lookup_by_text()), questions, Plan(rotations=True), tmp_path, identity={}))
    assert report.rotations is not None
    assert (report.rotations.n, len(report.rotations.accuracy)) == (4, 4)


def test_sources_that_would_ask_other_questions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes neither --path nor --hub"):
        Source(path="mine.jsonl").questions()
    with pytest.raises(InputError, match="from 0"):
        Source(start=-5).questions()
    (tmp_path / "a.jsonl").write_text('{"question": "q", "opions": ["x", "y"], "answer": "A"}\n')
    with pytest.raises(InputError, match="is a folder"):
        Source("jsonl", path=str(tmp_path)).questions()
    with pytest.raises(InputError, match=r"line 1: found the field 'opions'"):
        Source("jsonl", path=str(tmp_path / "a.jsonl")).questions()
