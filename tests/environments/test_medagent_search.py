"""Our questions, index and grader as an environment of verifiers, with the package and without it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.types import Question
from tests.support import ROOT

PACKAGE = ROOT / "environments" / "medagent_search"


def loaded(monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("medagent_search", PACKAGE / "medagent_search.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "medagent_search", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def classic(monkeypatch):
    """The module beside a stand-in for verifiers 0.1 to 0.3, whose environment is what it was made of."""
    stand_in = ModuleType("verifiers")
    stand_in.ToolEnv = lambda **parts: SimpleNamespace(**parts)
    stand_in.Rubric = lambda funcs: funcs
    monkeypatch.setitem(sys.modules, "verifiers", stand_in)
    return loaded(monkeypatch)


def test_the_reward_is_that_of_our_grader_for_the_last_line(classic):
    question = Question("q", "Which drug for gout?", ("demoxetine", "allopurinol"), "B")
    assert classic.asked(question).splitlines()[1:3] == ["A) demoxetine", "B) allopurinol"]
    assert classic.reward_of(question, "It lowers urate [1].\nAnswer: B") == 1.0
    assert classic.reward_of(question, "Answer: A") == 0.1
    assert classic.reward_of(question, "") == 0.0


def test_a_tool_env_has_our_questions_our_search_and_our_grader(classic):
    made = classic.load_environment(benchmark_args={"limit_per_kind": 2}, top_k=2)
    (search,), (reward,) = made.tools, made.rubric
    assert search("first-line drug of anaplasmosis").splitlines()[0].startswith("[1] anaplasmosis")
    assert len(search("anaplasmosis").splitlines()) == 2
    assert search(" ") == "No passages found."
    questions, rows = StarterBenchmark(limit_per_kind=2).questions(), list(made.dataset)
    assert [row["question"].splitlines()[0] for row in rows] == [each.text for each in questions]
    said = [{"role": "assistant", "content": None}, {"role": "tool", "content": "Answer: A"}]
    right = {"role": "assistant", "content": f"Answer: {questions[1].answer}"}
    assert reward([*said, right], rows[1]["info"]) == 1.0
    assert reward(said, rows[1]["info"]) == 0.0


def test_questions_come_from_a_file_and_a_wrong_name_is_refused(classic, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"question": "Which drug?", "answer": "demoxetine"}) + "\n")
    assert [each.answer for each in classic.questions_of(str(file), {})] == ["demoxetine"]
    with pytest.raises(ValueError, match="found 'nowhere.Benchmark', wanted a class"):
        classic.questions_of("nowhere.Benchmark", {})


def test_verifiers_finds_its_gold_answers_right_and_untouched_tasks_unsolved(monkeypatch):
    vf = pytest.importorskip("verifiers.v1")
    module = loaded(monkeypatch)
    env = module.load_environment(benchmark_args={"limit_per_kind": 2})
    assert vf.default_harness_id("medagent_search") == "medagent_search"
    tasks = list(env.taskset)
    assert [task.data.id for task in tasks] == [each.id for each in StarterBenchmark(limit_per_kind=2).questions()]
    assert all(asyncio.run(task.validate(None)) for task in tasks)
    assert asyncio.run(tasks[0].correct_answer(SimpleNamespace(last_reply=""))) == 0.0
