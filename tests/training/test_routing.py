"""Routing replay: log-probs come near the sampler's in every layout of a pass, and gradients are right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from medagent.errors import ConfigError, PolicyError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.routing import no_record
from medagent.routing_record import RoutingRecord
from medagent.training.batching import pack_rows
from medagent.training.compatibility import check_engine
from medagent.training.engines import Engine, InProcessEngine, ModuleWeights, VllmEngine
from medagent.training.execution import Execution
from medagent.training.experience import Experience, tensorize
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.prefixes import PrefixTree
from medagent.training.rollouts.stale_rollouts import read_rollouts, write_rollouts
from medagent.types import Rollout
from tests.mixtures import FAMILIES, dialogues, make_mixture
from tests.training.mixtures import made, prepared
from tests.training.support import perturb

QUESTIONS = StarterBenchmark("train", limit_per_kind=2).questions()
WAYS = {
    "padded": Execution(),
    "packed": Execution(packed=True),
    "shared prefixes": Execution(shared_prefixes=True),
    "checkpointed": Execution(gradient_checkpointing=True),
    "checkpointed and shared": Execution(gradient_checkpointing=True, shared_prefixes=True),
}


@pytest.fixture(scope="module", params=FAMILIES)
def base(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    make_mixture(folder, request.param)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    make_mixture(folder, "qwen3_moe", experts=8, layers=3)
    return folder


@pytest.fixture(scope="module")
def sampled(small: Path) -> list[Rollout]:
    """Rollouts with the routing of another policy, so that the trainer would choose otherwise."""
    module = made(small)
    perturb(module, scale=0.3)
    return dialogues(InProcessEngine().sync_weights(ModuleWeights(module), version=0), QUESTIONS, tokens=6)


@pytest.mark.long
def test_replay_brings_log_probs_five_times_nearer_in_bfloat16(base: Path) -> None:
    module = made(base, dtype="bfloat16")
    rollouts = dialogues(InProcessEngine().sync_weights(ModuleWeights(module), version=0), QUESTIONS * 2)
    metrics = prepared(module, rollouts).metrics
    print(base.name, metrics)
    assert metrics["routing/differs"] > 0.005, "rounding sends tokens to other experts"
    assert metrics["routing/logprob_gap_live"] > 5 * metrics["routing/logprob_gap"]


@pytest.mark.parametrize("way", WAYS)
def test_the_policys_pass_chooses_what_the_sampler_chose(way: str, small: Path, sampled) -> None:
    module = made(small, execution=WAYS[way])
    batch = prepared(module, sampled)
    assert batch.metrics["routing/differs"] > 0.1, "else nothing is shown"
    routing = module.shared_base.routing(batch.experts_BTLK, records=True)
    assert routing is not None
    inputs = (batch.token_ids_BT, batch.attention_BT, batch.mask_BT)
    module.shared_base.policy_scores(*inputs, temperature=1.0, routing=routing)
    for row, rollout in enumerate(sampled):
        read = len(rollout.token_ids) - 1
        record = rollout.routing
        assert record is not None
        assert np.array_equal(routing.chosen_BTLK[row, :read].numpy(), record.experts)
        assert bool((routing.chosen_BTLK[row, read:] == no_record(torch.uint8)).all())


def gradients(module: AgentModule, batch: Experience) -> list[torch.Tensor]:
    """Of the log-probs, weighed differently each, by passes over parts as a training step makes them."""
    weights_BT = torch.linspace(-1, 1, batch.mask_BT.numel()).view_as(batch.mask_BT)
    found = torch.zeros(batch.mask_BT.shape)
    routers = [router.weight.requires_grad_() for router in module.shared_base.routers.modules]
    for rows in pack_rows(module.execution, batch.sharing_keys, batch.attention_BT):
        part = batch.rows(rows)
        routing = module.shared_base.routing(part.experts_BTLK)
        scores = module.shared_base.policy_scores(
            part.token_ids_BT, part.attention_BT, part.mask_BT, temperature=1.0, routing=routing
        )
        width = part.token_ids_BT.shape[1]
        (weights_BT[rows, :width] * scores.logprobs_BT).sum().backward()
        found[rows, :width] = scores.logprobs_BT.detach()
    assert module.shared_base.routers.now is None
    return [found, *(parameter.grad for parameter in (*module.shared_base.policy_parameters(), *routers))]


@pytest.mark.parametrize("limit", [0, 300])
@pytest.mark.parametrize("way", WAYS)
def test_log_probs_and_gradients_are_those_of_rows_read_alone(way: str, limit: int, small: Path, sampled) -> None:
    alone = made(small, execution=Execution(max_tokens=1))
    batch = prepared(alone, sampled)
    module = made(small, execution=replace(WAYS[way], max_tokens=limit))
    for each in (alone, module):
        perturb(each, scale=0.1)
    for wanted, found in zip(gradients(alone, batch), gradients(module, batch), strict=True):
        scale = float(wanted.abs().max())
        assert scale > 0
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=2e-5 * max(1.0, scale))
    live = made(small)
    perturb(live, scale=0.1)
    other = gradients(live, replace(batch, experts_BTLK=None))[0]
    assert float((other - gradients(alone, batch)[0]).abs().max()) > 0.05, "without replay it is another model"


def test_rows_share_tokens_as_long_as_their_records_agree(small: Path, sampled) -> None:
    batch = tensorize(sampled[:2], pad_id=0)
    assert torch.equal(batch.token_ids_BT[0, :20], batch.token_ids_BT[1, :20])
    tree = PrefixTree.of(batch.token_ids_BT, batch.attention_BT, batch.sharing_keys)
    whole = tree.shared[1]
    assert whole >= 20
    assert batch.experts_BTLK is not None
    batch.experts_BTLK[1, 7, 1, 0] = (batch.experts_BTLK[1, 7, 1, 0] + 1) % 8
    tree = PrefixTree.of(batch.token_ids_BT, batch.attention_BT, batch.sharing_keys)
    assert tree.shared[1] == 7
    assert torch.equal(tree.tokens_N, batch.token_ids_BT.flatten()[tree.places_N])


def with_records(rollout: Rollout, change) -> Rollout:
    (first, second) = rollout.turns
    whole = change(rollout.routing.experts)
    middle = len(first.routing)
    parts = RoutingRecord.of(whole[:middle].copy()), RoutingRecord.of(whole[middle:].copy())
    turns = (replace(first, routing=parts[0]), replace(second, routing=parts[1]))
    return replace(rollout, turns=turns)


@pytest.mark.parametrize("by", [1, -1])
def test_a_record_shifted_by_one_token_is_caught(by: int, small: Path) -> None:
    module = made(small)
    rollouts = dialogues(InProcessEngine().sync_weights(ModuleWeights(module), version=0), QUESTIONS, tokens=6)
    assert prepared(module, rollouts).metrics["routing/differs"] < 0.01
    shifted = [with_records(rollout, lambda experts: np.roll(experts, by, axis=0)) for rollout in rollouts]
    with pytest.raises(PolicyError, match=f"one token {'earlier' if by > 0 else 'later'}"):
        prepared(module, shifted)


def test_a_record_that_lacks_a_token_or_all_is_caught(small: Path, sampled) -> None:
    short = [with_records(rollout, lambda experts: experts[1:]) for rollout in sampled]
    with pytest.raises(PolicyError, match=r"found experts of \d+ tokens, wanted those of the \d+ before"):
        prepared(made(small), short)
    none = [replace(rollout, turns=tuple(replace(turn, routing=None) for turn in rollout.turns)) for rollout in sampled]
    with pytest.raises(PolicyError, match="found rollouts without the sampler's experts"):
        prepared(made(small), none)
    assert prepared(made(small, replay="none"), sampled).experts_BTLK is None


@pytest.mark.parametrize("importance", ["behaviour", "decoupled"])
def test_r2_replays_what_the_trainer_chose_before_the_update(importance: str, small: Path, sampled) -> None:
    module = made(small, replay="r2", execution=Execution(shared_prefixes=True, max_tokens=200))
    batch = prepared(module, sampled, importance)
    assert batch.experts_BTLK is not None
    sampler = tensorize(sampled, pad_id=module.pad_id).experts_BTLK
    inputs = (batch.token_ids_BT, batch.attention_BT, batch.mask_BT)
    own = module.shared_base.routing(records=True)
    live = module.shared_base.policy_scores(*inputs, temperature=1.0, routing=own)
    assert torch.equal(batch.experts_BTLK, own.chosen_BTLK)
    assert not torch.equal(batch.experts_BTLK, sampler), "the sampler's policy was another"
    if importance == "decoupled":
        torch.testing.assert_close(batch.old_logprobs_BT, live.logprobs_BT, rtol=1e-4, atol=1e-4)
    perturb(module, scale=0.3)
    replayed = module.shared_base.routing(batch.experts_BTLK, records=True)
    module.shared_base.policy_scores(*inputs, temperature=1.0, routing=replayed)
    assert torch.equal(replayed.chosen_BTLK, batch.experts_BTLK), "the update moves weights and not the routing"


def test_waiting_rollouts_keep_their_records(sampled, tmp_path: Path) -> None:
    write_rollouts(tmp_path / "000001.rank0.jsonl", sampled)
    assert read_rollouts(tmp_path / "000001.rank0.jsonl") == sampled
    row = json.loads((tmp_path / "000001.rank0.jsonl").read_text().splitlines()[0])
    del row["turns"][0]["routing"]  # as versions before wrote it
    (tmp_path / "000002.rank0.jsonl").write_text(json.dumps(row) + "\n")
    assert read_rollouts(tmp_path / "000002.rank0.jsonl")[0].turns[0].routing is None


@pytest.mark.parametrize("replay", ["r2", "r3"])
def test_a_dense_base_is_refused(replay: str) -> None:
    with pytest.raises(ConfigError, match=f"model.routing_replay {replay}: found .*, wanted a mixture of experts"):
        AgentModule(policy_lora=LoraSettings(4, 8), critic_lora=None, routing_replay=replay)


def test_r3_needs_an_engine_that_records() -> None:
    class OwnEngine(Engine):
        def sync_weights(self, weights, *, version): ...

    own = OwnEngine()
    with pytest.raises(ConfigError, match="OwnEngine. does not tell which experts it chose"):
        check_engine(own, routing_replay="r3", quantise="none", overlap=False)
    for replay, engine in (("r2", own), ("none", own), ("r3", InProcessEngine()), ("r3", VllmEngine())):
        check_engine(engine, routing_replay=replay, quantise="none", overlap=False)
