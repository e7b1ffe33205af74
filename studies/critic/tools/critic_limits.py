"""The knowledge that a critic could have at the start of a turn, and what the network's states there hold.

No critic is trained. Models are fitted on rollouts of a trained agent for 1,536 training questions, one each. They are
judged on 240 validation and 240 other training questions, 16 rollouts each, against the ceiling of
studies/critic/tools/critic.py. Three models are fitted:

- boosted trees on features that an observer of question and passages can compute;
- the same with what a critic may see besides (training/prepare.py);
- ridge regression on the policy's hidden states.

Printed is the explained variance of the reward at the start of turns, weighted by action tokens.

    python -m studies.critic.tools.critic_limits runs/demo-0        (a folder that `medagent demo` left)
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge

from benchmarks.common import describe_machine
from medagent.agent_folder import load_agent
from medagent.models.causal_lm import hidden_states
from medagent.policies.huggingface import HFPolicy
from medagent.retrieval.controls import UnreliableRetriever
from medagent.retrieval.search import HybridRetriever
from medagent.starter.world import World
from medagent.training.prepare import evidence
from medagent.training.rewards import OutcomeReward
from medagent.types import Rollout
from studies.critic.tools.critic import SAMPLES, ceiling, explained, repeated


def features(rollout: Rollout, turn: int) -> list[float]:
    """The knowledge of an observer before a turn, as numbers.

    They are the question, how much was written, the last query, and whether the results name an option.
    """
    question, before = rollout.question, rollout.turns[:turn]
    hits = [hit for each in before for hit in each.hits]
    read = " ".join(hit.passage.text for hit in hits).lower()
    last = " ".join(hit.passage.text for hit in before[-1].hits).lower() if before else ""
    query = (before[-1].query or "").lower() if before else ""
    words = set(query.split())
    return [
        turn,
        question.kind == "two_hop",
        len(question.text),
        *sorted(len(option) for option in question.options),
        sum(len(each.text) for each in before),
        sum(option.lower() in read for option in question.options),
        sum(option.lower() in last for option in question.options),
        sum(word in last for word in words) / max(1, len(words)),
        sum(hit.passage.title.lower() in query for hit in hits),
        sum(hit.passage.title.lower() in question.text.lower() for hit in hits),
        len({hit.passage.title for hit in hits}),
    ]


@torch.no_grad()
def states(policy: HFPolicy, rollout: Rollout) -> list[np.ndarray]:
    """The policy's last hidden state before each turn's first token."""
    hidden = hidden_states(policy.model, input_ids=torch.tensor([rollout.token_ids]))[0]
    turns = np.array(rollout.turn_ids)
    return [hidden[int(np.argmax(turns == turn)) - 1].numpy() for turn in range(len(rollout.turns))]


def main() -> None:
    """Sample, fit on the first set, and print what each explains of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="folder that `medagent demo` left, such as runs/demo-0")
    options = parser.parse_args()
    print(describe_machine())
    retriever = UnreliableRetriever(HybridRetriever(str(options.demo / "index-train")), share=0.05)
    agent = load_agent(options.demo / "agent", retriever=retriever)
    assert isinstance(agent.policy, HFPolicy)
    world = World.load()
    train, validation = (world.questions(split, limit_per_kind=10**6) for split in ("train", "validation"))
    random.Random(0).shuffle(train)
    random.Random(1).shuffle(validation)
    reward = OutcomeReward(well_formed=0.2)
    sets = {
        "fitted": repeated(agent, train[:1536], reward, count=1, seed=1),
        "validation questions": repeated(agent, validation[:240], reward, count=SAMPLES, seed=2),
        "other training questions": repeated(agent, train[1536:1776], reward, count=SAMPLES, seed=3),
    }
    inputs = {
        "boosted trees on observable features": {
            name: np.array([features(r, turn) for r in rollouts for turn in range(len(r.turns))])
            for name, rollouts in sets.items()
        },
        "the same and the evidence": {
            name: np.array([features(r, turn) + evidence(r)[turn] for r in rollouts for turn in range(len(r.turns))])
            for name, rollouts in sets.items()
        },
        "ridge on the policy's states": {
            name: np.array([state for r in rollouts for state in states(agent.policy, r)])
            for name, rollouts in sets.items()
        },
    }
    rewards = {name: np.array([r.reward for r in rs for _ in r.turns]) for name, rs in sets.items()}
    tokens = {name: np.array([len(t.token_ids) for r in rs for t in r.turns], float) for name, rs in sets.items()}
    trees = HistGradientBoostingRegressor(max_iter=80, learning_rate=0.05, min_samples_leaf=40, max_leaf_nodes=8)
    models = (trees, trees, Ridge(alpha=300.0))
    for (what, x), model in zip(inputs.items(), models, strict=True):
        scale = x["fitted"].std(axis=0) + 1e-6
        model.fit(x["fitted"] / scale, rewards["fitted"], sample_weight=tokens["fitted"] / tokens["fitted"].mean())
        for name, rollouts in list(sets.items())[1:]:
            best = ceiling(rollouts)
            values_S, total = torch.tensor(model.predict(x[name] / scale))[best.shared], best.share()
            found = explained(values_S, best.outcome_S, best.weight_S)
            print(f"{what:38s} {name:26s} {found:5.2f} of {total:.2f} = {found / total:.0%}")


if __name__ == "__main__":
    main()
