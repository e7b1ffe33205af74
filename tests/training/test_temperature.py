"""A run at temperature 0.7: sampler, proximal policy, reference and update speak of one distribution."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
import torch

from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.policies.huggingface import HFPolicy
from medagent.policy import SampledTurn
from medagent.training.callbacks import ClippingBiasCorrection, HeldOutEvaluation
from medagent.training.engines import InProcessEngine, PolicyWeights
from medagent.training.experience import Experience
from medagent.training.module import StepCallback
from medagent.training.prepare import OffPolicy
from medagent.training.starter.lessons import STARTER_PROTOCOL
from tests.training.support import make_data, make_module, quiet_trainer

TEMPERATURE = 0.7
ITERATIONS = 2


class WatchedEngine(InProcessEngine):
    """Keeps which weights each dialogue was opened with, and at which temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[int] = []
        self.opened: list[tuple[int, float]] = []

    def sync_weights(self, weights: PolicyWeights, *, version: int) -> HFPolicy:
        policy = super().sync_weights(weights, version=version)
        self.synced.append(version)

        def opening(**how):
            self.opened.append((version, how["temperature"]))
            return type(policy).open(policy, **how)

        policy.open = opening  # type: ignore[method-assign]
        return policy


@dataclass
class Seen:
    """A micro-batch, and the log-probs that its update saw; of the first step also those of the plain models."""

    iteration: int
    step: int
    batch: Experience
    update_BT: torch.Tensor
    sampler_BT: torch.Tensor
    base_BT: torch.Tensor


@torch.no_grad()
def plain_logprobs(model, batch: Experience, temperature: float) -> torch.Tensor:
    """[B, T] by transformers alone: the logits of the whole text, divided and normalised; 0 off the actions."""
    logits_BTV = model(input_ids=batch.token_ids_BT).logits.double() / temperature
    logprobs_BTV = (logits_BTV - logits_BTV.logsumexp(-1, keepdim=True))[:, :-1]
    chosen_BT = logprobs_BTV.gather(2, batch.token_ids_BT[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros(len(chosen_BT), 1), chosen_BT], dim=1) * batch.mask_BT


class Watch(StepCallback):
    def __init__(self, engine: WatchedEngine, base) -> None:
        self.engine, self.base = engine, base
        self.seen: list[Seen] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.coming, self.at = batch.split(), batch_idx

    def on_policy_loss(self, module, terms) -> None:
        policy, batch = self.engine._policy, self.coming.pop(0)
        assert policy is not None
        self.seen.append(
            Seen(
                module.trainer.current_epoch,
                self.at,
                batch,
                terms.logprobs_BT.detach().clone(),
                plain_logprobs(policy.model, batch, TEMPERATURE),
                plain_logprobs(self.base, batch, TEMPERATURE),
            )
        )


@pytest.fixture(scope="module")
def run(retriever, starter, tmp_path_factory):
    engine = WatchedEngine()
    module = make_module(temperature=TEMPERATURE, policy_lr=2e-2)
    data = make_data(
        retriever,
        engine=engine,
        num_questions=8,
        off_policy=OffPolicy(importance="decoupled"),
        num_minibatches=2,
        num_micro_batches=2,
    )
    watch = Watch(engine, starter[0])
    held_out = HeldOutEvaluation(StarterBenchmark("validation", limit_per_kind=1), every=1)
    trainer = quiet_trainer(tmp_path_factory.mktemp("warm"), epochs=ITERATIONS, callbacks=[watch, held_out])
    trainer.fit(module, datamodule=data)
    return engine, watch.seen


def largest(gap_BT: torch.Tensor) -> float:
    return float(gap_BT.abs().max())


