"""A cut rollout is valued where its critic is taught, or not at all."""

from __future__ import annotations

import pytest
import torch

from medagent.errors import ConfigError
from medagent.training.advantages import GAE, BatchBaseline
from medagent.training.experience import turn_starts
from medagent.training.prepare import check_bootstrap, prepare
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.support import make_evidence_module, make_module, perturb

SEARCH = Turn((9, 10, 11), (-1.0,) * 3, "", "query", observation_ids=(20, 21))
CUT_SHORT = Turn((12, 13), (-1.0,) * 2, "")


def cut(stop: StopReason, *turns: Turn) -> Rollout:
    return Rollout(Question("q", ""), (5, 6, 7), turns, stop)


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


# (turns, stop reason, where it is valued): where the policy would have acted again, a critic is taught.
CUTS = [
    ((CUT_SHORT,), StopReason.MAX_TURN_TOKENS, "after"),
    ((SEARCH, CUT_SHORT), StopReason.MAX_TOTAL_TOKENS, "after"),
    ((SEARCH,), StopReason.MAX_TOTAL_TOKENS, "after"),
    ((SEARCH, CUT_SHORT), StopReason.MAX_TURNS, "before"),  # its last query is never searched
    ((SEARCH,), StopReason.MAX_TURNS, "after"),
    ((SEARCH, CUT_SHORT), StopReason.ANSWERED, ""),
    ((CUT_SHORT,), StopReason.MALFORMED, ""),
]


@pytest.mark.parametrize(("turns", "stop", "valued"), CUTS)
def test_a_cut_is_valued_after_its_last_token_or_before_it(turns, stop, valued) -> None:
    module = make_module()
    perturb(module)
    batch = prepare(
        module, [cut(stop, *turns)], estimator=GAE(gamma=0.5, whiten=False), reduce=same, truncated="bootstrap"
    )
    last = int(batch.mask_BT[0].nonzero()[-1])
    others = batch.rewards_BT.clone()
    others[0, last] = 0
    assert not others.any()
    assert bool(batch.rewards_BT[0, last] != 0) == bool(valued)
    if not valued:
        return
    ids = torch.cat([batch.token_ids_BT, torch.tensor([[30]])], dim=1)  # whatever the policy would have said
    read = torch.zeros_like(ids, dtype=torch.bool)
    read[0, last if valued == "before" else -1] = True
    with torch.no_grad():
        value = module.shared_base.values(ids, torch.ones_like(read), read).sum()
    assert float(batch.rewards_BT[0, last]) == pytest.approx(0.5 * float(value), abs=1e-6)


def test_a_critic_per_turn_is_not_read_inside_a_turn() -> None:
    """The critic of level turn is taught before turns alone."""
    module, estimator, inside = make_module(), GAE(level="turn"), cut(StopReason.MAX_TURN_TOKENS, CUT_SHORT)
    words = r"truncated is bootstrap with data.advantage GAE of level turn.*level: token.*critic_inputs: evidence"
    with pytest.raises(ConfigError, match=words):
        check_bootstrap(module, estimator)
    with pytest.raises(ConfigError, match=words):
        prepare(module, [inside], estimator=estimator, reduce=same, truncated="bootstrap")
    with pytest.raises(ConfigError, match="BatchBaseline.* has no value to bootstrap"):
        prepare(module, [inside], estimator=BatchBaseline(), reduce=same, truncated="bootstrap")


@pytest.mark.parametrize("level", ["token", "turn"])
def test_a_critic_that_sees_the_evidence_reads_it_where_it_is_taught(level) -> None:
    """Inside a turn it has the value of the turn's start; after a turn's passages that of the next turn."""
    module = make_evidence_module()
    perturb(module, 0.3)
    rollouts = [cut(StopReason.MAX_TURN_TOKENS, SEARCH, CUT_SHORT), cut(StopReason.MAX_TOTAL_TOKENS, SEARCH)]
    estimator = GAE(level=level, gamma=0.5, whiten=False)
    batch = prepare(module, rollouts, estimator=estimator, reduce=same, truncated="bootstrap")
    second = float(batch.values_BT[0][turn_starts(batch.mask_BT, batch.turn_ids_BT)[0]][1])
    assert second != 0
    for row in range(2):
        assert float(batch.rewards_BT[row].sum()) == pytest.approx(0.5 * second, abs=1e-6)
