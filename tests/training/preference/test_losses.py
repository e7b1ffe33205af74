"""Losses and gradients of pairs against a loop in double precision, and the special cases by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from medagent.errors import ConfigError
from medagent.training.adapters import POLICY
from medagent.training.preference.data import to_prefer
from medagent.training.preference.losses import DPO, TDPO1, TDPO2, PairTerms, PreferenceLoss
from medagent.training.preference.module import PreferenceModule
from medagent.training.preference.pairs import PreferencePair
from medagent.types import Rollout
from tests.training.preference.support import module_of, pairs

BETA, ALPHA = 0.3, 0.7
LOSSES = {"dpo": DPO(BETA), "tdpo1": TDPO1(BETA), "tdpo2": TDPO2(BETA, ALPHA)}


def plain_sums(module: PreferenceModule, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """(log-ratio, sequential forward KL) of one rollout, token by token, from whole rows of logits."""
    model, ids = module.shared_base.peft, torch.tensor([rollout.token_ids])
    ours = torch.log_softmax(model(input_ids=ids).logits[0].double() / module.temperature, -1)
    with torch.no_grad(), model.disable_adapter():
        theirs = torch.log_softmax(model(input_ids=ids).logits[0].double() / module.temperature, -1)
    model.set_adapter(POLICY)
    ratio, kl = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for position, (token, acts) in enumerate(zip(rollout.token_ids, rollout.loss_mask, strict=True)):
        if acts:
            before = position - 1
            ratio = ratio + ours[before, token] - theirs[before, token]
            kl = kl + sum(theirs[before].exp() * (theirs[before] - ours[before]))
    return ratio, kl


def plain_loss(name: str, module: PreferenceModule, chosen: list[PreferencePair]) -> Tensor:
    """The papers' losses, written out: mean over pairs of -log sigmoid(u - delta)."""
    total = torch.zeros((), dtype=torch.float64)
    for pair in chosen:
        (right, right_kl), (wrong, wrong_kl) = plain_sums(module, pair.chosen), plain_sums(module, pair.rejected)
        u = BETA * right - BETA * wrong
        delta = {
            "dpo": 0.0,
            "tdpo1": BETA * wrong_kl - BETA * right_kl,
            "tdpo2": ALPHA * (BETA * wrong_kl - (BETA * right_kl).detach()),
        }[name]
        total = total - torch.log(1 / (1 + torch.exp(-(u - delta))))
    return total / len(chosen)


def gradient(module: PreferenceModule, loss: Tensor) -> Tensor:
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, module.shared_base.policy_parameters())])


def our_loss(module: PreferenceModule, chosen: list[PreferencePair]) -> Tensor:
    batch = to_prefer(chosen, pad_id=module.pad_id, weight=1.0)  # weights are float32, and 1/3 is not exact there
    return module.loss_terms(batch)[0](batch) / len(chosen)


@pytest.mark.parametrize("shape", [{}, {"packed": True}, {"shared_prefixes": True}, {"gradient_checkpointing": True}])
@pytest.mark.parametrize("name", list(LOSSES))
def test_loss_and_gradient_are_those_of_a_plain_loop(name: str, shape: dict[str, bool]) -> None:
    module = module_of(LOSSES[name], temperature=0.8, max_tokens=0, **shape)
    plain = module_of(LOSSES[name], temperature=0.8, max_tokens=0)
    ours, theirs = our_loss(module, pairs()), plain_loss(name, plain, pairs())
    assert abs(float(ours.detach()) - float(theirs.detach())) < 1e-8
    found, wanted = gradient(module, ours), gradient(plain, theirs)
    assert float(wanted.abs().max()) > 1e-3
    assert float((found - wanted).abs().max()) < 1e-8


