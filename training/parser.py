"""The command line's parser: it takes a user's classes by their methods, and explains why one does not fit."""

from __future__ import annotations

from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from evaluation.benchmarks import Benchmark
from medagent.interface_check import compare_by_names, explained
from retrieval.retriever import Retriever
from retrieval.tools import Tool
from training.advantages import AdvantageEstimator
from training.engines import RolloutEngine
from training.objectives import PolicyLoss
from training.rewards import Reward
from training.sft.demonstrations import Demonstrations

PROTOCOLS: tuple[type, ...] = (Benchmark, Retriever, Reward)
BASES: tuple[type, ...] = (AdvantageEstimator, Demonstrations, PolicyLoss, RolloutEngine, Tool)


class AgentParser(LightningArgumentParser):
    """Lightning's parser for YAML files that name classes of the user's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for protocol in PROTOCOLS:
            compare_by_names(protocol)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with the message, and with why a class does not fit where that is the reason."""
        super().error(explained(message, PROTOCOLS + BASES), ex)
