"""Groups without spread are drawn again, and rewards are computed side by side."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from itertools import islice
from threading import Barrier, Event, current_thread, main_thread

import pytest

from medagent.agent import Agent
from medagent.errors import ConfigError
from medagent.training.data import RolloutData
from medagent.training.rollouts.questions import draws
from medagent.types import Question, Rollout, StopReason, Turn

TURN = Turn((9, 10), (-1.0, -1.0), "")


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Questions of each batch that an agent without a model samples; a rollout is three tokens."""
    batches: list[list[str]] = []

    def run_all(agent, jobs, *, on_done=None) -> list[Rollout]:
        batches.append([job.question.id for job in jobs])
        made = [Rollout(job.question, (5,), (TURN,), StopReason.ANSWERED, sample=job.sample) for job in jobs]
        for rollout in reversed(made):
            if on_done:
                on_done(rollout)
        return made

    monkeypatch.setattr(Agent, "run_all", run_all)
    return batches


def collected(data, iteration: int = 0, rank: int = 0, world_size: int = 1) -> list[Rollout]:
    return data.collect(None, temperature=1.0, iteration=iteration, version=0, rank=rank, world_size=world_size)


def names(rollouts: list[Rollout]) -> list[tuple[str, int]]:
    return [(rollout.question.id, rollout.sample) for rollout in rollouts]


class Nothing:
    """A benchmark and a retriever."""

    def questions(self) -> list[Question]:
        return [Question(f"q{number}", "?") for number in range(40)]

    def search(self, queries, *, top_k):
        return [[] for _ in queries]


def made(**settings) -> RolloutData:
    shape = {"num_questions": 16, "num_minibatches": 2, "num_micro_batches": 2}
    return RolloutData(Nothing(), Nothing(), **{**shape, **settings})


def resampling(reward, **settings):
    shape = {"num_questions": 8, "num_samples": 2, "num_minibatches": 1, "num_micro_batches": 1}
    return made(reward=reward, zero_std_groups="resample", **shape, **settings)


def test_a_group_without_spread_is_drawn_again_in_its_place(sampled) -> None:
    first = [question.id for question in made(num_questions=8).questions_of(0)]
    dull = set(first[2:5])

    def reward(rollout: Rollout) -> Rollout:
        return rollout.graded(float(rollout.question.id not in dull and rollout.sample % 2), success=False)

    data = resampling(reward)
    found = [question for question, _ in names(collected(data))[::2]]
    assert found[:2] + found[5:] == first[:2] + first[5:]
    assert len(set(found)) == 8
    assert [len(batch) // 2 for batch in sampled] == [8, 3]
    cost = data.samplings[0]
    assert cost.metrics["rollout/resampled_groups"] == 3
    assert (cost.action_tokens, cost.discarded_tokens) == (2 * 2 * 11, 3 * 2)


def test_draws_end_at_the_maximum_and_what_is_rounding_is_no_spread(sampled) -> None:
    def reward(rollout: Rollout) -> Rollout:  # 0.1 + 0.2 in turns, 0.3 at the end
        paid = replace(rollout, turns=(replace(TURN, reward=0.1), replace(TURN, reward=0.2)))
        return paid if rollout.sample % 2 else rollout.graded(0.3, success=False)

    data = resampling(reward, max_num_gen_batches=3)
    assert len(collected(data)) == 16
    assert [len(batch) for batch in sampled] == [16, 16, 16]
    assert data.samplings[0].metrics["rollout/resampled_groups"] == 16
    for setting in ({"max_num_gen_batches": 1}, {"reward_concurrency": 0}):
        with pytest.raises(ConfigError, match=f"data.{next(iter(setting))}: found {next(iter(setting.values()))}"):
            made(**setting)


def test_draws_follow_from_seed_and_iteration_and_ranks_share_them_equally(sampled) -> None:
    def reward(rollout: Rollout) -> Rollout:
        hard = sum(map(ord, rollout.question.id)) % 2
        return rollout.graded(float(hard and rollout.sample % 2), success=False)

    went_on = resampling(reward)
    runs = [names(collected(went_on, iteration)) for iteration in range(3)]
    assert names(collected(resampling(reward), 2)) == runs[2], "as a resumed run"
    assert names(collected(resampling(reward, seed=1), 2)) != runs[2]
    assert len({tuple(run) for run in runs}) == 3
    shares = [names(collected(resampling(reward), 2, rank, 2)) for rank in range(2)]
    assert list(map(len, shares)) == [8, 8]
    assert not set(shares[0]) & set(shares[1])
    asked = Nothing().questions()
    others = [[each.id for each, _ in islice(draws(asked[:1], asked, seed=0, iteration=at), 40)] for at in (0, 0, 1)]
    assert others[0] == others[1] != others[2]
    assert len(set(others[2])) == 40, "those that were not asked come first"
    alone = names(collected(made(num_questions=400, num_samples=1, reward=reward)))
    assert len(set(alone)) == 400, "a question that comes again has other samples"


def test_rewards_are_computed_side_by_side_and_stay_in_order(sampled) -> None:
    together = Barrier(4)

    def reward(rollout: Rollout) -> Rollout:
        together.wait(10)
        assert current_thread() is not main_thread()
        return rollout.graded(float(rollout.sample), success=False)

    data = made(num_questions=8, num_samples=2, reward=reward, reward_concurrency=4)
    found = collected(data)
    assert names(found) == names(collected(made(num_questions=8, num_samples=2)))
    assert all(rollout.reward == rollout.sample for rollout in found)
    assert data.samplings[0].metrics["time/reward"] >= 0


def test_one_reward_at_once_stays_in_its_thread_and_its_time_is_apart_from_sampling(sampled) -> None:
    def reward(rollout: Rollout) -> Rollout:
        assert current_thread() is main_thread()
        time.sleep(0.01)
        return rollout.graded(0.0, success=False)

    data = made(reward=reward)
    collected(data)
    assert data.samplings[0].metrics["time/reward"] > 0.15 > data.samplings[0].seconds
    assert "rollout/resampled_groups" not in data.samplings[0].metrics


def test_of_several_rewards_that_raise_the_first_is_named(sampled) -> None:
    third, ninth = (made().questions_of(0)[at].id for at in (2, 8))
    late = Event()

    def reward(rollout: Rollout) -> Rollout:
        if rollout.question.id == ninth:
            late.set()
            raise TimeoutError("the judge is away")
        if rollout.question.id == third:
            late.wait(10)
            raise KeyError("score")
        return rollout.graded(0.0, success=False)

    with pytest.raises(ConfigError, match=rf"\(function\), question {third}, sample 0: raised KeyError: 'score'"):
        collected(made(reward=reward, reward_concurrency=16))


@pytest.mark.usefixtures("heard")
def test_an_interrupt_waits_for_no_reward(sampled) -> None:
    begun, never = [], Event()

    def reward(rollout: Rollout) -> Rollout:
        begun.append(rollout)
        os.kill(os.getpid(), signal.SIGINT)
        never.wait(20)
        return rollout

    data = made(reward=reward, reward_concurrency=2)
    since = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        collected(data)
    assert time.monotonic() - since < 10
    never.set()
    time.sleep(0.2)
    assert len(begun) <= 2, "what waits is not begun"
