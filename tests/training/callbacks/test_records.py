"""The trainer's numbers beside each sampled token, as they are recorded for `medagent view`."""

from __future__ import annotations

import gzip
import json
import math
import random
from pathlib import Path

import pytest
import torch

from medagent.evaluation.rollout_files import read_lines, rollout_from
from medagent.training.callbacks import ClippingBiasCorrection, RolloutRecords, TurnLevelSampling
from medagent.training.callbacks.records import token_texts
from medagent.training.experience import rollout_name
from medagent.training.module import StepCallback
from tests.training.support import make_data, make_module, quiet_trainer


class LastPass(StepCallback):
    """Keeps what the loss saw of each rollout the last time, in double precision."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, torch.Tensor]] = {}

    def on_policy_loss(self, module, terms) -> None:
        batch = terms.batch
        for row, name in enumerate(batch.names):
            gap = (terms.logprobs_BT[row].detach().double() - batch.old_logprobs_BT[row].double()) * batch.mask_BT[row]
            self.rows[name] = {
                "gap": gap,
                "segments": batch.ratio_segments_BT[row],
                "advantage": batch.advantages_BT[row].double(),
                "value": batch.values_BT[row].double(),
                "entropy": terms.entropy_BT[row].detach().double(),
            }


def fitted(retriever, tmp_path: Path, records: RolloutRecords, *callbacks, epochs: int = 1, **settings):
    module, data = make_module(policy_lr=0.02), make_data(retriever, **settings)
    quiet_trainer(tmp_path, epochs=epochs, callbacks=[records, *callbacks]).fit(module, data)
    return data


def rows_of(run: Path, iteration: int = 0) -> list[dict]:
    place = run / "rollouts" / f"iteration_{iteration:04d}.jsonl.gz"
    return list(read_lines(place, lambda row, _: row, wanted="a rollout"))


def test_ten_random_tokens_equal_what_the_trainer_computed(retriever, tmp_path: Path) -> None:
    last = LastPass()
    correction = ClippingBiasCorrection("relative", applied_to="step", space="logits")
    data = fitted(retriever, tmp_path, RolloutRecords(), last, TurnLevelSampling(), correction)
    rows, draw = rows_of(tmp_path), random.Random(0)
    assert len(rows) == len(data.rollouts) == 16
    moved = 0
    for _ in range(10):
        at = draw.randrange(len(rows))
        rollout, row = data.rollouts[at], rows[at]
        turn = draw.randrange(len(rollout.turns))
        numbers, sampled = row["turns"][turn]["numbers"], len(rollout.turns[turn].token_ids)
        token = draw.randrange(sampled)
        seen, before = last.rows[rollout_name(rollout)], rollout.turns[:turn]
        place = len(rollout.prompt_ids) + sum(len(t.token_ids) + len(t.observation_ids) for t in before) + token
        weight = math.exp(float(seen["gap"][seen["segments"] == seen["segments"][place]].mean()))
        assert numbers["ratio"][token] == pytest.approx(weight, rel=1e-6)
        assert numbers["logprob"][token] - numbers["old_logprob"][token] == pytest.approx(
            float(seen["gap"][place]), abs=1e-6
        )
        for name in ("advantage", "value", "entropy"):
            assert numbers[name][token] == pytest.approx(float(seen[name][place]), rel=1e-7), name
        assert numbers["rollout_logprob"][token] == pytest.approx(rollout.turns[turn].logprobs[token], rel=1e-6)
        side = 0 if 0.8 <= weight <= 1.2 else math.copysign(1, weight - 1)
        assert numbers["clipped"][token] in (0, side)
        moved += abs(weight - 1) > 1e-4
        assert 0 < row["clip_bias_scale"] <= 1
    assert moved >= 5, "the update has moved the weights that are compared"


def test_records_hold_the_rollouts_and_the_texts_of_their_tokens(retriever, tmp_path: Path) -> None:
    fitted(retriever, tmp_path, RolloutRecords(every=2, limit=5), epochs=2)
    assert [path.name for path in sorted((tmp_path / "rollouts").iterdir())] == [
        "iteration_0000.jsonl.gz",
        "iteration_0000.summary.json",
    ]
    rows = rows_of(tmp_path)
    assert len(rows) == 5
    for row in rows:
        assert rollout_from(row).question.id == row["question_id"]
        for turn in row["turns"]:
            assert len(turn["token_texts"]) == turn["tokens"] == len(turn["numbers"]["ratio"])
            assert turn["given"] + "".join(turn["token_texts"]) == turn["text"]


def test_a_resumed_run_writes_the_same_bytes(retriever, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        fitted(retriever, tmp_path / folder, RolloutRecords())
    one, two = ((tmp_path / each / "rollouts" / "iteration_0000.jsonl.gz").read_bytes() for each in ("one", "two"))
    assert one == two


def test_a_character_of_several_tokens_stands_at_its_last_one(tokenizer) -> None:
    def texts(said: str) -> list[str]:
        return token_texts(tokenizer, tokenizer.encode(said))

    assert texts("5 \u00b5g \U0001f9b6") == ["5", " ", "", "\u00b5", "g", " ", "", "", "", "\U0001f9b6"]
    assert token_texts(tokenizer, tokenizer.encode("\U0001f9b6")[:3]) == ["", "", "\ufffd"], "it is cut inside"


def test_what_is_recorded_is_compressed_json_lines(retriever, tmp_path: Path) -> None:
    fitted(retriever, tmp_path, RolloutRecords(limit=2))
    text = gzip.decompress((tmp_path / "rollouts" / "iteration_0000.jsonl.gz").read_bytes()).decode()
    assert [json.loads(line)["sample"] for line in text.splitlines()] == [0, 0]
