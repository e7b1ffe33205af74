"""The trainer's numbers beside each sampled token, as they are recorded for `medagent view`."""

from __future__ import annotations

import gzip
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest
import torch

from medagent.evaluation.rollout_files import read_lines, rollout_from
from medagent.models.base_models import STARTER
from medagent.models.causal_lm import load_causal_lm
from medagent.training.adapters import CRITIC, POLICY
from medagent.training.advantages import GAE
from medagent.training.callbacks import ClippingBiasCorrection, RolloutRecords, TurnLevelSampling
from medagent.training.callbacks.records import record, token_texts
from medagent.training.experience import rollout_name
from medagent.training.module import StepCallback
from medagent.training.objectives import ClippedSurrogate
from tests.training.support import make_data, make_module, perturb, quiet_trainer

VALUE = "shared_base.value_head."


class WeightsOfReads(StepCallback):
    """Keeps the weights by which each rollout was read the last time, and those of the very first pass."""

    def __init__(self) -> None:
        self.last: dict[str, dict[str, torch.Tensor]] = {}
        self.first: dict[str, torch.Tensor] = {}

    def on_policy_loss(self, module, terms) -> None:
        now = {name: each.detach().double() for name, each in module.named_parameters() if each.requires_grad}
        self.first = self.first or now
        self.last |= dict.fromkeys(terms.batch.names, now)


def in_double(weights: dict[str, torch.Tensor] | None, adapter: str):
    """The starter in float64, with an adapter of scale 2 added to it."""
    model = load_causal_lm(STARTER)[0].double()
    held = model.state_dict()
    for name, up in (weights or {}).items():
        if f".lora_B.{adapter}." in name:
            down = weights[name.replace(".lora_B.", ".lora_A.")]
            held[name.split("base_model.model.")[1].split(".lora_B")[0] + ".weight"] += 2 * up @ down
    return model


@torch.no_grad()
def states_of(model, rollout) -> torch.Tensor:
    """[T, H] the state before each token from the second on."""
    return model.model(torch.tensor([rollout.token_ids])).last_hidden_state[0, :-1]


@torch.no_grad()
def logprobs_of(model, rollout) -> torch.Tensor:
    """[T, V] log-probs before each token from the second on."""
    return torch.log_softmax(model.lm_head(states_of(model, rollout)), dim=-1)


def turn_advantages(rows: list[dict], lam: float) -> list[list[float]]:
    """GAE over turns, white over all sampled tokens, from what the records hold of values and rewards."""
    found, drawn = [], []
    for row in rows:
        running, after, advantages = 0.0, 0.0, []
        for at, turn in reversed(list(enumerate(row["turns"]))):
            value = turn["numbers"]["value"][0]
            earned = turn["reward"] + (row["reward"] if at + 1 == len(row["turns"]) else 0)
            running = earned + after - value + lam * running
            after = value
            advantages.insert(0, running)
            drawn += [running] * turn["tokens"]
        found.append(advantages)
    return [[(each - fmean(drawn)) / pstdev(drawn) for each in advantages] for advantages in found]


def fitted(retriever, tmp_path: Path, records: RolloutRecords, *callbacks, epochs: int = 1, **settings):
    module, data = make_module(policy_lr=0.02), make_data(retriever, **settings)
    quiet_trainer(tmp_path, epochs=epochs, callbacks=[records, *callbacks]).fit(module, data)
    return data


def rows_of(run: Path, iteration: int = 0) -> list[dict]:
    place = run / "rollouts" / f"iteration_{iteration:04d}.jsonl.gz"
    return list(read_lines(place, lambda row, _: row, wanted="a rollout"))


def test_ten_random_tokens_are_recomputed_in_double_precision(retriever, tmp_path: Path) -> None:
    """ST-PPO with KL and a critic: from the records, and from the weights by which the trainer read each rollout."""
    weights, records = WeightsOfReads(), RolloutRecords()
    module = make_module(policy_lr=0.02, kl_coef=0.1, policy_loss=ClippedSurrogate(0.05, 0.05))
    perturb(module)
    data = make_data(retriever, num_epochs=2, advantage=GAE(lam=0.9, level="turn"))
    correction = ClippingBiasCorrection("relative", applied_to="step", space="logits")
    quiet_trainer(tmp_path, callbacks=[records, weights, TurnLevelSampling(), correction]).fit(module, data)
    rows, draw = rows_of(tmp_path), random.Random(1)
    assert len(rows) == len(data.rollouts) == 16
    advantages, sides = turn_advantages(rows, lam=0.9), list[int]()
    reference, sampler, critic = (
        in_double(at, name) for at, name in ((None, ""), (weights.first, POLICY), (weights.first, CRITIC))
    )
    models = {id(each): in_double(each, POLICY) for each in {id(w): w for w in weights.last.values()}.values()}
    for _ in range(10):
        at = draw.randrange(len(rows))
        rollout, row = data.rollouts[at], rows[at]
        turn = draw.randrange(len(rollout.turns))
        numbers, before = row["turns"][turn]["numbers"], rollout.turns[:turn]
        first = len(rollout.prompt_ids) + sum(len(t.token_ids) + len(t.observation_ids) for t in before)
        token = draw.randrange(row["turns"][turn]["tokens"])
        place, shown = first + token - 1, {name: each[token] for name, each in numbers.items()}
        id_ = rollout.token_ids[place + 1]
        then, now, base = (
            logprobs_of(model, rollout)[place]
            for model in (sampler, models[id(weights.last[rollout_name(rollout)])], reference)
        )
        gaps = [new - old for new, old in zip(numbers["logprob"], numbers["old_logprob"], strict=True)]
        ratio, advantage = math.exp(fmean(gaps)), advantages[at][turn]
        behind = base[id_] - now[id_]
        value = (
            states_of(critic, rollout)[first - 1] @ weights.first[VALUE + "weight"][0] + weights.first[VALUE + "bias"]
        )
        side = 1 if advantage > 0 and ratio > 1.05 else -1 if advantage < 0 and ratio < 0.95 else 0
        wanted = {
            "counts": 1.0,
            "rollout_logprob": float(then[id_]),
            "old_logprob": float(then[id_]),
            "logprob": float(now[id_]),
            "ratio": ratio,
            "clipped": side,
            "advantage": advantage,
            "entropy": float(-(now.exp() * now).sum()),
            "weight": 1 / 8 / rollout.num_action_tokens,
            "value": float(value) if token == 0 else 0.0,
            "kl": float(torch.expm1(behind) - behind),
        }
        assert shown == pytest.approx(wanted, rel=2e-4, abs=2e-5)
        sides.append(side)
        assert 0 < row["clip_bias_scale"] <= 1
    assert len(set(sides)) > 1, "some of them are clipped"


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


def test_numbers_stand_beside_the_tokens_that_were_sampled_and_not_those_that_were_given(retriever, tmp_path) -> None:
    (first, *_) = fitted(retriever, tmp_path, RolloutRecords()).rollouts
    turns = [replace(first.turns[0], forced_prefix=2), *first.turns[1:]]
    places = torch.arange(len(first.token_ids), dtype=torch.float32)
    places[len(first.prompt_ids) + 3] = torch.inf
    told = record(replace(first, turns=turns), {"value": places}, make_module().tokenizer)["turns"][0]
    begin, count = len(first.prompt_ids) + 2, len(first.turns[0].token_ids) - 2
    assert told["numbers"]["value"] == [begin, None, *range(begin + 2, begin + count)], "JSON has no infinity"
    assert len(told["token_texts"]) == count


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
