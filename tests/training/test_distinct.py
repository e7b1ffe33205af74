"""Whatever is drawn is drawn anew: by sample, repeat, question, iteration, rank and run, and equal calls alike."""

from __future__ import annotations

from collections import Counter

import pytest

from medagent.retrieval.controls import NoRetriever
from medagent.training.data import RolloutData
from medagent.training.experience import tensorize
from medagent.types import Rollout
from tests.recording import Dialogue, RecordingPolicy
from tests.training.support import make_data

TEMPERATURE = 0.65


def asked(
    data: RolloutData, iteration: int, *, rank: int = 0, world_size: int = 1, version: int = 3
) -> list[tuple[Dialogue, Rollout]]:
    """Each dialogue as the policy saw it, with its rollout, in the order of both."""
    policy = RecordingPolicy(lambda read, turn: "<answer>(A)</answer>")
    rollouts = data.collect(
        policy, temperature=TEMPERATURE, iteration=iteration, version=version, rank=rank, world_size=world_size
    )
    return list(zip(policy.dialogues, rollouts, strict=True))


def made(**settings) -> RolloutData:
    return make_data(NoRetriever(), **{"num_questions": 12, "num_samples": 3, **settings})


def seeds(pairs: list[tuple[Dialogue, Rollout]]) -> list[int]:
    return [dialogue.seed for dialogue, _ in pairs]


def keys(pairs: list[tuple[Dialogue, Rollout]]) -> list[tuple[str, int]]:
    return [(rollout.question.id, rollout.sample) for _, rollout in pairs]


def test_every_dialogue_of_an_iteration_has_a_seed_of_its_own() -> None:
    pairs = asked(made(), 0)
    assert len(set(seeds(pairs))) == len(pairs) == 36
    assert Counter(sample for _, sample in keys(pairs)) == {0: 12, 1: 12, 2: 12}
    assert len(set(keys(pairs))) == 36
    assert {dialogue.temperature for dialogue, _ in pairs} == {TEMPERATURE}
    assert {rollout.policy_version for _, rollout in pairs} == {3}
    assert seeds(asked(made(), 0)) == seeds(pairs), "a resumed run asks the same"


def test_a_question_that_comes_again_is_sampled_anew() -> None:
    """More questions than there are: each repeat has other samples, and a group of its own."""
    data = made()
    total = len(data.questions)
    data.num_questions = 2 * total + 4
    pairs = asked(data, 0)
    assert len(set(seeds(pairs))) == len(pairs) == 3 * data.num_questions
    by_question: dict[str, list[int]] = {}
    for name, sample in keys(pairs):
        by_question.setdefault(name, []).append(sample)
    assert {tuple(samples) for samples in by_question.values()} == {tuple(range(6)), tuple(range(9))}
    groups = tensorize([rollout for _, rollout in pairs], pad_id=0, num_samples=3).groups_B.tolist()
    assert set(Counter(groups).values()) == {3}
    blocks = {
        (rollout.question.id, rollout.sample // 3): group for (_, rollout), group in zip(pairs, groups, strict=True)
    }
    assert len(set(blocks.values())) == len(blocks) == data.num_questions


def test_every_iteration_draws_anew_even_for_the_same_questions() -> None:
    data = made()
    data.num_questions = len(data.questions)
    found = [asked(data, iteration) for iteration in range(3)]
    assert len({frozenset(keys(pairs)) for pairs in found}) == 1, "the same questions"
    together = [seed for pairs in found for seed in seeds(pairs)]
    assert len(set(together)) == len(together)


def test_every_run_draws_anew() -> None:
    data = [made(seed=seed) for seed in range(3)]
    for each in data:
        each.num_questions = len(each.questions)
    together = [seed for each in data for seed in seeds(asked(each, 0))]
    assert len(set(together)) == len(together)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_share_out_what_one_would_ask(world_size: int) -> None:
    whole = asked(made(), 5)
    shares = [asked(made(), 5, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [len(share) for share in shares] == [36 // world_size] * world_size
    questions = [{name for name, _ in keys(share)} for share in shares]
    assert sum(map(len, questions)) == len(set.union(*questions)) == 12, "all samples of a question are on one rank"
    together = {(key, seed) for share in shares for key, seed in zip(keys(share), seeds(share), strict=True)}
    assert together == set(zip(keys(whole), seeds(whole), strict=True))
