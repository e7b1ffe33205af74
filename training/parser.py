"""The command line's parser: it takes a user's classes by their methods, and explains why one does not fit."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pydoc import locate
from typing import Any, NoReturn

from jsonargparse import Namespace, get_loader, set_loader
from lightning.pytorch.cli import LightningArgumentParser
from yaml import YAMLError

from medagent.config_files import with_current_class_paths
from medagent.evaluation.benchmarks import Benchmark
from medagent.interface_check import compare_by_names, explained, misfit
from medagent.protocol import TurnProtocol
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.tools import Tool
from medagent.training.advantages import AdvantageEstimator
from medagent.training.engines import RolloutEngine
from medagent.training.objectives import PolicyLoss
from medagent.training.preference.losses import PreferenceLoss
from medagent.training.preference.pairs import Pairs
from medagent.training.rewards import Reward
from medagent.training.sft.demonstrations import Demonstrations

PROTOCOLS: tuple[type, ...] = (Benchmark, Retriever, Reward)
BASES: tuple[type, ...] = (
    AdvantageEstimator,
    Demonstrations,
    Pairs,
    PolicyLoss,
    PreferenceLoss,
    RolloutEngine,
    Tool,
    TurnProtocol,
)


class AgentParser(LightningArgumentParser):
    """Lightning's parser for YAML files that name classes of the user's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for protocol in PROTOCOLS:
            compare_by_names(protocol)

    def parse_args(self, args: Any = None, **kwargs: Any) -> Any:
        """Parse the arguments; each class that they name fits the base that it derives from."""
        if isinstance(args, list):
            args = [with_current_class_paths(each) for each in args]
        parsed = super().parse_args(args, **kwargs)
        for found in _classes_in(parsed):
            for base in BASES:
                if issubclass(found, base) and (reason := misfit(found, base)):
                    self.error(reason)
        return parsed

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with the message, and with why a class does not fit where that is the reason."""
        super().error(explained(message, PROTOCOLS + BASES), ex)


def _set_loader() -> None:
    """Let YAML files name classes as earlier versions did."""
    load = get_loader("yaml")
    set_loader("yaml", lambda text: load(with_current_class_paths(text)), (YAMLError,))


_set_loader()


def _classes_in(value: Any) -> Iterator[type]:
    """The classes that settings name by `class_path`, wherever in them."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _classes_in(each)
    if isinstance(value, Namespace | dict):
        for name, each in value.items():
            if name.rpartition(".")[2] == "class_path" and inspect.isclass(found := locate(str(each))):
                yield found
            yield from _classes_in(each)
