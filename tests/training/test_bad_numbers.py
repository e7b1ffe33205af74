"""Numbers that are not finite end a run before they are exported, and rewards out of range are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from lightning import Callback
from torch.utils.data import DataLoader
from transformers import PhiConfig, PhiForCausalLM

from medagent.errors import ConfigError, PolicyError
from medagent.training.adapters import SharedBase
from medagent.training.finite_steps import FiniteSteps
from medagent.training.lora import LoraSettings
from medagent.training.rewards import OutcomeReward, graded
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.support import OneBatch, make_module, quiet_trainer, small_experience

NAN, INF = math.nan, math.inf


class Spoil(Callback):
    """Leaves a number that is not finite in a weight after the step, as an overflow of the step would."""

    def on_fit_start(self, trainer, pl_module) -> None:
        trainer.optimizers[0].register_step_post_hook(lambda *_: self.spoil(pl_module))

    def spoil(self, module) -> None:
        with torch.no_grad():
            module.shared_base.critic_parameters()[0].view(-1)[0] = INF


def test_weights_that_a_step_leaves_not_finite_end_the_run_before_an_export(tmp_path) -> None:
    ended = []

    class Ended(Callback):
        def on_train_epoch_end(self, trainer, pl_module) -> None:
            ended.append(trainer.current_epoch)

    module, trainer = make_module(), quiet_trainer(tmp_path, callbacks=[Spoil(), Ended()])
    with pytest.raises(PolicyError, match=r"the critic's weights are not finite .*Lower model\.policy_lr"):
        trainer.fit(module, DataLoader(OneBatch([small_experience(module)]), batch_size=None))
    assert not ended


def test_ranks_look_at_their_weights_together() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([{"params": [weight], "name": "policy"}])
    FiniteSteps().check_weights(optimizer, lambda tensor: tensor)
    with pytest.raises(PolicyError, match="another rank's weights are not finite"):
        FiniteSteps().check_weights(optimizer, torch.ones_like)
    with torch.no_grad():
        weight[1] = NAN
    with pytest.raises(PolicyError, match=r"the policy's weights are not finite .*policy 0\.001"):
        FiniteSteps().check_weights(optimizer, lambda tensor: tensor)


@pytest.mark.parametrize("rows", [4096, 2])
def test_scores_of_minus_infinity_leave_the_entropy_and_its_gradient_finite(rows: int) -> None:
    torch.manual_seed(0)
    settings = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = PhiForCausalLM(PhiConfig(vocab_size=40, **settings))
    shared_base = SharedBase(base, policy=LoraSettings(2, 4), critic=None)
    shared_base.execution = replace(shared_base.execution, logits_rows=rows)
    ids_BT = torch.randint(0, 30, (2, 6))
    mask_BT = torch.tensor([[False, False, False, True, True, True]] * 2)
    found = []
    for score in (-INF, -1e4):  # ids 30 to 39 are unused
        base.lm_head.bias.data[30:] = score
        shared_base.zero_grad()
        scores = shared_base.policy_scores(
            ids_BT, torch.ones_like(mask_BT), mask_BT, temperature=0.8, entropy_gradient=True
        )
        (scores.entropy_BT.sum() + scores.logprobs_BT.sum()).backward()
        gradient = torch.cat([each.grad.flatten() for each in shared_base.policy_parameters()])
        assert float(gradient.abs().sum()) > 0
        found.append((scores.entropy_BT.detach(), gradient))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])
    assert 0 < float(found[0][0][0, 3]) <= math.log(30) + 1e-5


class Paid:
    """A user's reward, for the outcome and for a turn."""

    def __init__(self, reward: object, turn: object = 0.0) -> None:
        self.reward, self.turn = reward, turn

    def __call__(self, rollout: Rollout) -> Rollout:
        return replace(rollout, reward=self.reward, turns=(replace(rollout.turns[0], reward=self.turn),))


ROLLOUT = Rollout(Question("q7", ""), (5,), (Turn((9,), (-1.0,), ""),), StopReason.ANSWERED, sample=2)


def test_rewards_that_are_huge_or_no_numbers_are_refused() -> None:
    for value in (1e38, -1e30, 1e300, 10**400, 1.1e6, NAN, -INF, None, "1", 1j, torch.tensor(1.0)):
        for reward, named in ((Paid(value), "the reward"), (Paid(1.0, value), "the reward of turn 0")):
            with pytest.raises(ConfigError) as error:
                graded(reward, ROLLOUT)
            assert str(error.value).startswith(f"data.reward (Paid), question q7, sample 2: gave {named} {value!r}, ")
    for value in (0, 1, True, -1e6, 1e6, 0.25):
        assert graded(Paid(value, value), ROLLOUT).reward is value


def test_a_reward_that_gives_no_rollout_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\(function\), question q7, sample 2: gave 1\.0, wanted the rollout"):
        graded(lambda rollout: 1.0, ROLLOUT)
    assert graded(OutcomeReward(), ROLLOUT).reward == 0
