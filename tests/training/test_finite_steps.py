"""A step that is not finite changes nothing, is counted and named, and the third in a row ends the run."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace

import pytest
import torch
from lightning import Callback
from torch.utils.data import DataLoader

from medagent.errors import ConfigError, PolicyError
from medagent.policies.huggingface import HFPolicy
from medagent.training.advantages import GAE
from medagent.training.callbacks import ClippingBiasCorrection, TurnLevelSampling
from medagent.training.execution import Execution
from medagent.training.experience import Experience, RolloutTensors, loss_weights
from medagent.training.finite_steps import FiniteSteps
from medagent.training.lora import LoraSettings
from medagent.training.objectives import ClippedSurrogate
from medagent.training.prepare import prepare
from medagent.training.rewards import OutcomeReward
from medagent.training.sft.supervised import SupervisedModule, to_imitate
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.support import OneBatch, make_data, make_module, perturb, quiet_trainer


@contextmanager
def warned(match: str) -> Iterator[None]:
    """One of the warnings inside says this; others are Lightning's."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    assert any(re.search(match, str(each.message)) for each in seen), [str(each.message) for each in seen]


def made(name: str, sample: int = 0, **changes) -> Rollout:
    number = sum(map(ord, name)) % 40
    turns = (
        Turn((9 + number, 10, 11), (-2.0, -1.0, -3.0), "", "query", observation_ids=(3, 4)),
        Turn((12, 13 + number), (-2.0, -2.5), ""),
    )
    settings = {"sample": sample, "reward": float(number % 2), **changes}
    return Rollout(Question(name, ""), (5, 6, 7 + number), turns, StopReason.ANSWERED, **settings)


def step_of(module, names: str, *, parts: int = 1, **changes) -> Experience:
    """One step over rollouts with these one-letter names, in so many micro-batches."""
    batch = prepare(module, [made(name) for name in names], estimator=GAE(), reduce=lambda tensor: tensor)
    weights = loss_weights(batch.mask_BT, reduction="rollout-mean", num_tokens=0, num_rollouts=len(names), factor=1.0)
    batch = replace(batch, loss_weights_BT=weights, value_weights_BT=weights, **changes)
    size = len(names) // parts
    return batch.step([range(start, start + size) for start in range(0, len(names), size)])


def spoilt(batch: Experience, field: str, value: float, row: int = 1) -> Experience:
    tensor = getattr(batch, field).clone()
    tensor[row, int(batch.mask_BT[row].nonzero()[1])] = value
    return replace(batch, **{field: tensor})


class Watch(Callback):
    """What each step left behind: weights, the optimizer's state, and the logged metrics."""

    def __init__(self) -> None:
        self.after: list[tuple[list[torch.Tensor], dict]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        weights = [p.detach().clone() for p in pl_module.parameters() if p.requires_grad]
        self.after.append((weights, copy.deepcopy(trainer.optimizers[0].state_dict())))

    def on_train_end(self, trainer, pl_module) -> None:
        self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}


def fit(module, tmp_path, steps, *, callbacks=()):
    watch = Watch()
    trainer = quiet_trainer(tmp_path, callbacks=[*callbacks, watch])
    trainer.fit(module, DataLoader(OneBatch(steps), batch_size=None))
    return trainer, watch


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


CORRECTIONS = {
    "none": {},
    "step": {"decay": 0.5},
    "gradient": {"applied_to": "gradient", "normaliser": "paper", "space": "parameters"},
    "parameters": {"space": "parameters"},
    "rollouts": {"applied_to": "rollouts_and_step"},
}


def callbacks_of(name: str) -> list[Callback]:
    return [TurnLevelSampling(), *([ClippingBiasCorrection(**CORRECTIONS[name])] if name != "none" else [])]


