"""What a critic that sees the evidence knows, and that the policy's side of training does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from medagent.errors import ConfigError
from medagent.retrieval.passages import Hit, Passage
from medagent.training.advantages import GAE
from medagent.training.execution import Execution
from medagent.training.experience import loss_weights
from medagent.training.forward import NUM_EVIDENCE_FEATURES
from medagent.training.module import AgentModule
from medagent.training.prepare import evidence, evidence_of, prepare
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.support import gradients, make_evidence_module


def hit(name: str, text: str = "nothing of use") -> Hit:
    return Hit(Passage(id=name, title="", text=text, source=""), score=1.0)


def turn(*hits: Hit) -> Turn:
    return Turn(token_ids=(1,), logprobs=(0.0,), text="", hits=hits, observation_ids=(2,) if hits else ())


def rollout(question: Question, *turns: Turn) -> Rollout:
    return Rollout(question, prompt_ids=(3,), turns=turns, stop_reason=StopReason.ANSWERED)


def test_evidence_by_hand() -> None:
    question = Question("q", "?", options=("Zinc", "Copper salts"), answer="B", gold_passage_ids=("cause", "drug"))
    found = rollout(
        question,
        turn(hit("more"), hit("cause"), hit("other", "zinc")),
        turn(hit("cause")),
        turn(hit("other"), hit("drug", "It is treated with a copper salt.")),
        turn(hit("other")),
        turn(),
    )
    assert evidence(found) == [
        [1, 0, 0, 0, 0, 0, 0, 1, 0, 0],
        [0, 1, 0, 0, 0, 0.5, 0, 1, 0.5, 0.5],
        [0, 0, 1, 0, 0, 0.5, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 1, 1, 1, 0.5, 1],
        [0, 0, 0, 1, 1, 1, 1, 1, 0, 1],
        [0, 0, 0, 1, 1, 1, 1, 1, 0, 1],
    ]
    open_question = Question("o", "?", answer="iron", aliases=("Fe deficiency",))
    unnamed = rollout(open_question, turn(hit("x", "a deficiency of Fe")), turn())
    assert [row[TURNS_END:] for row in evidence(unnamed)] == [[0] * 6, [1, *[0] * 5], [1, *[0] * 5]]
    ungraded = rollout(Question("u", "?", options=("Zinc", "Copper")), turn(hit("x", "zinc")), turn())
    assert [row[TURNS_END:] for row in evidence(ungraded)] == [[0] * 6] * 3
    both_BKF = evidence_of([found, unnamed])
    assert both_BKF.shape == (2, 6, NUM_EVIDENCE_FEATURES["evidence"])
    assert both_BKF[1, 3:].abs().max() == 0


def test_how_the_other_rollouts_of_a_group_ended_by_hand() -> None:
    """Their mean return, turns' rewards included, before every turn; never its own, which the turns decide."""
    question = Question("q", "?", options=("Zinc", "Copper"), answer="B")
    several = [replace(rollout(question, turn(), turn()), reward=each) for each in (1.0, 0.2, 0.5)]
    several[2] = replace(several[2], turns=(replace(turn(), reward=0.1), turn()))
    alone = replace(rollout(question, turn()), reward=0.7)
    seen_BKF = evidence_of([several[0], alone, *several[1:]], torch.tensor([1, 0, 1, 1]))
    assert seen_BKF.shape == (4, 3, NUM_EVIDENCE_FEATURES["evidence_and_group"])
    assert seen_BKF[:, 0, -1].tolist() == pytest.approx([0.4, 0.0, 0.8, 0.6])
    assert torch.equal(seen_BKF[0, :, -1], seen_BKF[0, :1, -1].expand(3))
    without_BKF = evidence_of([several[0], alone, *several[1:]])
    assert torch.equal(seen_BKF[..., :-1], without_BKF)


