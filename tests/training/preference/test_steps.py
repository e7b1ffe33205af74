"""An optimizer step takes the mean over its pairs, however many micro-batches and passes it is cut into."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from medagent.protocol import TurnProtocol
from medagent.retrieval.retriever import Retriever
from medagent.training.agent_data import AgentSettings
from medagent.training.batching import pack_rows
from medagent.training.execution import Execution
from medagent.training.preference.data import PreferenceData, to_prefer
from medagent.training.preference.losses import TDPO2
from medagent.training.preference.pairs import Pairs, PreferencePair
from medagent.types import Question
from tests.training.preference.support import module_of, pairs
from tests.training.support import AGENT, Snoop, quiet_trainer


class Made(Pairs):
    """The pairs of `support`."""

    def questions(self, protocol: TurnProtocol) -> list[Question]:
        return [pair.question for pair in pairs()]

    def read(self, folder: Path, settings: AgentSettings, tokenizer: PreTrainedTokenizerBase) -> list[PreferencePair]:
        return pairs()


def first_gradient(tmp_path: Path, *, parts: int, **execution: object) -> torch.Tensor:
    module = module_of(TDPO2(0.3, 0.7), **execution)
    nowhere: Retriever = None  # type: ignore[assignment]  # nothing is searched
    data = PreferenceData(Made(), nowhere, AGENT, batch_size=3, num_micro_batches=parts, held_out=0)
    snoop = Snoop()
    quiet_trainer(tmp_path, callbacks=[snoop]).fit(module, datamodule=data)
    assert len(snoop.policy) == 1
    return snoop.policy[0]


@pytest.mark.parametrize("execution", [{"max_tokens": 0}, {"max_tokens": 40}, {"max_tokens": 40, "packed": True}])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_step_is_the_mean_over_its_pairs(parts: int, execution: dict[str, object], tmp_path: Path) -> None:
    module = module_of(TDPO2(0.3, 0.7), max_tokens=0)
    batch = to_prefer(pairs(), pad_id=module.pad_id, weight=1.0)
    loss = module.loss_terms(batch)[0](batch) / 3
    wanted = torch.cat([each.flatten() for each in torch.autograd.grad(loss, module.shared_base.policy_parameters())])
    assert torch.allclose(first_gradient(tmp_path, parts=parts, **execution), wanted, atol=1e-7)


@pytest.mark.parametrize("shape", [{}, {"packed": True}, {"shared_prefixes": True}])
def test_no_pass_divides_a_pair(shape: dict[str, bool]) -> None:
    batch = to_prefer(pairs(), pad_id=0, weight=1.0)
    for limit, count in ((0, 1), (10_000, 1), (1, 3)):
        execution = Execution(max_tokens=limit, **shape)
        groups = pack_rows(execution, batch.token_ids_BT, batch.attention_BT, batch.groups_B)
        assert len(groups) == count
        assert sorted(row for rows in groups for row in rows) == list(range(6))
        assert all(sorted(row ^ 1 for row in rows) == sorted(rows) for rows in groups), "2 n and 2 n + 1 are together"


def test_observations_and_forced_tokens_are_no_actions() -> None:
    batch = to_prefer(pairs(), pad_id=0, weight=1.0)
    acted = [pair_rollout.num_action_tokens for pair in pairs() for pair_rollout in (pair.chosen, pair.rejected)]
    assert batch.mask_BT.sum(dim=1).tolist() == acted
    sides = (batch.advantages_BT * batch.mask_BT).sum(dim=1)
    assert sides.tolist() == [count * (1 if row % 2 == 0 else -1) for row, count in enumerate(acted)]
