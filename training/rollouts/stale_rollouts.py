"""Rollouts that wait for their update: with staleness s those of the policy of s iterations ago, as whole files."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from medagent.errors import ConfigError
from medagent.training.rollouts.daemon import in_daemon
from medagent.types import Rollout

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

    def take(self, iteration: int, *, last: int, collect: Callable[[int], list[Rollout]]) -> list[Rollout]:
        """The rollouts that `iteration` trains on.

        `collect` rolls out those up to iteration + s, at most `last`, that have no file. The background must be done.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for coming in range(iteration, min(iteration + self._staleness, last) + 1):
            path = self._path(coming)
            if path.exists():
                continue

            def roll_out(path: Path = path, coming: int = coming) -> None:
                write_rollouts(path, collect(coming))

            if self._overlap and coming > iteration:
                self._background.start(roll_out)
            else:
                roll_out()
        # The one before is kept: a torn newest checkpoint sends the run back by one iteration.
        for path in self._folder.glob(f"*.rank{self._rank}.json*"):
            if int(path.name.split(".")[0]) < iteration - 1:
                path.unlink()
        return read_rollouts(self._path(iteration))

    def cost_path(self, iteration: int) -> Path:
        """Where the caller may keep what the rollouts of an iteration cost. The file goes with theirs."""
        return self._path(iteration).with_suffix(".json")

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