def test_a_group_is_a_questions_samples(rollouts) -> None:
    """With two samples a group, each of a question's four rollouts sees one other."""
    module = make_evidence_module("evidence_and_group")
    four = [replace(rollouts[0], sample=sample, reward=sample / 10) for sample in range(4)]
    batch = prepare(module, four, estimator=GAE(level="turn"), reduce=lambda x: x, num_samples=2)
    assert batch.evidence_BKF[:, 0, -1].tolist() == pytest.approx([0.1, 0.0, 0.3, 0.2])
    assert module.shared_base.evidence_head[0].in_features == batch.evidence_BKF.shape[-1]


TURNS_END = 4


def ready(module: AgentModule, rollouts, **settings):
    return prepare(module, rollouts, estimator=GAE(whiten=False, level="turn"), reduce=lambda x: x, **settings)


def turn_starts(batch):
    return GAE(level="turn").value_mask(batch.mask_BT, batch.turn_ids_BT)


def test_the_critic_learns_what_only_the_evidence_tells(rollouts, tmp_path) -> None:
    """Rewards that say no more than whether a passage that supports the gold answer was read before the last turn."""
    module = make_evidence_module(critic_lr=0.1)
    seen = [replace(r, reward=evidence(r)[len(r.turns) - 1][TURNS_END]) for r in rollouts if len(r.turns) > 1][:8]
    assert 0 < sum(r.reward for r in seen) < len(seen)
    batch = ready(module, seen)
    value_mask_BT = turn_starts(batch)
    assert batch.values_BT.abs().max() == 0, "an untrained critic says nothing"
    gradients(module, [replace(batch, critic_only=True)] * 25, tmp_path)
    again = ready(module, seen)
    last_BT = value_mask_BT & (again.turn_ids_BT == again.turn_ids_BT.max(dim=1, keepdim=True).values)
    right_B = torch.tensor([bool(r.reward) for r in seen])
    value_B = again.values_BT[last_BT]
    assert value_B[right_B].min() > 0.5 > value_B[~right_B].max()


