"""What validation measures: which questions, searches and weights, and when; and that training does not feel it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping

from docs.reference.metric_words import METRICS
from medagent.errors import ConfigError, InputError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.retrieval.controls import UnreliableRetriever
from medagent.training import agent_data
from medagent.training.data import RolloutData
from medagent.training.engines import InProcessEngine
from medagent.training.module import AgentModule
from medagent.training.validation import ValidationBatches
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.pretend import PretendRanks
from tests.training.support import AGENT, make_data, make_module, quiet_trainer

VALIDATION = StarterBenchmark("validation", limit_per_kind=1)


def fitted(retriever, tmp_path, *, epochs: int, every: int = 1, **settings: Any) -> AgentModule:
    module = make_module(policy_lr=1e-2)
    data = make_data(retriever, num_questions=4, num_minibatches=2, num_micro_batches=1, **settings)
    quiet_trainer(tmp_path, epochs=epochs, check_val_every_n_epoch=every, num_sanity_val_steps=0).fit(
        module, datamodule=data
    )
    return module


@pytest.fixture
def evaluated(retriever, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A run of four iterations that is validated at each second: what was asked and logged, and whose weights."""
    versions, asked, rows = [], [], []
    sync, plain = RolloutData.policy_of, agent_data.run_benchmark

    def watched_sync(data, module, *, version: int):
        versions.append(version)
        return sync(data, module, version=version)

    def watched(agent, questions, **settings: Any):
        asked.append((agent, questions, settings))
        return plain(agent, questions, **settings)

    monkeypatch.setattr(RolloutData, "policy_of", watched_sync)
    monkeypatch.setattr(agent_data, "run_benchmark", watched)
    monkeypatch.setattr("medagent.training.validation.log_at_once", lambda trainer, module, row: rows.append(row))
    retriever = UnreliableRetriever(retriever, share=1.0)
    fitted(retriever, tmp_path, epochs=4, every=2, val_benchmark=VALIDATION, seed=7)
    return SimpleNamespace(versions=versions, asked=asked, rows=rows, retriever=retriever)


def test_it_measures_every_so_many_iterations_greedily_on_the_weights_of_then_without_failures(evaluated) -> None:
    assert evaluated.versions == [0, 1, 2, 2, 3, 4]
    assert len(evaluated.rows) == len(evaluated.asked) == 2
    for row in evaluated.rows:
        assert 0.0 <= row["validation/accuracy"] <= 1.0
    query = VALIDATION.questions()[0].text
    for agent, questions, settings in evaluated.asked:
        assert questions == VALIDATION.questions()
        assert settings == {"temperature": 0.0, "seed": 7}
        assert (agent.protocol, agent.limits, agent.top_k) == (AGENT.protocol, AGENT.limits, AGENT.top_k)
        found = agent.retriever.search([query], top_k=3)
        assert found == evaluated.retriever.retriever.search([query], top_k=3)
        assert found != evaluated.retriever.search([query], top_k=3)


@pytest.mark.parametrize("weight_sync", ["merged", "adapter"])
def test_training_is_bitwise_the_same_with_and_without_it(retriever, tmp_path, weight_sync) -> None:
    ends = []
    for number, settings in enumerate(({}, {"val_benchmark": VALIDATION})):
        engine = InProcessEngine(weight_sync)
        module = fitted(retriever, tmp_path / str(number), epochs=2, engine=engine, **settings)
        ends.append([each.detach().clone() for each in module.parameters() if each.requires_grad])
        assert module.shared_base.training
    assert all(map(torch.equal, *ends))


def test_the_last_questions_of_the_benchmark_are_watched_and_not_trained_on(retriever) -> None:
    whole, split = make_data(retriever), make_data(retriever, val_size=5, val_benchmark=VALIDATION)
    assert split.questions == whole.questions[:-5]
    assert split.val_questions == VALIDATION.questions() + whole.questions[-5:]
    for size in (-1, len(whole.questions)):
        with pytest.raises(ConfigError, match=rf"data.val_size: found {size}, wanted 0 or more"):
            make_data(retriever, val_size=size)


def test_contaminated_questions_are_refused_before_training(retriever, tmp_path) -> None:
    same = StarterBenchmark("train", limit_per_kind=2)
    with pytest.raises(InputError, match="validation: 4 of 4 test questions"):
        fitted(retriever, tmp_path, epochs=1, val_benchmark=same)
    fitted(retriever, tmp_path, epochs=1, val_benchmark=same, allowed_contamination=1.0)


def test_what_waits_for_validation_is_refused_where_there_is_none(retriever, tmp_path) -> None:
    waits = EarlyStopping("reward/mean", check_on_train_epoch_end=False)
    for every, stopping in ((1, waits), (2, EarlyStopping("reward/mean"))):
        trainer = quiet_trainer(tmp_path, callbacks=[stopping], check_val_every_n_epoch=every)
        with pytest.raises(ConfigError, match="found EarlyStopping, which looks at its metric after validation"):
            trainer.fit(make_module(), datamodule=make_data(retriever))


def test_open_questions_log_their_measures(retriever) -> None:
    """Two factoid questions, one answered rightly second, and a list of which one of two items is named."""
    questions = [
        Question("f", "?", answer="gout", form="ranked", kind="factoid"),
        Question("l", "?", answer="a; b", items=(("a",), ("b",)), form="list", kind="list"),
    ]
    answers = {"f": "lupus; gout", "l": "a"}
    row = make_data(retriever).validation_metrics(
        [
            Rollout(each, (1,), (Turn((2,), (0.0,), "", answer=answers[each.id]),), StopReason.ANSWERED)
            for each in questions
        ]
    )
    factoid = {"factoid_lenient": 1.0, "factoid_mrr": 0.5}
    listed = {"list_precision": 1.0, "list_recall": 0.5, "list_f1": pytest.approx(2 / 3)}
    zero = ("accuracy", "factoid", "list", "exact_match", "f1", "contains_answer", "factoid_strict")
    wanted = {**dict.fromkeys(zero, 0.0), **factoid, **listed}
    assert row == {f"validation/{name}": value for name, value in wanted.items()}
    assert row.keys() - set(METRICS) == {"validation/factoid", "validation/list"}


def test_ranks_share_the_questions_in_equally_many_batches(monkeypatch) -> None:
    monkeypatch.setattr("medagent.training.validation.BATCH", 2)
    questions = [Question(f"q{number}", "?") for number in range(5)]
    ranks = PretendRanks(2)
    parts = [list(ValidationBatches(questions, ranks.trainer(rank))) for rank in range(2)]
    assert [[[each.id for each in batch] for batch in part] for part in parts] == [
        [["q0", "q2"], ["q4"]],
        [["q1", "q3"], []],
    ]