def test_a_head_of_another_kind_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = our_loss(module_of(TDPO1(BETA), max_tokens=0), pairs())
    monkeypatch.setattr("medagent.training.preference.scores.frozen_head", lambda model: None)
    monkeypatch.setattr("medagent.training.preference.scores.project", lambda model, hidden: model.lm_head(hidden))
    module = module_of(TDPO1(BETA), max_tokens=0, logits_rows=5)
    ours, plain = our_loss(module, pairs()), module_of(TDPO1(BETA), max_tokens=0)
    assert abs(float(ours.detach()) - float(wanted.detach())) < 1e-8
    assert torch.allclose(gradient(module, ours), gradient(plain, plain_loss("tdpo1", plain, pairs())), atol=1e-8)


def terms(*values: float) -> PairTerms:
    """One pair: log-ratio of the right and the wrong rollout, and their KLs."""
    return PairTerms(*(torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in values))


def slopes(loss: PreferenceLoss, given: PairTerms) -> list[float]:
    """Gradients of the loss with respect to the four terms."""
    parts = [given.chosen_logratio_P, given.rejected_logratio_P, given.chosen_kl_P, given.rejected_kl_P]
    found = torch.autograd.grad(loss(given).sum(), parts, allow_unused=True)
    return [0.0 if each is None else float(each) for each in found]


def test_values_by_hand() -> None:
    # u = 0.5 (0.6 + 0.2) = 0.4. KLs 0.3 and 0.9: TDPO1 takes 0.5 (0.9 - 0.3) = 0.3 off, TDPO2 half of it.
    values = (0.6, -0.2, 0.3, 0.9)
    for loss, margin in ((DPO(0.5), 0.4), (TDPO1(0.5), 0.1), (TDPO2(0.5, 0.5), 0.25)):
        given = terms(*values)
        assert float(loss.margins(given).detach()) == pytest.approx(margin)
        assert float(loss(given).detach()) == pytest.approx(math.log1p(math.exp(-margin)))
    # d -log sigmoid(m) / dm = -sigmoid(-m), times beta, with the sign of each term in the margin.
    s = 0.5 / (1 + math.exp(0.1))
    assert slopes(TDPO1(0.5), terms(*values)) == pytest.approx([-s, s, -s, s])
    s = 0.5 / (1 + math.exp(0.25))
    assert slopes(TDPO2(0.5, 0.5), terms(*values)) == pytest.approx([-s, s, 0, 0.5 * s]), "the right one's KL is fixed"


def test_with_alpha_0_the_second_form_is_dpo() -> None:
    values = (0.6, -0.2, 0.3, 0.9)
    assert torch.equal(TDPO2(0.5, 0.0)(terms(*values)), DPO(0.5)(terms(*values)))
    assert slopes(TDPO2(0.5, 0.0), terms(*values)) == slopes(DPO(0.5), terms(*values))


def test_two_equal_rollouts_cost_log_2_and_teach_a_kl_alone() -> None:
    # All terms cancel, so the margin is 0 and the loss log 2. DPO's gradient and TDPO1's cancel too. In TDPO2 the KL of
    # the right one is fixed: what is left is alpha beta / 2 times the gradient of the wrong one's KL.
    same = [PreferencePair(pair.chosen, pair.chosen) for pair in pairs()]
    for name in ("dpo", "tdpo1", "tdpo2"):
        module = module_of(LOSSES[name], max_tokens=0)
        loss = our_loss(module, same)
        assert float(loss.detach()) == pytest.approx(math.log(2), abs=1e-12)
        if name != "tdpo2":
            assert float(gradient(module, loss).abs().max()) < 1e-12
    kl = sum(plain_sums(module, pair.chosen)[1] for pair in same) / 3
    assert torch.allclose(gradient(module, loss), ALPHA * BETA / 2 * gradient(module, kl), atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DPO(0.0), r"DPO.beta: found 0.0, wanted a finite number above 0"),
        (lambda: TDPO1(math.nan), "TDPO1.beta: found nan"),
        (lambda: TDPO2(-0.1), "TDPO2.beta: found -0.1"),
        (lambda: TDPO2(0.1, -1.0), "TDPO2.alpha: found -1.0, wanted a finite number, 0 or more"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
