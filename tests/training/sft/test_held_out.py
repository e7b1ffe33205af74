"""What is held out is never imitated, and its loss and right turns are those of all ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from medagent.errors import ConfigError
from medagent.training.adapters import LoraSettings
from medagent.training.execution import Execution
from medagent.training.experience import tensorize
from medagent.training.module import AgentModule
from medagent.training.sft.data import num_held_out, split
from medagent.training.sft.supervised import HeldOutLoss, SupervisedData
from medagent.types import Rollout
from tests.training.exact import exact_rollouts
from tests.training.pretend import PretendRanks
from tests.training.sft.support import dialogue


def module_of(base: Path, **execution: object) -> AgentModule:
    torch.manual_seed(0)
    return AgentModule(
        base_model=str(base), policy_lora=LoraSettings(2, 4), critic_lora=None, execution=Execution(**execution)
    )


def texts(rollouts: list[Rollout]) -> list[str]:
    return [rollout.question.text for rollout in rollouts]


def test_all_dialogues_of_a_question_are_on_one_side() -> None:
    rollouts = [dialogue(f"Question {number % 20}?", id=str(number)) for number in range(60)]
    imitated, held_out = split(rollouts, 0.25, seed=0)
    assert len(set(texts(held_out))) == 5
    assert len(held_out) == 15
    assert not set(texts(imitated)) & set(texts(held_out))
    assert sorted(imitated + held_out, key=rollouts.index) == rollouts
    assert split(rollouts, 0.25, seed=0) == (imitated, held_out)
    assert split(rollouts, 0.25, seed=1) != (imitated, held_out)
    assert split(rollouts, 5, seed=0) == (imitated, held_out), "a number of questions"
    others = [dialogue(f"Other {number}?") for number in range(4)]
    more = set(texts(split(rollouts + others, 5, seed=0)[1]))
    assert len(more & set(texts(held_out))) >= 3, "other questions hardly change the side"


def test_a_share_is_rounded_down_and_anything_else_is_refused() -> None:
    for share, count in ((0, 0), (0.05, 0), (0.1, 1), (1, 1), (3, 3)):
        assert num_held_out(share, 10) == count
    for share in (-0.1, 1.5, math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"data.held_out: found .*, wanted a share"):
            num_held_out(share, 10)


def measured(module: AgentModule, rollouts: list[Rollout], ranks: int = 1, **data: int) -> list[dict[str, float]]:
    """What each rank logs of held-out dialogues."""
    pretend = PretendRanks(ranks)

    def work(rank: int) -> dict[str, float]:
        held = SupervisedData.__new__(SupervisedData)
        held.held_out, held.batch_size, held.num_micro_batches = rollouts, 4, 2
        vars(held).update(data)
        seen = pretend.trainer(rank, module, global_step=1, datamodule=held, loggers=[])
        logged: dict[str, float] = {}
        HeldOutLoss().on_train_epoch_end(seen, pretend_module(module, logged))
        return logged

    return pretend.run(work)


def pretend_module(module: AgentModule, logged: dict[str, float]) -> AgentModule:
    """The module as one rank sees it: the same weights, and a log of its own."""
    own = AgentModule.__new__(AgentModule)
    own.__dict__.update(module.__dict__)
    own.__dict__["log_dict"] = lambda metrics, **_: logged.update(metrics)
    return own


def by_hand(module: AgentModule, rollouts: list[Rollout]) -> dict[str, float]:
    """Row by row, turn by turn."""
    loss, tokens, right, turns = 0.0, 0, 0, 0
    for rollout in rollouts:
        ids = torch.tensor([rollout.token_ids])
        with torch.no_grad():
            logprobs = torch.log_softmax(module.shared_base.base(ids).logits[0].float(), dim=-1)
        for turn in sorted(set(rollout.turn_ids) - {-1}):
            places = [at for at, each in enumerate(rollout.turn_ids) if each == turn]
            loss -= sum(float(logprobs[at - 1, ids[0, at]]) for at in places)
            tokens += len(places)
            turns += 1
            right += all(int(logprobs[at - 1].argmax()) == int(ids[0, at]) for at in places)
    return {"sft/held_out_loss": loss / tokens, "sft/held_out_turns": right / turns}


def written_greedily(module: AgentModule, rollout: Rollout) -> Rollout:
    """The rollout with the turns that the module itself would write, as long as they were."""
    ids, turns = list(rollout.prompt_ids), []
    for turn in rollout.turns:
        said = []
        for _ in turn.token_ids:
            with torch.no_grad():
                said.append(int(module.shared_base.base(torch.tensor([ids + said])).logits[0, -1].argmax()))
        turns.append(replace(turn, token_ids=tuple(said), forced_prefix=0))
        ids += [*said, *turn.observation_ids]
    return replace(rollout, turns=tuple(turns))


@pytest.fixture(scope="module")
def rollouts(tiny_base: Path) -> list[Rollout]:
    """Some that the module would write itself, and others."""
    module = module_of(tiny_base)
    given = exact_rollouts()[:9]
    return [written_greedily(module, each) for each in given[:4]] + given[4:]


@pytest.mark.parametrize("execution", [{}, {"max_tokens": 40}, {"packed": True}, {"logits_rows": 3}])
def test_loss_is_per_token_and_a_turn_is_right_as_a_whole(
    tiny_base: Path, rollouts: list[Rollout], execution: dict
) -> None:
    module = module_of(tiny_base, **execution)
    (found,) = measured(module, rollouts)
    assert found == pytest.approx(by_hand(module, rollouts), rel=1e-4)
    assert 0 < found["sft/held_out_turns"] < 1


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_log_the_same_weighted_means(tiny_base: Path, rollouts: list[Rollout], ranks: int) -> None:
    module = module_of(tiny_base)
    found = measured(module, rollouts, ranks)
    assert found[0] == pytest.approx(by_hand(module, rollouts), rel=1e-4)
    assert all(each == found[0] for each in found)


def test_a_rank_without_dialogues_waits_for_the_others(tiny_base: Path, rollouts: list[Rollout]) -> None:
    module = module_of(tiny_base)
    assert measured(module, rollouts[:1], 2)[1] == pytest.approx(by_hand(module, rollouts[:1]), rel=1e-4)
    assert measured(module, [], 2) == [{}, {}]


def test_the_likeliest_token_is_told(tiny_base: Path, rollouts: list[Rollout]) -> None:
    module = module_of(tiny_base)
    part = tensorize(rollouts, pad_id=module.pad_id)
    inputs = (part.token_ids_BT, part.attention_BT, part.mask_BT)
    logprobs_BT, likeliest_BT = module.shared_base.greedy_scores(*inputs, temperature=1.0)
    with torch.no_grad():
        scores = module.shared_base.policy_scores(*inputs, temperature=1.0)
    torch.testing.assert_close(logprobs_BT, scores.logprobs_BT)
    assert bool(likeliest_BT[:4][part.mask_BT[:4]].all()), "what it wrote itself"
    assert not bool(likeliest_BT[~part.mask_BT].any())
