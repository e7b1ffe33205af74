"""Clipping-bias correction: its scales by hand, its norms against autograd, and what it leaves alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from medagent.errors import ConfigError
from medagent.training.batching import split_by_length
from medagent.training.callbacks import ClippingBiasCorrection
from medagent.training.objectives import PolicyTerms, clipped_surrogate, reference_kl
from tests.training.support import OneBatch, Snoop, gradients, make_module, perturb, quiet_trainer


@pytest.mark.parametrize(
    ("normaliser", "gradient", "bias", "expected"),
    [
        ("paper", 1.0, 4.0, 0.25),
        ("paper", 1.0, 0.0, 100.0),
        ("triggered", 1.0, 0.5, 1.0),
        ("triggered", 1.0, 8.0, 0.25),
        ("relative", 3.0, 2.0, 0.75),
        ("relative", 3.0, 6.0, 0.5),
        ("relative", 0.0, 0.0, 1.0),
        ("relative", 0.0, 1.0, 0.0),
        ("constant", 3.0, 9.0, 0.5),
    ],
)
def test_scales_by_hand(normaliser, gradient: float, bias: float, expected: float) -> None:
    threshold = 2.0 if normaliser in ("triggered", "relative") else None
    correction = ClippingBiasCorrection(normaliser, "gradient", floor=0.01, threshold=threshold, constant=[0.9, 0.5])
    assert correction.scale(gradient, bias, 3) == pytest.approx(expected)


def surrogate_of(module, batch):
    """The scores of a batch, and the clipped surrogate on them."""
    scores = module.shared_base.policy_scores(batch.token_ids_BT, batch.attention_BT, batch.mask_BT, temperature=1.0)
    return scores, clipped_surrogate(
        scores.logprobs_BT,
        old_logprobs_BT=batch.old_logprobs_BT,
        advantages_BT=batch.advantages_BT,
        mask_BT=batch.mask_BT,
        segments_BT=batch.ratio_segments_BT,
        loss_weights_BT=batch.loss_weights_BT,
        clip_low=0.2,
        clip_high=0.2,
    )


def norms_by_hand(module, batch) -> tuple[float, float]:
    _, result = surrogate_of(module, replace(batch, old_logprobs_BT=batch.rollout_logprobs_BT))
    norms = []
    for scalar in (result.objective, result.clipped):
        grads = torch.autograd.grad(scalar, module.shared_base.policy_parameters(), retain_graph=True)
        norms.append(torch.cat([g.flatten() for g in grads]).norm().item())
    return norms[0], norms[1]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("space", ["parameters", "logits"])
def test_norms_accumulate_like_the_gradient(experience, tmp_path, space, parts) -> None:
    """C over micro-batches equals C of the full batch; exact space equals autograd on the whole."""
    seen = []

    class Peek(ClippingBiasCorrection):
        def _norms(self, trainer):
            seen.append(super()._norms(trainer))
            return seen[-1]

    def run(split):
        fresh = make_module()
        perturb(fresh)
        gradients(fresh, [experience.step(split)], tmp_path, before=[Peek(space=space)])
        return seen[-1]

    lengths = experience.attention_BT.sum(dim=1).tolist()
    found = run(split_by_length(range(16), lengths, parts=parts))
    whole = run([list(range(16))])
    assert whole[1] > 0, "something must be clipped"
    assert found == pytest.approx(whole, rel=1e-4)
    if space == "parameters":
        fresh = make_module()
        perturb(fresh)
        assert found == pytest.approx(norms_by_hand(fresh, experience), rel=1e-4)


@pytest.mark.parametrize("applied_to", ["gradient", "step"])
@pytest.mark.parametrize("space", ["parameters", "logits"])
def test_only_the_policy_is_scaled(experience, tmp_path, applied_to, space) -> None:
    plain, corrected, start = (make_module() for _ in range(3))
    for each in (plain, corrected, start):
        perturb(each)
    without = gradients(plain, [experience], tmp_path)
    correction = ClippingBiasCorrection(applied_to=applied_to, space=space)
    found = gradients(corrected, [experience], tmp_path, before=[correction])
    torch.testing.assert_close(found.critic[0], without.critic[0])
    rate = found.lr[0] / corrected.policy_lr
    scale = float(found.policy[0].norm() / without.policy[0].norm()) if applied_to == "gradient" else rate
    assert 0 < scale < 1
    torch.testing.assert_close(
        found.policy[0], without.policy[0] * (scale if applied_to == "gradient" else 1.0), rtol=1e-4, atol=1e-8
    )
    bases = (corrected.shared_base, plain.shared_base, start.shared_base)
    if applied_to == "gradient":
        assert rate == 1
    else:  # Adam's first step moves each weight by its rate, so the step itself was scaled
        first, unscaled, before = (each.policy_parameters()[0].detach() for each in bases)
        assert float((first - before).norm() / (unscaled - before).norm()) == pytest.approx(scale, rel=1e-2)
    assert corrected.trainer.optimizers[0].param_groups[0]["lr"] == corrected.policy_lr
    # In norm: Adam's first step makes whole rates of gradients that are nothing but rounding.
    for a, b, c in zip(*(each.critic_parameters() for each in bases), strict=True):
        assert (a - b).norm() <= 0.02 * (b - c).norm()
        assert (b - c).norm() > 0


def test_nothing_clipped_means_nothing_scaled(experience, tmp_path) -> None:
    fresh = make_module()  # the policy that sampled: every ratio is 1
    snoop = gradients(fresh, [experience], tmp_path, before=[ClippingBiasCorrection()])
    assert snoop.lr[0] == fresh.policy_lr


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("applied_to", ["rollouts", "rollouts_and_step"])
def test_each_rollout_counts_by_its_own_scale(experience, tmp_path, applied_to, parts) -> None:
    """The gradient is that of the rollouts' own losses, each times its scale, by autograd one rollout at a time.

    One without an advantage has no say in the step.
    """
    fresh, plain, reference = (make_module(kl_coef=0.1) for _ in range(3))
    for each in (fresh, plain, reference):
        perturb(each)
    experience.advantages_BT[3] = 0.0
    lengths = experience.attention_BT.sum(dim=1).tolist()
    step = experience.step(split_by_length(range(16), lengths, parts=parts))
    correction = ClippingBiasCorrection(applied_to=applied_to, threshold=0.5)
    snoop = gradients(fresh, [step], tmp_path, before=[correction])
    without = gradients(plain, [step], tmp_path)

    scales, expected = [], torch.zeros_like(without.policy[0])
    for number in range(16):
        loss, norms = by_rollout(reference, experience.rows([number]))
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, reference.shared_base.policy_parameters())])
        scales += [norms[0] / (norms[0] + norms[1] / 0.5)] if number != 3 else []
        expected += flat * (scales[-1] if number != 3 else 1.0)
    assert min(scales) < 0.9 < max(scales), "rollouts must differ"
    torch.testing.assert_close(snoop.policy[0], expected, rtol=1e-3, atol=3e-6)
    mean = sum(scales) / 15 if applied_to == "rollouts_and_step" else 1.0
    assert snoop.lr[0] == pytest.approx(fresh.policy_lr * mean, rel=1e-4)
    torch.testing.assert_close(snoop.critic[0], without.critic[0])


def by_rollout(module, row):
    """The loss, and the norms over the logits of the gradients of J and of the clipped terms."""
    scores, surrogate = surrogate_of(module, row)
    lengths_BT = (1 - 2 * scores.logprobs_BT.detach().exp() + scores.collision_BT).clamp(min=0).sqrt()
    norms = []
    for scalar in (surrogate.objective, surrogate.clipped):
        (coefficients_BT,) = torch.autograd.grad(scalar, scores.logprobs_BT, retain_graph=True)
        norms.append((coefficients_BT * lengths_BT).norm().item())
    kl_BT = reference_kl(scores.logprobs_BT, row.reference_logprobs_BT, row.mask_BT)
    return -surrogate.objective + 0.1 * (row.loss_weights_BT * kl_BT).sum(), norms


@pytest.mark.long
def test_a_schedule_of_constants_begins_anew_with_each_iteration(experience, tmp_path) -> None:
    fresh = make_module()
    snoop = gradients(
        fresh,
        [experience] * 3,
        tmp_path,
        before=[ClippingBiasCorrection(normaliser="constant", constant=[1.0, 0.25])],
        epochs=2,
    )
    assert [lr / fresh.policy_lr for lr in snoop.lr] == pytest.approx([1.0, 0.25, 0.25] * 2)


@pytest.mark.long
@pytest.mark.parametrize("applied_to", ["step", "gradient"])
def test_a_remembered_cut_shortens_later_steps(experience, tmp_path, applied_to) -> None:
    """What stays of a cut shortens the steps after it, where theirs is smaller.

    Over iterations, and over a resumption from a real checkpoint.
    """
    owed = iter([1.0, 0.2, 1.0, 1.0, 1.0, 0.5])

    class Scripted(ClippingBiasCorrection):
        def _norms(self, trainer):
            super()._norms(trainer)
            scale = next(owed)
            return scale, 1 - scale

    def train(epochs: int, start: Path | None) -> Snoop:
        snoop = Snoop()
        callbacks = [Scripted(decay=0.5, applied_to=applied_to), snoop]
        trainer = quiet_trainer(tmp_path, epochs=epochs, callbacks=callbacks)
        trainer.fit(make_module(), DataLoader(OneBatch([experience] * 2), batch_size=None), ckpt_path=start)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return snoop

    first, resumed = train(2, None), train(3, tmp_path / "last.ckpt")
    if applied_to == "step":
        rate = make_module().policy_lr
        assert [lr / rate for lr in first.lr] == pytest.approx([1.0, 0.2, 0.6, 0.8])
        assert [lr / rate for lr in resumed.lr] == pytest.approx([0.9, 0.5])  # the last one's own cut is the larger
    else:
        assert set(first.lr) == {make_module().policy_lr}
        plain = gradients(make_module(), [experience] * 2, tmp_path)
        torch.testing.assert_close(first.policy[0], plain.policy[0])
    with pytest.raises(StopIteration):
        next(owed)


class Iterations:
    """Steps of an update without a model. Of two tokens the second is clipped where it has moved by one nat."""

    def __init__(self, **settings) -> None:
        self.correction = ClippingBiasCorrection(**settings)
        self.optimizer = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0}])
        self.trainer = SimpleNamespace(world_size=1, optimizers=[self.optimizer])
        self.module = SimpleNamespace(trainer=self.trainer, log_dict=lambda metrics: None)

    def rates(self, *moves: float | None) -> list[float]:
        """The policy's rate in each step of an iteration; None is a step of the critic alone."""
        self.correction.on_train_epoch_start(self.trainer, self.module)
        return [self.rate(move) for move in moves]

    def rate(self, move: float | None) -> float:
        group = self.optimizer.param_groups[0]
        if move is not None:
            logprobs = torch.tensor([[-2.0, -2.0 + move]], requires_grad=True)
            half, ones = torch.full((1, 2), 0.5), torch.ones(1, 2)
            surrogate = clipped_surrogate(
                logprobs,
                old_logprobs_BT=torch.full((1, 2), -2.0),
                advantages_BT=ones,
                mask_BT=ones.bool(),
                segments_BT=torch.tensor([[0, 1]]),
                loss_weights_BT=half,
                clip_low=0.2,
                clip_high=0.2,
            )
            lengths_of_one = 2 * logprobs.detach().exp()
            self.correction.on_policy_loss(self.module, PolicyTerms(surrogate, logprobs, lengths_of_one, ones, None))
        self.correction.on_finite_gradient(self.module, self.optimizer)
        self.correction.on_train_batch_end(self.trainer, self.module, None, None, 0)
        found, group["lr"] = group["lr"], 1.0
        return float(found)


