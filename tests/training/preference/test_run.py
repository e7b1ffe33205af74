"""`medagent preference` samples, trains, exports, and goes on after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from medagent.agent import Agent
from medagent.agent_folder import load_agent
from medagent.agent_spec import read_spec
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.evaluation.metrics import summarize
from medagent.evaluation.run import run_benchmark
from medagent.models.base_models import STARTER, model_path
from medagent.training.callbacks.export import read_metrics
from medagent.training.command import preference_command
from medagent.training.default_callbacks import tokens_to_sample
from medagent.training.preference.pairs import SampledPairs
from medagent.training.rollouts.stale_rollouts import read_rollouts
from tests.support import CONFIGS
from tests.training.support import configured

CONFIG = CONFIGS / "preference" / "starter.yaml"


def arguments(run: Path, index: Path, *, questions: int = 12, epochs: int = 2, **overrides: object) -> list[str]:
    settings = {
        "data.num_micro_batches": 2,
        "data.batch_size": 4,
        "data.held_out": 2,
        "data.pairs.init_args.benchmark.init_args.limit_per_kind": questions,
        "data.pairs.init_args.samples": 4,
    }
    return configured(CONFIG, run, index, epochs, **{**settings, **overrides})


@pytest.fixture(scope="module")
def taught(train_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preference_command(arguments(tmp_path_factory.mktemp("preference") / "run", train_index))


def test_a_run_logs_what_it_trains_on_and_exports_an_agent(taught: Path, index_folder: Path) -> None:
    first, last = read_metrics(taught)
    sampled = [each for path in sorted((taught / "pairs").glob("*.jsonl")) for each in read_rollouts(path)]
    assert len(sampled) == 4 * 24
    assert all(each.turns[0].forced_prefix for each in sampled), "the search's tag is not the policy's"
    assert first["preference/pairs"] > 4
    assert first["preference/held_out"] > 0
    assert last["preference/loss"] < first["preference/loss"]
    forward, backward = last["compute/forward_tokens"], last["compute/backward_tokens"]
    assert backward > 1000
    # Reference and policy read each token that is trained on; what is held out only measures.
    assert forward == tokens_to_sample(sampled) + 2 * backward
    assert {"preference/held_out_loss", "preference/chosen_kl", "preference/margin"} <= set(last)
    made = read_spec(taught / "agent").training
    assert "SampledPairs" in made["pairs"]
    assert made["preference_loss"].startswith("TDPO2")
    agent = load_agent(taught / "agent", index=str(index_folder))
    assert len(run_benchmark(agent, StarterBenchmark("validation", limit_per_kind=1).questions())) == 2


def test_a_second_start_samples_and_trains_nothing_again(taught: Path, train_index: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(SampledPairs, "_rollouts", None)
    preference_command(arguments(taught, train_index))
    assert "Nothing is left to do" in capsys.readouterr().out


def test_sampling_goes_on_where_it_was_stopped(taught: Path, train_index: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("medagent.training.preference.pairs.QUESTIONS_AT_A_TIME", 8)
    whole = Agent.run_all
    asked: list[int] = []

    def stopped(self, jobs, **settings):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(len(jobs))
        return whole(self, jobs, **settings)

    monkeypatch.setattr(Agent, "run_all", stopped)
    with pytest.raises(KeyboardInterrupt):
        preference_command(arguments(tmp_path / "run", train_index))
    assert len(list((tmp_path / "run" / "pairs").glob("*.jsonl"))) == 2
    monkeypatch.setattr(Agent, "run_all", whole)
    preference_command(arguments(tmp_path / "run", train_index))

    def said(run: Path) -> list[tuple[str, int, list[str]]]:
        found = [each for path in sorted((run / "pairs").glob("*.jsonl")) for each in read_rollouts(path)]
        return [(each.question.id, each.sample, [turn.text for turn in each.turns]) for each in found]

    assert said(tmp_path / "run") == said(taught)


def weights(run: Path) -> dict[str, torch.Tensor]:
    newest = max((run / "checkpoints").glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    return torch.load(newest, map_location="cpu", weights_only=True)["state_dict"]


def test_a_run_that_was_stopped_ends_with_the_same_weights(taught: Path, train_index: Path, tmp_path: Path) -> None:
    preference_command(arguments(tmp_path / "run", train_index, epochs=1))
    preference_command(arguments(tmp_path / "run", train_index, epochs=2))
    ours, theirs = weights(tmp_path / "run"), weights(taught)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name in ("compute/forward_tokens", "compute/backward_tokens"):
        assert read_metrics(tmp_path / "run")[-1][name] == read_metrics(taught)[-1][name]


@pytest.mark.parametrize("loss", ["DPO", "TDPO1"])
def test_the_other_losses_train_too(loss: str, train_index: Path, tmp_path: Path) -> None:
    settings = {"model.preference_loss": f"medagent.training.preference.losses.{loss}"}
    run = preference_command(arguments(tmp_path / "run", train_index, epochs=1, **settings))
    (row,) = read_metrics(run)
    assert 0 < row["preference/loss"] < 1
    assert ("preference/chosen_kl" in row) == (loss == "TDPO1")


def test_too_few_pairs_are_refused_with_their_reasons(train_index: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.pairs: found \d+ .*left out: .*\), wanted 64"):
        preference_command(arguments(tmp_path / "run", train_index, questions=4, **{"data.batch_size": 64}))


@pytest.mark.long
def test_the_base_learns_to_search_from_its_own_rollouts(train_index: Path, index_folder: Path, tmp_path: Path) -> None:
    index = f"--data.retriever.init_args.index={train_index}"
    run = preference_command(["--config", str(CONFIG), f"--trainer.default_root_dir={tmp_path / 'run'}", index])
    questions = StarterBenchmark("validation", limit_per_kind=50).questions()

    def right(folder: Path) -> float:
        return summarize(run_benchmark(load_agent(folder, index=str(index_folder)), questions)).overall.accuracy

    assert right(run / "agent") > right(Path(model_path(STARTER))) + 0.4
