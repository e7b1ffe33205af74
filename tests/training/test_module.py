"""The training step: what it must equal, what it must leave alone, and in what order things happen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from lightning import Callback
from torch.utils.data import DataLoader

from medagent.errors import ConfigError
from medagent.training.advantages import GAE
from medagent.training.batching import split_by_length
from medagent.training.callbacks import ClippingBiasCorrection, TurnLevelSampling
from medagent.training.default_callbacks import rates_of
from medagent.training.experience import loss_weights
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.objectives import ClippedSurrogate
from medagent.training.prepare import prepare
from tests.training.support import OneBatch, gradients, make_module, perturb, quiet_trainer


def test_the_value_of_a_token_is_read_before_it(module, experience) -> None:
    """Changing an action token changes no value up to and including its own."""
    perturb(module)
    row = experience.rows([0])
    position = int(row.mask_BT[0].nonzero()[2])
    changed = row.token_ids_BT.clone()
    changed[0, position] = (changed[0, position] + 7) % 1000
    with torch.no_grad():
        before = module.shared_base.values(row.token_ids_BT, row.attention_BT, row.mask_BT)
        after = module.shared_base.values(changed, row.attention_BT, row.mask_BT)
    torch.testing.assert_close(before[0, : position + 1], after[0, : position + 1])
    assert not torch.allclose(before[0, position + 1 :], after[0, position + 1 :])


@pytest.mark.parametrize("reduction", ["rollout-mean", "token-mean"])
def test_accumulated_ragged_micro_batches_equal_the_full_batch(module, experience, tmp_path, reduction) -> None:
    perturb(module)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    tokens, count = int(experience.mask_BT.sum()), experience.mask_BT.shape[0]

    weights = loss_weights(experience.mask_BT, reduction=reduction, num_tokens=tokens, num_rollouts=count, factor=1.0)
    weighted = replace(experience, loss_weights_BT=weights, value_weights_BT=weights)
    whole = gradients(module, [weighted], tmp_path)
    module.load_state_dict(start)
    lengths = experience.attention_BT.sum(dim=1).tolist()
    parts = split_by_length(range(count), lengths, parts=3)
    assert len({len(part) for part in parts}) > 1, "the parts must be ragged"
    split = gradients(module, [weighted.step(parts)], tmp_path)
    assert whole.policy[0].norm() > 1e-3
    torch.testing.assert_close(split.policy[0], whole.policy[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(split.critic[0], whole.critic[0], rtol=1e-4, atol=1e-6)


def test_the_two_losses_do_not_leak_into_each_other(module, experience, tmp_path) -> None:
    perturb(module)
    start = {name: value.clone() for name, value in module.state_dict().items()}
    both = gradients(module, [experience], tmp_path)
    module.load_state_dict(start)
    other_returns = replace(experience, returns_BT=experience.returns_BT + 5)
    shifted = gradients(module, [other_returns], tmp_path)
    torch.testing.assert_close(both.policy[0], shifted.policy[0], rtol=1e-4, atol=1e-7)
    assert not torch.allclose(both.critic[0], shifted.critic[0])


class HookOrder(Callback):
    """Writes down what Lightning calls, for the order below."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_batch_start(self, *args) -> None:
        self.calls.append("batch_start")

    def on_before_backward(self, *args) -> None:
        self.calls.append("before_backward")

    def on_after_backward(self, *args) -> None:
        self.calls.append("after_backward")

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        self.calls.append("before_optimizer_step")

    def on_train_batch_end(self, *args) -> None:
        self.calls.append("batch_end")


def test_the_order_of_hooks_is_what_the_callbacks_rely_on(experience, tmp_path) -> None:
    order = HookOrder()

    class Watched(AgentModule):
        def training_step(self, batch, batch_idx):
            order.calls.append("training_step")
            return super().training_step(batch, batch_idx)

        def configure_gradient_clipping(self, optimizer):
            order.calls.append("clip_gradients")
            super().configure_gradient_clipping(optimizer)

        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            optimizer.register_step_post_hook(lambda *args: order.calls.append("stepped"))
            return optimizer

    module = Watched(policy_lora=LoraSettings(4, 8), critic_lora=LoraSettings(4, 8))
    loader = DataLoader(OneBatch([experience.step([range(8), range(8, 16)])]), batch_size=None)
    quiet_trainer(tmp_path, callbacks=[order]).fit(module, loader)
    backward = ["before_backward", "after_backward"] * 4  # the critic's and the policy's of two micro-batches
    last = ["before_optimizer_step", "clip_gradients", "stepped", "batch_end"]
    assert order.calls == ["batch_start", "training_step", *backward, *last]