def test_what_is_remembered_over_the_border_of_iterations_is_the_cut_alone() -> None:
    clipped = 1 / (1 + math.e)  # ||g|| is 0.5 and ||C|| is e / 2
    decays = Iterations(decay=0.5)
    assert decays.rates(0.0, 1.0) == pytest.approx([1.0, clipped])
    cut = 1 - clipped
    assert decays.rates(None, 0.0, 0.0) == pytest.approx([1.0, 1 - cut / 2, 1 - cut / 4])
    forgets = Iterations()
    assert forgets.rates(0.0, 1.0) == pytest.approx([1.0, clipped])
    assert forgets.rates(0.0, 1.0) == pytest.approx([1.0, clipped])
    schedule = Iterations(normaliser="constant", constant=[0.9, 0.5])
    assert schedule.rates(None, 0.0, 1.0, 0.0) == pytest.approx([1.0, 0.9, 0.5, 0.5])
    assert schedule.rates(0.0, 0.0) == pytest.approx([0.9, 0.5])


def test_two_corrections_are_refused(experience, tmp_path) -> None:
    two = [ClippingBiasCorrection(), ClippingBiasCorrection(applied_to="rollouts")]
    with pytest.raises(ConfigError, match="found 2 ClippingBiasCorrection"):
        gradients(make_module(), [experience], tmp_path, before=two)


