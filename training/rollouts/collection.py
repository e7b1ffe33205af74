"""Sampling and grading of an iteration's rollouts, and those that wait for their update.

Groups without spread may be drawn again. With staleness s an iteration trains on rollouts of the policy of s iterations
ago, which wait as whole files.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any, TypeVar

import torch
from pydantic import ConfigDict, TypeAdapter

from medagent.agent import Agent, Job
from medagent.errors import ConfigError
from medagent.training.advantages import EQUAL, Reduce
from medagent.training.default_callbacks import tokens_to_sample
from medagent.training.experience import rollout_name, turn_rewards
from medagent.training.metrics import Largest, worst_of_ranks
from medagent.training.rewards import Reward, graded
from medagent.types import Rollout

Made = TypeVar("Made")


def in_daemon(work: Callable[[], Made], name: str, free: AbstractContextManager[Any] = nullcontext()) -> Future[Made]:
    """The result of `work`, which begins in a thread of its own once it enters `free`, such as a semaphore."""
    future: Future[Made] = Future()

    def run() -> None:
        with free:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except StopIteration as error:  # which asyncio's futures refuse, so whoever waits would hang
                    future.set_exception(RuntimeError(f"raised {error!r}"))
                except BaseException as error:  # raised again by whoever asks for the result
                    future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future


@dataclass
class SamplingCost:
    """What an iteration's rollouts cost on this rank, those of discarded groups too."""

    seconds: float = 0.0
    """Of sampling alone, without rewards."""
    action_tokens: int = 0
    discarded_tokens: int = 0
    """`tokens_to_sample` of discarded groups."""
    metrics: dict[str, float] = field(default_factory=dict)

    def over_ranks(self, others: Mapping[str, float], reduce: Reduce, largest: Largest) -> dict[str, float]:
        """The metrics over all ranks, with `others` of this rank, and the speed of the slowest."""
        sampling_s = largest(torch.tensor(self.seconds, dtype=torch.float64))
        tokens = reduce(torch.tensor(self.action_tokens, dtype=torch.float64))
        return {
            **worst_of_ranks({**self.metrics, **others}, reduce, largest),
            "throughput/action_tokens_per_s": float(tokens / sampling_s),
        }


def collect(
    agent: Agent, draws: Iterator[Sequence[Job]], reward: Reward, *, num_groups: int, concurrency: int, max_batches: int
) -> tuple[list[Rollout], SamplingCost]:
    """The graded rollouts of `num_groups` groups, and their cost. A draw is the jobs of one group.

    With `max_batches` above 1 groups without spread are drawn again, until so many batches were sampled.
    """
    groups: dict[int, list[Rollout]] = {}
    missing, cost, resampled, reward_s = list(range(num_groups)), SamplingCost(), 0, 0.0
    for batch in range(max_batches):
        cost.discarded_tokens += tokens_to_sample([rollout for place in missing for rollout in groups.get(place, [])])
        resampled += len(missing) if batch else 0
        began = time.perf_counter()
        drawn = {place: next(draws) for place in missing}
        rollouts, waited_s = _graded(agent, [job for jobs in drawn.values() for job in jobs], reward, concurrency)
        cost.seconds, reward_s = cost.seconds + time.perf_counter() - began - waited_s, reward_s + waited_s
        cost.action_tokens += num_actions(rollouts)
        left = iter(rollouts)
        groups |= {place: list(islice(left, len(jobs))) for place, jobs in drawn.items()}
        missing = [place for place in missing if batch + 1 < max_batches and not _has_spread(groups[place])]
        if not missing:
            break
    collected = [rollout for group in groups.values() for rollout in group]
    histories = agent.protocol.history_metrics(agent.policy, collected)
    cost.metrics = {**agent.search_stats.metrics(), **histories, "time/reward": reward_s}
    if max_batches > 1:
        cost.metrics["rollout/resampled_groups"] = float(resampled)
    return collected, cost


def num_actions(rollouts: Sequence[Rollout]) -> int:
    """Sampled tokens."""
    return sum(sum(rollout.loss_mask) for rollout in rollouts)


def _has_spread(group: Sequence[Rollout]) -> bool:
    """Whether the rollouts differ in what the advantage compares: the rewards of action tokens."""
    earned = [sum(turn_rewards(rollout).values()) for rollout in group]
    return max(earned) - min(earned) > EQUAL


