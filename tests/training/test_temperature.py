"""Sampler and trainer speak of one distribution at every temperature."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch

from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.policies.huggingface import HFPolicy
from medagent.policy import SampledTurn
from medagent.training.advantages import GAE
from medagent.training.callbacks import ClippingBiasCorrection
from medagent.training.engines import InProcessEngine, ModuleWeights
from medagent.training.prepare import prepare
from studies.starter_base.lessons import STARTER_PROTOCOL
from tests.training.support import make_data, make_module, perturb, quiet_trainer


def largest(gap_BT: torch.Tensor) -> float:
    return float(gap_BT.abs().max())


def test_sampler_and_trainer_agree_after_training_moved_the_weights(retriever) -> None:
    module = make_module(temperature=0.7)
    perturb(module)
    policy = InProcessEngine().sync_weights(ModuleWeights(module), version=0)
    rollouts = make_data(retriever).collect(policy, temperature=0.7, iteration=0, version=0, rank=0, world_size=1)
    batch = prepare(module, rollouts, estimator=GAE(), reduce=lambda tensor: tensor)
    inputs = (batch.token_ids_BT, batch.attention_BT, batch.mask_BT)
    with torch.no_grad():
        scores = module.shared_base.policy_scores(*inputs, temperature=0.7)
        with_entropy = module.shared_base.policy_scores(*inputs, temperature=0.7, entropy_gradient=True)
    assert largest(with_entropy.logprobs_BT - scores.logprobs_BT) < 1e-4
    assert largest(scores.logprobs_BT - batch.rollout_logprobs_BT) < 1e-4
    assert largest((batch.reference_logprobs_BT - batch.rollout_logprobs_BT) * batch.mask_BT) > 1e-3


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
        def _norms(self, trainer):
            norms.append(super()._norms(trainer))
            return norms[-1]

    peek = Peek()
    module.trainer = quiet_trainer(tmp_path)
    module._step_callbacks = [peek]
    module._policy_loss(batch)
    peek._norms(SimpleNamespace(world_size=1))
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