def test_weight_decay_with_a_scaled_step_is_refused(experience, tmp_path) -> None:
    fresh = make_module(weight_decay=0.1)
    with pytest.raises(ConfigError, match="weight_decay"):
        gradients(fresh, [experience], tmp_path, before=[ClippingBiasCorrection()])
    for constant in (0.0, [], [1.0, 1.5]):
        with pytest.raises(ConfigError, match="constants in"):
            ClippingBiasCorrection(normaliser="constant", constant=constant)
    for normaliser, threshold in (("triggered", None), ("constant", 0.1), ("paper", 0.1)):
        with pytest.raises(ConfigError, match=f"threshold {threshold} found with normaliser {normaliser}"):
            ClippingBiasCorrection(normaliser=normaliser, applied_to="gradient", threshold=threshold)
    for decay, settings in (
        (1.0, {}),
        (-0.1, {}),
        (0.5, {"normaliser": "constant"}),
        (0.5, {"applied_to": "rollouts"}),
    ):
        with pytest.raises(ConfigError, match=f"decay {decay} found"):
            ClippingBiasCorrection(decay=decay, **settings)
    with pytest.raises(ConfigError, match="in logits"):
        ClippingBiasCorrection(applied_to="rollouts", space="parameters")
    with pytest.raises(ConfigError, match="relative"):
        ClippingBiasCorrection(normaliser="constant", applied_to="rollouts_and_step")