def test_the_critic_learns_what_only_the_group_tells(rollouts, tmp_path) -> None:
    """Rewards by question, whatever was read: all that tells them is how the question's other rollout ended."""
    module = make_evidence_module("evidence_and_group", critic_lr=0.1)
    rewards = [float(number // 2 % 2) for number in range(8)]  # whether a search was forced goes by number % 2
    pairs = [replace(r, reward=w, sample=s) for r, w in zip(rollouts, rewards, strict=False) for s in (0, 1)]
    batch = ready(module, pairs, num_samples=2)
    gradients(module, [replace(batch, critic_only=True)] * 25, tmp_path)
    again = ready(module, pairs, num_samples=2)
    value_mask_BT = turn_starts(again)
    right_BT = value_mask_BT & torch.tensor([bool(r.reward) for r in pairs])[:, None]
    assert again.values_BT[right_BT].min() > 0.5 > again.values_BT[value_mask_BT & ~right_BT].max()


def test_the_evidence_critic_makes_no_pass_of_the_base(rollouts, tmp_path) -> None:
    """Neither values nor a pass of the critic's own, which leaves the policy as it is, moments or not."""
    module, further = make_evidence_module(), make_evidence_module()
    batch = ready(module, rollouts)
    gradients(module, [batch], tmp_path)
    module.shared_base.base.register_forward_hook(lambda *_: pytest.fail("the base was passed"))
    value_mask_BT = turn_starts(batch)
    values_BT = module.shared_base.values(
        batch.token_ids_BT, batch.attention_BT, value_mask_BT, batch.evidence_at(value_mask_BT)
    )
    assert values_BT[value_mask_BT].abs().min() > 0
    assert values_BT[~value_mask_BT].abs().max() == 0
    gradients(further, [batch, replace(batch, critic_only=True)], tmp_path)
    pairs = zip(module.shared_base.policy_parameters(), further.shared_base.policy_parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    pairs = zip(module.shared_base.critic_parameters(), further.shared_base.critic_parameters(), strict=True)
    assert not any(torch.equal(one, other) for one, other in pairs)


def test_evidence_never_reaches_the_policy(rollouts, tmp_path) -> None:
    """With the advantages held, the evidence reaches the critic's own network and no parameter of the policy."""
    one, other = (make_evidence_module() for _ in range(2))
    batch = ready(one, rollouts)
    changed = replace(batch, evidence_BKF=1 - batch.evidence_BKF)
    snoops = [gradients(module, [each] * 2, tmp_path) for module, each in ((one, batch), (other, changed))]
    torch.testing.assert_close(snoops[0].policy, snoops[1].policy, rtol=0, atol=0)
    assert not torch.equal(
        torch.cat([p.flatten() for p in one.shared_base.critic_parameters()]),
        torch.cat([p.flatten() for p in other.shared_base.critic_parameters()]),
    )


def test_a_cut_rollout_is_valued_by_the_evidence_of_its_end(rollouts) -> None:
    module = make_evidence_module()
    with torch.no_grad():  # value = the share of gold passages read, alone
        first, last = module.shared_base.evidence_head[0], module.shared_base.evidence_head[2]
        for parameter in (first.weight, first.bias, last.weight):
            parameter.zero_()
        first.weight[0, TURNS_END + 1], first.bias[0], last.weight[0, 0] = 1.0, 100.0, 1.0
        last.bias.fill_(-100.0)
    inside = [replace(r, stop_reason=StopReason.MAX_TURN_TOKENS, reward=0.0) for r in rollouts]
    after = [
        replace(r, stop_reason=StopReason.MAX_TOTAL_TOKENS, turns=r.turns[:-1]) for r in inside if len(r.turns) > 1
    ]
    assert after, "some were cut before a turn that no token was left for"
    cut = [*inside, *after]
    batch = ready(module, cut, truncated="bootstrap")
    for row, each in enumerate(cut):
        # Inside a turn nothing is known that was not known before it.
        known = evidence(each)[-2 if row < len(inside) else -1]
        assert float(batch.rewards_BT[row].sum()) == pytest.approx(known[TURNS_END + 1], abs=1e-4)
        firsts = batch.values_BT[row][turn_starts(batch)[row]]
        assert firsts.tolist() == pytest.approx([sight[TURNS_END + 1] for sight in evidence(each)[:-1]], abs=1e-4)


@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize(
    "execution", [Execution(max_tokens=600), Execution(packed=True, max_tokens=900)], ids=["split", "packed"]
)
def test_execution_settings_do_not_change_what_the_critic_learns(rollouts, tmp_path, level, execution) -> None:
    """Rows that are sorted, split or packed keep their own evidence, a value a token or a turn."""
    estimator, moved = GAE(whiten=False, level=level), []
    for each in (Execution(), execution):
        module = make_evidence_module(execution=each)
        for critic_only in (True, False, True):
            batch = prepare(module, rollouts, estimator=estimator, reduce=lambda x: x)
            weights = {"reduction": "token-mean", "num_tokens": 100, "num_rollouts": 16, "factor": 1.0}
            value_mask_BT = estimator.value_mask(batch.mask_BT, batch.turn_ids_BT)
            batch = replace(
                batch,
                loss_weights_BT=loss_weights(batch.mask_BT, **weights),
                value_weights_BT=loss_weights(value_mask_BT, **weights),
            )
            gradients(module, [replace(batch, critic_only=critic_only)], tmp_path)
        moved.append([batch.values_BT, *module.shared_base.critic_parameters()])
    assert moved[0][0].abs().max() > 0.01
    for one, two in zip(*moved, strict=True):
        assert (one - two).norm() <= 0.01 * one.norm(), "in norm: Adam makes whole rates of rounding"


def test_the_evidence_critic_is_kept_in_checkpoints(rollouts, tmp_path) -> None:
    module = make_evidence_module()
    gradients(module, [ready(module, rollouts)], tmp_path)
    checkpoint: dict[str, object] = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    other = make_evidence_module()
    other.on_load_checkpoint(checkpoint)
    other.load_state_dict(checkpoint["state_dict"])  # type: ignore[arg-type]
    assert module.has_critic
    for one, two in zip(module.shared_base.critic_parameters(), other.shared_base.critic_parameters(), strict=True):
        assert one.abs().max() > 0
        assert torch.equal(one, two)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"critic_inputs: found evidence.*critic_lora null"):
        AgentModule(critic_inputs="evidence")
    assert not AgentModule(critic_lora=None).has_critic