def _graded(agent: Agent, jobs: list[Job], reward: Reward, concurrency: int) -> tuple[list[Rollout], float]:
    """The graded rollouts in the jobs' order, and the seconds that they took after sampling had ended.

    Of several rewards that raise, the error of the first in this order is raised.
    """
    if concurrency == 1:  # in this thread: a reward need not be thread-safe
        rollouts, sampled = agent.run_all(jobs), time.perf_counter()
        return [graded(reward, rollout) for rollout in rollouts], time.perf_counter() - sampled
    futures: dict[str, Future[Rollout]] = {}
    free = BoundedSemaphore(concurrency)

    def start(rollout: Rollout) -> None:
        futures[rollout_name(rollout)] = in_daemon(lambda: graded(reward, rollout), "reward", free)

    try:
        rollouts, sampled = agent.run_all(jobs, on_done=start), time.perf_counter()
        return [_result(futures[rollout_name(rollout)]) for rollout in rollouts], time.perf_counter() - sampled
    finally:
        for future in futures.values():
            future.cancel()


def _result(future: Future[Rollout]) -> Rollout:
    """The result, awaited in short turns: the signal of an interrupt may wake another thread than this one."""
    while not wait([future], timeout=0.5).done:
        pass
    return future.result()


FOLDER = "stale_rollouts"
EXACT = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
ROLLOUTS = TypeAdapter(list[Rollout], config=EXACT)


class Background:
    """At most one piece of work beside the trainer; whoever needs its result waits for it first."""

    def __init__(self) -> None:
        self._work: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Do it in a thread of its own, which ends with the process."""
        self.wait()
        self._work = in_daemon(work, "rollouts")

    def wait(self) -> None:
        """Return when it is done; raises what it raised."""
        work, self._work = self._work, None
        if work is not None:
            work.result()


class StaleRollouts:
    """The rollouts of coming iterations in `RUN/stale_rollouts`; with `overlap` the latest are sampled beside."""

    def __init__(self, run: Path, *, staleness: int, rank: int, background: Background, overlap: bool = False) -> None:
        self._folder, self._staleness, self._rank = run / FOLDER, staleness, rank
        self._background, self._overlap = background, overlap

    def take(
        self, iteration: int, *, last: int, collect: Callable[[int], list[Rollout]], costs: dict[int, SamplingCost]
    ) -> list[Rollout]:
        """The rollouts that `iteration` trains on.

        `collect` rolls out those up to iteration + s, at most `last`, that have no file. What they cost, as far as
        `collect` notes it in `costs`, is kept with them. The background must be done.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for coming in range(iteration, min(iteration + self._staleness, last) + 1):
            path = self._path(coming)
            if path.exists():
                continue

            def roll_out(path: Path = path, coming: int = coming) -> None:
                rollouts = collect(coming)
                if coming in costs:
                    path.with_suffix(".json").write_text(json.dumps(asdict(costs[coming])))
                write_rollouts(path, rollouts)

            if self._overlap and coming > iteration:
                self._background.start(roll_out)
            else:
                roll_out()
        # The one before is kept: a torn newest checkpoint sends the run back by one iteration.
        for path in self._folder.glob(f"*.rank{self._rank}.json*"):
            if int(path.name.split(".")[0]) < iteration - 1:
                path.unlink()
        if (noted := self._path(iteration).with_suffix(".json")).exists():
            costs[iteration] = SamplingCost(**json.loads(noted.read_text()))
        return read_rollouts(self._path(iteration))

    def _path(self, iteration: int) -> Path:
        return self._folder / f"{iteration:06d}.rank{self._rank}.jsonl"


def check_ranks(run: Path, world_size: int) -> None:
    """Raise ConfigError if other ranks' rollouts wait in the run's folder."""
    ranks = len({path.name.split(".")[1] for path in (run / FOLDER).glob("*.jsonl")})
    if ranks not in (0, world_size):
        raise ConfigError(
            f"data.off_policy.staleness: found rollouts of {ranks} ranks in {run / FOLDER}, wanted those of "
            f"{world_size}. Go on with {ranks} ranks, by trainer.devices and trainer.num_nodes."
        )


def write_rollouts(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write one rollout per line; the file appears whole or not at all."""
    part = path.with_suffix(".part")
    part.write_bytes(b"".join(ROLLOUTS.dump_json([each])[1:-1] + b"\n" for each in rollouts))  # without the brackets
    os.replace(part, path)


def read_rollouts(path: Path) -> list[Rollout]:
    """The rollouts of a file, equal to those written."""
    return ROLLOUTS.validate_json(b"[%s]" % b",".join(path.read_bytes().splitlines()))
