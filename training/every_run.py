"""The callbacks that are in every run, whatever its configuration."""

from __future__ import annotations

from lightning import Callback

from medagent.training.fitting import FittingPasses
from medagent.training.iterations import WholeIterations
from medagent.training.token_counts import CountedTokens


def callbacks_of_every_run() -> list[Callback]:
    """They come after those of the configuration, but before those that write checkpoints."""
    return [CountedTokens(), WholeIterations(), FittingPasses()]