def test_bad_settings_are_refused_with_their_name() -> None:
    for name, value in {"clip_low": 1.5, "clip_high": 0.0, "dual_clip": 1.1}.items():
        with pytest.raises(ConfigError, match=f"ClippedSurrogate.{name}: found {value}"):
            ClippedSurrogate(**{name: value})
    with pytest.raises(ConfigError, match=r"model\.temperature: found"):
        AgentModule(temperature=0.0)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        AgentModule(base_model="/no/such/folder")
    with pytest.raises(ConfigError, match="not a torch type"):
        AgentModule(dtype="float33")
    with pytest.raises(ConfigError, match="explodes"):
        ClippingBiasCorrection(normaliser="paper", applied_to="step")


def test_the_entropy_carries_a_gradient_only_where_it_is_in_the_loss(module, experience) -> None:
    perturb(module)
    inputs = (experience.token_ids_BT, experience.attention_BT, experience.mask_BT)
    plain = module.shared_base.policy_scores(*inputs, temperature=1.0)
    asked = module.shared_base.policy_scores(*inputs, temperature=1.0, entropy_gradient=True)
    assert not plain.entropy_BT.requires_grad
    torch.testing.assert_close(plain.entropy_BT, asked.entropy_BT, rtol=1e-4, atol=1e-5)
    asked.entropy_BT.sum().backward()
    assert max(p.grad.abs().max() for p in module.shared_base.policy_parameters() if p.grad is not None) > 0


def test_a_critic_only_step_leaves_the_policy_alone(module, experience, tmp_path) -> None:
    perturb(module)
    before = [parameter.detach().clone() for parameter in module.shared_base.policy_parameters()]
    critic_before = [parameter.detach().clone() for parameter in module.shared_base.critic_parameters()]
    loader = DataLoader(OneBatch([replace(experience, critic_only=True)] * 2), batch_size=None)
    quiet_trainer(tmp_path, callbacks=[TurnLevelSampling(), ClippingBiasCorrection()]).fit(module, loader)
    assert all(torch.equal(a, b) for a, b in zip(before, module.shared_base.policy_parameters(), strict=True))
    assert not all(
        torch.equal(a, b) for a, b in zip(critic_before, module.shared_base.critic_parameters(), strict=True)
    )


def test_learning_rates_decay_together_and_warm_up_and_rollback_change_the_policys_alone() -> None:
    for settings, scale, epoch, policy, critic in (
        *(({"lr_decay_iterations": 4}, 0.5, epoch, share, share) for epoch, share in ((0, 1), (3, 0.25), (5, 0.0))),
        *(({"lr_warmup_iterations": 3}, 1.0, epoch, share, 1) for epoch, share in ((0, 0.25), (2, 0.75), (9, 1.0))),
    ):
        module = make_module(policy_lr=0.2, critic_lr=0.4, **settings)
        module.policy_lr_scale = scale
        wanted = {"policy": 0.2 * scale * policy, "critic": 0.4 * critic}
        assert rates_of(module, epoch) == pytest.approx(wanted), (settings, epoch)


@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_a_reference_that_nothing_uses_is_not_read(rollouts, monkeypatch, coefficient: float) -> None:
    module = make_module(kl_coef=coefficient)
    module.trainer = SimpleNamespace(world_size=1)  # type: ignore[assignment]
    read, plain = [], module.shared_base.reference_logprobs
    monkeypatch.setattr(
        module.shared_base, "reference_logprobs", lambda *given, **kw: read.append(1) or plain(*given, **kw)
    )
    batch = prepare(module, rollouts, estimator=GAE(), reduce=lambda tensor: tensor)
    module._policy_loss(batch)
    assert bool(read) == bool(batch.reference_logprobs_BT.abs().max()) == bool(coefficient)
    assert ("kl/reference" in module._sums) == bool(coefficient)