@pytest.mark.parametrize(
    ("field", "value", "correction"),
    [
        *(("advantages_BT", math.nan, correction) for correction in CORRECTIONS),
        ("advantages_BT", math.inf, "none"),
        ("returns_BT", -math.inf, "step"),
        ("old_logprobs_BT", math.nan, "parameters"),
    ],
)
def test_a_spoilt_step_changes_nothing(field, value, correction, tmp_path) -> None:
    found = []
    for bad in (True, False):
        module = make_module()
        perturb(module)
        first, middle, last = (step_of(module, names, parts=2) for names in ("abcd", "ijkl", "efgh"))
        steps = [first, *([spoilt(middle, field, value, row=3)] if bad else []), last]
        if bad:
            with warned(r"is skipped.*rollouts: l sample 0\. After 3"):
                _, watch = fit(module, tmp_path, steps, callbacks=callbacks_of(correction))
            assert same(watch.after[0], watch.after[1]), "neither weights nor the optimizer's state"
            assert not same(watch.after[1], watch.after[2])
        else:
            _, watch = fit(module, tmp_path, steps, callbacks=callbacks_of(correction))
        assert watch.metrics["update/skipped"] == float(bad)
        assert all(math.isfinite(number) for number in watch.metrics.values())
        found.append(watch.after[-1])
    assert same(*found), "the steps around it are those of a run without it"


@pytest.mark.parametrize("field", ["returns_BT", "advantages_BT"])
def test_a_spoilt_step_of_the_critic_alone_changes_nothing(field, tmp_path) -> None:
    module = make_module()
    good, bad = step_of(module, "abcd"), spoilt(step_of(module, "efgh"), field, math.nan)
    alone = [replace(each, critic_only=True) for each in (good, bad)]
    if field == "advantages_BT":  # which the critic never reads
        _, watch = fit(module, tmp_path, alone)
        assert watch.metrics["update/skipped"] == 0
        return
    with warned("rollouts: f sample 0"):
        _, watch = fit(module, tmp_path, alone)
    assert same(*watch.after)


class EndlessLoss(ClippedSurrogate):
    """A loss that is infinite in one part, with a gradient that is finite."""

    def __call__(self, policy_logprobs_BT, batch):
        result = super().__call__(policy_logprobs_BT, batch)
        return replace(result, objective=result.objective + (math.inf if "a sample 0" in batch.names else 0.0))


def test_fine_tuning_skips_too(tmp_path) -> None:
    module = SupervisedModule(policy_lora=LoraSettings(4, 8))
    tensors = step_of(make_module(), "abcd")
    weights = tensors.mask_BT / tensors.mask_BT.sum()
    sampled = RolloutTensors(**{field.name: getattr(tensors, field.name) for field in fields(RolloutTensors)})
    good = replace(to_imitate(sampled, weights), names=tensors.names)
    bad = spoilt(good, "loss_weights_BT", math.inf)
    with warned("the loss is inf.*rollouts: b sample 0"):
        _, watch = fit(module, tmp_path, [good, bad])
    assert same(*watch.after)
    assert watch.metrics["sft/loss"] > 0


class Spoil(Callback):
    """Puts NaN into the critic's gradient after it is made."""

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        optimizer.param_groups[1]["params"][0].grad[0] = math.nan


class InfiniteBias(ClippedSurrogate):
    """A loss whose dropped terms overflow, while its objective does not."""

    def __call__(self, policy_logprobs_BT, batch):
        result = super().__call__(policy_logprobs_BT, batch)
        return replace(result, clipped=(policy_logprobs_BT * math.inf).sum())


BIASED = {"policy_loss": InfiniteBias(clip_low=0.01, clip_high=0.01)}
IN_PARTS = {"policy_loss": EndlessLoss(), "execution": Execution(max_tokens=12)}
SKIPPED = {
    "the loss of one part": (IN_PARTS, "abcd", [], "as the loss is -inf"),
    "a callback": ({}, "ab", [Spoil()], "the critic's gradient is nan.*rollouts: a sample 0, b sample 0"),
    "logits": (BIASED, "ab", [ClippingBiasCorrection()], "the clipping bias has norm"),
    "parameters": (BIASED, "ab", [ClippingBiasCorrection(space="parameters")], "the clipping bias has norm"),
    "decay": (BIASED, "ab", [ClippingBiasCorrection(decay=0.5)], "the clipping bias has norm"),
}


@pytest.mark.parametrize("case", SKIPPED)
def test_what_is_not_finite_skips_the_step_wherever_it_is_found(case, tmp_path) -> None:
    settings, names, callbacks, told = SKIPPED[case]
    module = make_module(**settings)
    perturb(module)
    start = [p.detach().clone() for p in module.parameters() if p.requires_grad]
    with warned(told):
        trainer, watch = fit(module, tmp_path, [step_of(module, names)], callbacks=callbacks)
    assert same(watch.after[0][0], start)
    assert not watch.after[0][1]["state"]
    assert watch.metrics["update/skipped"] == 1
    assert not {"policy/loss", "critic/loss", "policy/entropy"} & watch.metrics.keys()
    assert trainer.optimizers[0].param_groups[0]["lr"] == module.policy_lr
    assert "clipping_bias_cut" not in trainer.optimizers[0].param_groups[0]