def test_sampler_proximal_policy_and_first_update_agree(run) -> None:
    _, seen = run
    assert {each.iteration for each in seen} == set(range(ITERATIONS))
    for each in seen:
        batch, mask = each.batch, each.batch.mask_BT
        assert largest(batch.rollout_logprobs_BT - each.sampler_BT) < 1e-4, "the sampler reports what it drew from"
        assert largest(batch.old_logprobs_BT - each.sampler_BT) < 1e-4, "the proximal policy is the sampler's"
        assert largest(batch.reference_logprobs_BT - each.base_BT) < 1e-4, "the reference is the base, as warm"
        assert largest((batch.truncation_BT - 1.0) * mask) < 1e-3
        if each.step == 0:
            assert largest(each.update_BT - each.sampler_BT) < 1e-4, "the first step begins at ratio 1"
    moved = [largest(each.update_BT - each.sampler_BT) for each in seen if each.step]
    assert min(moved) > 1e-3, "later steps have moved"
    apart = [largest(each.batch.reference_logprobs_BT - each.sampler_BT) for each in seen if each.iteration]
    assert min(apart) > 1e-3, "the policy has left its base"


def test_training_samples_warm_and_held_out_questions_are_answered_greedily(run) -> None:
    """Iteration i samples with weights i; after it, the held-out questions see weights i + 1."""
    engine, _ = run
    assert engine.synced == [0, 1, 1, 2]
    held_out = len(StarterBenchmark("validation", limit_per_kind=1).questions())
    wanted = [*[(0, TEMPERATURE)] * 8, *[(1, 0.0)] * held_out, *[(1, TEMPERATURE)] * 8, *[(2, 0.0)] * held_out]
    assert engine.opened == wanted


def test_each_dialogue_of_a_batch_has_its_own_temperature(starter) -> None:
    """What is reported is of the distribution that was sampled; greedy turns are reported at temperature 1."""
    model, tokenizer = starter
    prompt = list(STARTER_PROTOCOL.encode_prompt(tokenizer, StarterBenchmark("train").questions()[0]))
    policy = HFPolicy(model, tokenizer)
    warmth = [0.0, 0.5, 1.0, 2.0, 0.0, 1.5]

    async def sampled() -> list[SampledTurn]:
        opened = [
            policy.open(seed=seed, temperature=each, blocks=STARTER_PROTOCOL.blocks) for seed, each in enumerate(warmth)
        ]
        for session in opened:
            session.append(list(prompt))
        turns = await asyncio.gather(*(session.sample(max_tokens=16) for session in opened))
        for session in opened:
            session.close()
        return turns

    for temperature, turn in zip(warmth, asyncio.run(sampled()), strict=True):
        ids = torch.tensor([[*prompt, *turn.token_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()
        wanted = (logits / (temperature or 1.0)).log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        assert largest(wanted - torch.tensor(turn.logprobs)) < 1e-4
        if temperature == 0:
            assert logits.argmax(-1).tolist() == list(turn.token_ids)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_corrections_norms_are_of_the_tempered_distribution(experience, tmp_path, temperature) -> None:
    """By the logits that were divided: autograd through softmax over them, a rollout at a time."""
    module = make_module(temperature=temperature)
    batch = experience.rows([0, 1])
    norms: list[tuple[float, float]] = []

    class Peek(ClippingBiasCorrection):
        def _norms(self, reduce):
            norms.append(super()._norms(reduce))
            return norms[-1]

    peek = Peek()
    module.trainer = quiet_trainer(tmp_path)
    module._step_callbacks = [peek]
    module._policy_loss(batch)
    peek._norms(lambda tensor, how: tensor)
    with torch.no_grad():
        logits_BTV = module.shared_base.peft(input_ids=batch.token_ids_BT).logits[:, :-1].double() / temperature
    logits_BTV.requires_grad_(True)
    logprobs_BT = logits_BTV.log_softmax(-1).gather(2, batch.token_ids_BT[:, 1:, None])[..., 0]
    ratio_BT = (logprobs_BT - batch.old_logprobs_BT[:, 1:]).exp()
    advantages_BT, weights_BT = batch.advantages_BT[:, 1:], batch.loss_weights_BT[:, 1:]
    dropped_BT = ((advantages_BT > 0) & (ratio_BT > 1.2)) | ((advantages_BT < 0) & (ratio_BT < 0.8))
    for found, kept_BT in zip(norms[0], (~dropped_BT, dropped_BT), strict=True):
        (slope_BTV,) = torch.autograd.grad(
            (weights_BT * ratio_BT * advantages_BT * kept_BT).sum(), logits_BTV, retain_graph=True
        )
        assert found == pytest.approx(float(slope_BTV.norm()), rel=1e-3)
    assert norms[0][1] > 0
