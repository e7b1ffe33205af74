"""How dialogues are dealt to imitate: to ranks, steps and epochs, each token with one weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from medagent.training.experience import Experience
from medagent.training.lora import LoraSettings
from medagent.training.module import AgentModule
from medagent.training.sft.supervised import SupervisedData, _Pass
from tests.training.exact import exact_rollouts
from tests.training.pretend import PretendRanks

RANKS, MICRO_BATCHES = 3, 2


@pytest.fixture(scope="module")
def module(tiny_base: Path) -> AgentModule:
    torch.manual_seed(0)
    return AgentModule(base_model=str(tiny_base), policy_lora=LoraSettings(2, 4), critic_lora=None)


def imitated(module: AgentModule, ranks: int, *, epoch: int = 0, seed: int = 0) -> list[list[Experience]]:
    """What each rank imitates in an epoch."""
    pretend = PretendRanks(ranks)

    def work(rank: int) -> list[Experience]:
        data = SupervisedData.__new__(SupervisedData)
        data.items, data.batch_size, data.num_micro_batches, data.seed = exact_rollouts(), 4, MICRO_BATCHES, seed
        return list(_Pass(data, pretend.trainer(rank, module, current_epoch=epoch)))

    return pretend.run(work)


def rows_of(batches: list[Experience]) -> list[tuple[int, ...]]:
    return [
        tuple(ids[kept].tolist())
        for batch in batches
        for ids, kept in zip(batch.token_ids_BT, batch.attention_BT, strict=True)
    ]


def test_imitation_shares_dialogues_and_counts_the_tokens_of_all_ranks(module: AgentModule) -> None:
    several = imitated(module, RANKS)
    rows = [row for batches in several for row in rows_of(batches)]
    assert sorted(rows) == sorted(tuple(rollout.token_ids) for rollout in exact_rollouts())
    for step in range(2):
        parts = [batches[step] for batches in several]
        assert all(len(part.micro_batches) == MICRO_BATCHES for part in parts)
        weights = {round(float(w), 6) for part in parts for w in part.loss_weights_BT[part.mask_BT]}
        tokens = sum(int(part.mask_BT.sum()) for part in parts)
        assert weights == {round(RANKS / tokens, 6)}, "the mean over the tokens of the whole step"


@pytest.mark.parametrize(("dialogues", "ranks", "steps"), [(23, 3, 1), (24, 3, 2), (9, 2, 1), (7, 1, 1)])
def test_all_ranks_make_the_same_number_of_steps(module: AgentModule, dialogues: int, ranks: int, steps: int) -> None:
    data = SupervisedData.__new__(SupervisedData)
    data.items, data.batch_size, data.num_micro_batches = exact_rollouts()[:1] * dialogues, 4, MICRO_BATCHES
    pretend = PretendRanks(ranks)
    lengths = [len(_Pass(data, pretend.trainer(rank, module))) for rank in range(ranks)]
    assert lengths == [steps] * ranks


def test_imitation_deals_each_epoch_anew(module: AgentModule) -> None:
    dealt_rows = [
        tuple(frozenset(rows_of([batch])) for batch in batches)
        for epoch, seed in ((0, 0), (1, 0), (2, 0), (0, 1))
        for batches in imitated(module, 1, epoch=epoch, seed=seed)
    ]
    assert len(set(dealt_rows)) == 4
    assert imitated(module, 1)[0][0].token_ids_BT.equal(imitated(module, 1)[0][0].token_ids_BT)