@pytest.mark.filterwarnings("ignore:update")
def test_the_third_in_a_row_ends_the_run(tmp_path) -> None:
    module = make_module()
    start = [p.detach().clone() for p in module.parameters() if p.requires_grad]
    good, bad = step_of(module, "abcd"), spoilt(step_of(module, "efgh"), "advantages_BT", math.nan)
    fit(module, tmp_path, [bad, bad, good, bad, bad, good])
    module = make_module()
    with pytest.raises(PolicyError, match=r"3 optimizer steps in a row.*f sample 0.*Lower model\.policy_lr"):
        fit(module, tmp_path, [bad, bad, bad, good])
    assert same([p.detach() for p in module.parameters() if p.requires_grad], start)


@pytest.mark.filterwarnings("ignore:update")
def test_a_checkpoint_keeps_the_count(tmp_path) -> None:
    module = make_module()
    bad = spoilt(step_of(module, "efgh"), "advantages_BT", math.nan)
    trainer, _ = fit(module, tmp_path, [bad, bad])
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    again = make_module()
    loader = DataLoader(OneBatch([bad]), batch_size=None)
    with pytest.raises(PolicyError, match="3 optimizer steps in a row"):
        quiet_trainer(tmp_path, epochs=2).fit(again, loader, ckpt_path=tmp_path / "two.ckpt")


@pytest.mark.filterwarnings("ignore:update")
def test_a_good_step_ends_a_row_of_bad_ones_in_a_checkpoint_too(tmp_path) -> None:
    module = make_module()
    good, bad = step_of(module, "abcd"), spoilt(step_of(module, "efgh"), "advantages_BT", math.nan)
    trainer, _ = fit(module, tmp_path, [bad, bad, good])
    trainer.save_checkpoint(tmp_path / "good.ckpt")
    again = make_module()
    loader = DataLoader(OneBatch([bad, bad, good]), batch_size=None)
    quiet_trainer(tmp_path, epochs=2).fit(again, loader, ckpt_path=tmp_path / "good.ckpt")
    assert again.finite_steps.in_iteration == 2


def test_all_ranks_decide_alike() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([{"params": [weight], "name": "policy"}])
    steps = FiniteSteps()
    steps.begin()
    steps.note_loss(torch.tensor(1.0))
    weight.grad = torch.ones(3)
    calls = []

    def elsewhere(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(float(tensor))
        return torch.ones_like(tensor)

    with warned("another rank's is not finite.*rollouts: another rank names them"):
        steps.judge(optimizer, elsewhere)
    assert steps.skipped
    assert weight.grad is None
    assert calls == [0.0, 0.0], "this rank's own numbers are all finite"


def test_collected_rollouts_have_finite_rewards(starter, retriever) -> None:
    class Nan(OutcomeReward):
        def __call__(self, rollout: Rollout) -> Rollout:
            return replace(super().__call__(rollout), reward=math.nan)

    data = make_data(retriever, num_questions=4, num_minibatches=1, reward=Nan())
    with pytest.raises(ConfigError, match=r"data\.reward \(Nan\)"):
        data.collect(HFPolicy(*starter), temperature=1.0, iteration=0, version=0, rank=0, world_size=1)


def test_what_preparation_reads_is_named() -> None:
    module = make_module()
    turn = Turn((9, 10), (-1.0, math.nan), "")
    bad = Rollout(Question("q", ""), (5, 6), (turn,), StopReason.ANSWERED, sample=2)
    with warned("the sampler's log-probs are not finite in q sample 2"):
        prepare(module, [made("a"), bad], estimator=GAE(), reduce=lambda tensor: tensor)
    with torch.no_grad():
        module.shared_base.critic_parameters()[-1].fill_(math.inf)
    with warned("the critic's values are not finite in a sample 0"):
        prepare(module, [made("a")], estimator=GAE(), reduce=lambda tensor: tensor)
