"""What the evaluation during training measures: which questions, searches and weights, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.policies.huggingface import HFPolicy
from medagent.retrieval.controls import UnreliableRetriever
from medagent.training.callbacks import HeldOutEvaluation, held_out
from medagent.training.metrics import METRICS
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.support import make_data, make_module


class Logger:
    """Keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, row: dict[str, float], step: int) -> None:
        self.rows.append((step, row))


@pytest.fixture
def evaluated(retriever, starter, monkeypatch: pytest.MonkeyPatch):
    """Runs the callback at some epochs: what it asked, what it logged, and whose weights it took."""
    module = make_module()
    data = make_data(UnreliableRetriever(retriever, share=1.0), seed=7)
    logger, versions, asked = Logger(), [], []
    monkeypatch.setattr(module, "log_dict", lambda *row, **settings: None)

    def policy_of(found: object, *, version: int) -> HFPolicy:
        assert found is module
        versions.append(version)
        return HFPolicy(*starter)

    monkeypatch.setattr(data, "policy_of", policy_of)
    plain = held_out.run_benchmark

    def watched(agent, questions, **settings: Any):
        asked.append((agent, questions, settings))
        return plain(agent, questions, **settings)

    monkeypatch.setattr(held_out, "run_benchmark", watched)
    benchmark = StarterBenchmark("validation", limit_per_kind=1)
    callback = HeldOutEvaluation(benchmark, every=3)
    for epoch in range(7):
        trainer = SimpleNamespace(datamodule=data, current_epoch=epoch, global_step=10 * epoch, loggers=[logger])
        callback.on_train_epoch_end(trainer, module)
    return SimpleNamespace(data=data, logger=logger, versions=versions, asked=asked, questions=benchmark.questions())


def test_it_measures_every_so_many_iterations_on_the_weights_of_then(evaluated) -> None:
    assert evaluated.versions == [3, 6]
    assert [(step, row["epoch"]) for step, row in evaluated.logger.rows] == [(19, 2), (49, 5)]
    for _, row in evaluated.logger.rows:
        assert 0.0 <= row["validation/accuracy"] <= 1.0


def test_open_questions_log_their_measures(monkeypatch: pytest.MonkeyPatch, retriever, starter) -> None:
    """Two factoid questions, one answered rightly second, and a list of which one of two items is named."""
    questions = [
        Question("f", "?", answer="gout", form="ranked", kind="factoid"),
        Question("l", "?", answer="a; b", items=(("a",), ("b",)), form="list", kind="list"),
    ]
    answers = {"f": "lupus; gout", "l": "a"}
    module, data, logger = make_module(), make_data(retriever), Logger()
    monkeypatch.setattr(module, "log_dict", lambda *row, **settings: None)
    monkeypatch.setattr(data, "policy_of", lambda found, version: HFPolicy(*starter))
    monkeypatch.setattr(
        held_out,
        "run_benchmark",
        lambda agent, asked, **settings: [
            Rollout(each, (1,), (Turn((2,), (0.0,), "", answer=answers[each.id]),), StopReason.ANSWERED)
            for each in asked
        ],
    )
    callback = HeldOutEvaluation(SimpleNamespace(questions=lambda: questions), every=1)
    trainer = SimpleNamespace(datamodule=data, current_epoch=0, global_step=1, loggers=[logger])
    callback.on_train_epoch_end(trainer, module)
    ((step, row),) = logger.rows
    assert (step, row.pop("epoch")) == (0, 0)
    factoid = {"factoid_lenient": 1.0, "factoid_mrr": 0.5}
    listed = {"list_precision": 1.0, "list_recall": 0.5, "list_f1": pytest.approx(2 / 3)}
    zero = ("accuracy", "factoid", "list", "exact_match", "f1", "contains_answer", "factoid_strict")
    wanted = {**dict.fromkeys(zero, 0.0), **factoid, **listed}
    assert row == {f"validation/{name}": value for name, value in wanted.items()}
    assert row.keys() - set(METRICS) == {"validation/factoid", "validation/list"}


def test_it_measures_greedily_and_as_the_agent_will_be_used(evaluated) -> None:
    for agent, questions, settings in evaluated.asked:
        assert questions == evaluated.questions
        assert settings == {"temperature": 0.0, "seed": 7}
        rules = evaluated.data.agent_settings
        assert (agent.protocol, agent.limits, agent.top_k) == (rules.protocol, rules.limits, rules.top_k)


def test_the_failures_of_training_are_off(evaluated) -> None:
    query = evaluated.questions[0].text
    failing = evaluated.data.retriever.search([query], top_k=3)
    for agent, _, _ in evaluated.asked:
        found = agent.retriever.search([query], top_k=3)
        assert found == evaluated.data.retriever.retriever.search([query], top_k=3)
        assert found != failing
