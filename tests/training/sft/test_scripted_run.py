"""`medagent sft` on dialogues by rule: it teaches, says how it goes on held-out questions, and can be resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medagent.agent_folder import load_agent
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.evaluation.metrics import summarize
from medagent.evaluation.rollout_files import write_records
from medagent.evaluation.run import run_benchmark
from medagent.evaluation.viewer.recorded import read_metrics
from medagent.training.command import sft_command
from tests.support import CONFIGS
from tests.training.sft.support import dialogue
from tests.training.support import configured, numbers

CONFIG = CONFIGS / "sft" / "scripted.yaml"
RULES = {
    "protocol": {
        "class_path": "medagent.protocol.TagProtocol",
        "init_args": {"instructions": "", "options_style": "letter_last", "chat": False},
    },
    "limits": {"max_turns": 4, "max_turn_tokens": 64, "max_observation_tokens": 160, "max_total_tokens": 640},
    "top_k": 2,
}


def scripted(limit: int, number: int | None = None, **init_args: object) -> dict[str, object]:
    benchmark = {
        "class_path": "medagent.evaluation.benchmarks.StarterBenchmark",
        "init_args": {"split": "train", "limit_per_kind": limit},
    }
    return {
        "number": number,
        "demonstrations": {
            "class_path": "medagent.training.sft.ScriptedDemonstrations",
            "init_args": {"benchmark": benchmark, **init_args},
        },
    }


def arguments(run: Path, index: Path, *parts: dict[str, object], epochs: int, **overrides: object) -> list[str]:
    mix = {"class_path": "medagent.training.sft.MixedDemonstrations", "init_args": {"parts": list(parts)}}
    settings = {
        "trainer.accelerator": "cpu",
        "model.base_model": "starter",
        "model.dtype": "float32",
        "model.policy_lr": 1e-3,
        "model.execution.max_tokens": 0,
        "data.batch_size": 16,
        "data.demonstrations": json.dumps(mix),
        "data.agent": json.dumps(RULES),
    }
    return configured(CONFIG, run, index, epochs, **{**settings, **overrides})


def given(folder: Path, *answers: str) -> dict[str, object]:
    path = folder / "given.jsonl"
    write_records(path, [dialogue(f"Number {n}?", answer=answer, gold="yes") for n, answer in enumerate(answers)])
    init_args = {"path": str(path)}
    return {"demonstrations": {"class_path": "medagent.training.sft.GivenDialogues", "init_args": init_args}}


def test_counts_of_parts_reasons_and_held_out_are_printed_and_logged(train_index: Path, tmp_path: Path, capsys) -> None:
    own = given(tmp_path, "<answer>yes</answer>", "<answer>no</answer>")
    parts = [scripted(12, 20, abstentions=0.0), own]
    run = sft_command(
        arguments(tmp_path / "run", train_index, *parts, epochs=2, **{"data.held_out": 3, "data.batch_size": 6})
    )
    said = capsys.readouterr().out
    assert "questions give a dialogue" in said
    (row, last) = read_metrics(run)
    held = row["sft/held_out"]
    assert held == 3
    assert row["sft/part_1"] == 20
    assert row["sft/part_2"] == 1
    assert row["sft/demonstrations"] == 18
    assert row["sft/left_out_wrong"] == 1
    assert "18 demonstrations, 3 held out. Left out: " in said
    assert "1 answer wrong" in said
    assert last["sft/held_out_loss"] < row["sft/held_out_loss"]
    assert 0 <= last["sft/held_out_turns"] <= 1
    told = f"held-out loss {last['sft/held_out_loss']:.4f}  turns right {last['sft/held_out_turns']:4.0%}"
    assert told in said


@pytest.mark.long
def test_a_run_that_was_stopped_ends_with_the_same_numbers(train_index: Path, tmp_path: Path) -> None:
    few = {"data.held_out": 0.1}
    whole = sft_command(arguments(tmp_path / "whole", train_index, scripted(12), epochs=2, **few))
    sft_command(arguments(tmp_path / "parts", train_index, scripted(12), epochs=1, **few))
    parts = sft_command(arguments(tmp_path / "parts", train_index, scripted(12), epochs=2, **few))
    assert numbers(parts) == numbers(whole)
    folder = "demonstrations/part-1/dialogues.jsonl"
    assert (parts / folder).read_bytes() == (whole / folder).read_bytes()


@pytest.mark.long
def test_dialogues_by_rule_teach_to_search_and_to_search_again(
    train_index: Path, index_folder: Path, tmp_path: Path
) -> None:
    taught = scripted(150, thoughts=False)  # so small a base would have to learn English for them
    run = sft_command(arguments(tmp_path / "run", train_index, taught, epochs=4, **{"data.batch_size": 8}))
    agent = load_agent(run / "agent", index=str(index_folder))
    rollouts = run_benchmark(agent, StarterBenchmark("validation", limit_per_kind=30).questions())
    two_hop = [rollout for rollout in rollouts if rollout.question.kind == "two_hop"]
    assert summarize(rollouts).overall.accuracy > 0.5, "greedily the base, which never searches, is right by chance"
    assert sum(rollout.num_searches >= 2 for rollout in two_hop) > 0.6 * len(two_hop)
    losses = [row["sft/held_out_loss"] for row in read_metrics(run)]
    assert losses[-1] < losses[0]
    assert read_metrics(run)[-1]["sft/held_out_turns"] > 0.4
