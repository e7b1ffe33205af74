"""`medagent sft` teaches the protocol by examples, and `medagent export` makes an ordinary model of an agent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from medagent.agent import Job
from medagent.agent_folder import load_agent
from medagent.agent_spec import read_spec
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.evaluation.metrics import summarize
from medagent.evaluation.rollout_files import rollout_from, write_records
from medagent.evaluation.run import run_benchmark
from medagent.export import export_merged
from medagent.models.base_models import STARTER, model_path
from medagent.training.command import sft_command
from medagent.training.sft.data import LeftOutReason, encoded
from tests.support import CONFIGS
from tests.training.support import AGENT, configured

CONFIG = CONFIGS / "sft" / "own_model.yaml"
RULES = {
    "class_path": "medagent.protocol.TagProtocol",
    "init_args": {"instructions": "", "options_style": "letter_last", "chat": False},
}
LIMITS = {"max_turns": 4, "max_turn_tokens": 48, "max_observation_tokens": 160, "max_total_tokens": 512}


def arguments(run: Path, index: Path, demonstrations: object, *, epochs: int = 3, **overrides: object) -> list[str]:
    settings = {
        "model.base_model": "starter",
        "model.dtype": "float32",
        "model.policy_lr": 1e-3,
        "data.num_micro_batches": 2,
        "data.batch_size": 16,
        "data.demonstrations": json.dumps(demonstrations),
        "data.agent": json.dumps({"protocol": RULES, "limits": LIMITS, "top_k": 2}),
    }
    return configured(CONFIG, run, index, epochs, **{**settings, **overrides})


def sampled(samples: int = 4, limit: int = 60) -> dict[str, object]:
    benchmark = {
        "class_path": "medagent.evaluation.benchmarks.StarterBenchmark",
        "init_args": {"split": "train", "limit_per_kind": limit},
    }
    settings = {"benchmark": benchmark, "agent": "starter", "samples": samples}
    return {"class_path": "medagent.training.sft.RejectionSampled", "init_args": settings}


@pytest.fixture(scope="module")
def taught(train_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sft_command(arguments(tmp_path_factory.mktemp("sft") / "run", train_index, sampled()))


@pytest.mark.long
def test_fine_tuning_on_own_successes_teaches_to_search(taught: Path, index_folder: Path) -> None:
    questions = StarterBenchmark("validation", limit_per_kind=30).questions()
    results = {}
    for name, folder in {"before": Path(model_path(STARTER)), "after": taught / "agent"}.items():
        agent = load_agent(folder, index=str(index_folder))
        rollouts = run_benchmark(agent, questions)
        results[name] = (
            summarize(rollouts).overall.accuracy,
            sum(rollout.num_searches for rollout in rollouts) / len(rollouts),
        )
    assert results["before"][1] == 0, "greedily the base never searches"
    assert results["after"][1] > 1
    assert results["after"][0] > results["before"][0] + 0.25, results
    kept = (taught / "demonstrations" / "predictions.jsonl").read_text().splitlines()
    assert len(kept) == 4 * 120
    assert "RejectionSampled" in read_spec(taught / "agent").training["demonstrations"]


@pytest.fixture(scope="module")
def ended(train_index: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """The command of a small run that has ended, and its agent."""
    given = arguments(tmp_path_factory.mktemp("sft") / "run", train_index, sampled(limit=20), epochs=1)
    return given, sft_command(given) / "agent"


@pytest.mark.slow
def test_a_second_start_samples_and_trains_nothing_again(ended, monkeypatch, capsys) -> None:
    given, agent = ended
    monkeypatch.setattr("medagent.agent.Agent.stream", None)
    before = (agent / "agent.json").read_bytes()
    sft_command(given)
    assert "Going on from" in capsys.readouterr().out
    assert (agent / "agent.json").read_bytes() == before


def test_texts_come_back_as_the_tokens_that_were_sampled(rollouts, tokenizer, tmp_path: Path) -> None:
    whole = [rollout for rollout in rollouts if rollout.stop_reason == "answered" and rollout.num_searches]
    assert whole
    write_records(tmp_path / "kept.jsonl", whole)
    told = [rollout_from(json.loads(line)) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    again, left_out = encoded(told, AGENT, tokenizer)
    assert not left_out
    for one, other in zip(again, whole, strict=True):
        assert tokenizer.decode(one.token_ids) == tokenizer.decode(other.token_ids)
        # A sampled text may be cut into tokens in more than one way; most are cut as the tokenizer does.
    same = [one.token_ids == other.token_ids for one, other in zip(again, whole, strict=True)]
    assert sum(same) >= 0.8 * len(same)
    assert all(not any(turn.forced_prefix for turn in one.turns) for one in again), "every turn is imitated whole"
    tight = replace(AGENT, limits=replace(AGENT.limits, max_total_tokens=60))
    assert encoded(told, tight, tokenizer) == ([], {LeftOutReason.MAX_TOTAL_TOKENS: len(told)})


def test_too_little_is_refused_before_training(train_index: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"question": "x", "turns": [{"text": "<answer>y</answer>"}]}) + "\n")
    given = {
        "class_path": "medagent.training.sft.GivenDialogues",
        "init_args": {"path": str(path), "min_searches": 0},
    }
    with pytest.raises(ConfigError, match=r"demonstrations: found 1 \(read: 1; left out: none\), wanted 16"):
        sft_command(arguments(tmp_path / "run", train_index, given))
    cites = {"question": "x", "turns": [{"text": "<answer>y [1]</answer>"}]}
    path.write_text((json.dumps(cites) + "\n") * 3)
    with pytest.raises(ConfigError, match="found 0 .read: 3; left out: 3 cite a passage"):
        sft_command(arguments(tmp_path / "cites", train_index, given))
    with pytest.raises(ConfigError, match="no chat template"):
        sft_command(arguments(tmp_path / "chat", train_index, given, **{"data.agent.protocol.init_args.chat": "true"}))


@pytest.mark.slow
def test_an_export_is_an_ordinary_model(ended, index_folder: Path, tmp_path: Path) -> None:
    out, (_, agent) = tmp_path / "merged", ended
    export_merged(agent, out)
    question = StarterBenchmark("test", limit_per_kind=1).questions()[0]
    agents = [load_agent(folder, index=str(index_folder)) for folder in (agent, out)]
    (own,), (again,) = (agent.run_all([Job(question, temperature=0.0)]) for agent in agents)
    assert own.token_ids == again.token_ids
    plain = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    ids = torch.tensor([own.token_ids])
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, agents[0].policy.model(ids).logits, rtol=1e-4, atol=1e-4)
    card = (out / "README.md").read_text()
    for wanted_line in ("not medical advice", "RejectionSampled", "sft/loss", "at most 4 turns"):
        assert wanted_line in card
