"""`medagent train` and `sft`: runs by configuration, whose parser explains why a class does not fit."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pydoc import locate
from typing import Any, NoReturn, cast

import torch
import yaml
from jsonargparse import Namespace, dict_to_namespace
from lightning import Callback, Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, instantiate_class
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from medagent.config_files import with_one_algorithm
from medagent.environment import Environment
from medagent.errors import ConfigError, require
from medagent.evaluation.benchmarks import Benchmark
from medagent.interface_check import compare_by_names, explained, misfit
from medagent.models.causal_lm import fastest_device
from medagent.protocol import TurnProtocol
from medagent.retrieval.retriever import Retriever
from medagent.training.advantages import AdvantageEstimator
from medagent.training.agent_data import AgentData
from medagent.training.compatibility import check_composition
from medagent.training.data import RolloutData
from medagent.training.engines import Engine
from medagent.training.execution import keep_freed_memory
from medagent.training.loading import class_paths, resolve_dtype
from medagent.training.module import AgentModule
from medagent.training.objectives import PolicyLoss
from medagent.training.rewards import Reward
from medagent.training.run import fit_in_folder, quiet_lightning, run_checkpoints, run_loggers
from medagent.training.settings import SUPPORTED, TRAINER_DEFAULTS, check_shares, check_trainer_settings, num_ranks
from medagent.training.sft.dialogues import Demonstrations
from medagent.training.sft.supervised import SupervisedData, SupervisedModule

PROTOCOLS: tuple[type, ...] = (Benchmark, Retriever, Reward)
BASES: tuple[type, ...] = (
    AdvantageEstimator,
    Demonstrations,
    PolicyLoss,
    Engine,
    Environment,
    TurnProtocol,
)


# The part of a message of jsonargparse that names the class; the others tell what else a setting may be.
PROBLEM = re.compile(
    r"(?:Problem with given class_path|Expected a dot import path string:) .+?(?=\n\s*- |\nGiven value|\Z)", re.DOTALL
)


def in_one_line(message: str) -> str:
    """A parser's message without line breaks, and without other forms of a setting that names a class."""
    setting, problems = re.match(r'Parser key "[^"]+":', message), PROBLEM.findall(message)
    return " ".join((f"{setting[0]} {problems[-1]}" if setting and problems else message).split())


@contextmanager
def errors_of_classes() -> Iterator[None]:
    """Raise what a class of the configuration raised, and not the parser's account of it.

    Raises:
        ConfigError: a package is missing, or Lightning refuses a setting.
    """
    try:
        yield
    except (ValueError, ImportError, MisconfigurationException) as error:
        cause: BaseException = error
        while isinstance(cause, ValueError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, ImportError | MisconfigurationException):
            raise ConfigError(" ".join(str(cause).split())) from error
        raise cause from None


class AgentParser(LightningArgumentParser):
    """Lightning's parser for YAML files that name classes of the user's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for protocol in PROTOCOLS:
            compare_by_names(protocol)

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments; each class that they name fits the base that it derives from."""
        if args and isinstance(args[0], list):
            args = (with_one_algorithm(args[0]), *args[1:])
        parsed = super().parse_args(*args, **kwargs)
        for found in map(locate, class_paths(parsed.as_dict())):
            for base in BASES:
                if isinstance(found, type) and issubclass(found, base) and (reason := misfit(found, base)):
                    self.error(reason)
        return parsed

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with one line, and with why a class does not fit where that is the reason."""
        reasons = explained(message, PROTOCOLS + BASES).removeprefix(message)
        message = in_one_line(message) + reasons
        if not self.exit_on_error:
            super().error(message, ex)
        self.exit(2, f"{self.prog}: {message.rstrip('.')}. See {self.prog} --help.\n")


@dataclass(frozen=True)
class Algorithm:
    """The algorithm of a run, which files of configs/algorithms set. The last file's counts, and nothing of others.

    `name` is printed. `callbacks` join the others. `model` and `data` are the settings of these groups that belong to
    it; see `medagent.config_files.with_one_algorithm`.
    """

    name: str = "PPO"
    callbacks: list[Callback] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def add_run_settings(parser: LightningArgumentParser, data: type[AgentData]) -> None:
    """Set the trainer's defaults, and add the project's own settings."""
    parser.set_defaults({f"trainer.{name}": value for name, value in TRAINER_DEFAULTS.items()})
    for action in parser._actions:
        if text := SUPPORTED.get(action.dest.removeprefix("trainer.")):
            action.help = text
    if issubclass(data, RolloutData):
        parser.add_class_arguments(Algorithm, "algorithm")
    for base, name, given in ((Optimizer, "optimizer", {"params", "lr"}), (LRScheduler, "lr_scheduler", {"optimizer"})):
        parser.add_subclass_arguments(base, name, skip=given, instantiate=False, required=False, fail_untyped=False)
    names = ", ".join(name.rpartition(".")[2] for name in data.default_callbacks)
    parser.add_argument("--without_callbacks", type=list[str], default=[], help=f"leave out some of {names}")
    parser.add_argument("--overwrite", type=bool, default=False, help="discard the run in the folder")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 keeps torch's own choice")


def with_defaults(callbacks: Sequence[Any], defaults: Sequence[str], *, without: Sequence[str] = ()) -> list[Any]:
    """The default callbacks, then the others.

    One of a default callback's class takes its place.

    Raises:
        ConfigError: `without` names another than a default callback.
    """
    names = [name.rpartition(".")[2] for name in defaults]
    unknown = sorted(set(without).difference(names))
    require(not unknown, "without_callbacks", ", ".join(unknown), f"some of {', '.join(names)}")
    own = {locate(path): dict_to_namespace({"class_path": path, "init_args": {}}) for path in defaults}
    others = [each for each in callbacks if locate(each.class_path) not in own]
    own |= {kind: each for each in callbacks if (kind := locate(each.class_path)) in own}
    kept = [each for name, each in zip(names, own.values(), strict=True) if name not in without]
    return [*kept, *others]


def check_algorithm(config: Namespace) -> None:
    """Raise ConfigError, before a model is built, unless the parts of the run's algorithm are its own and fit."""
    model, data, own = config["model"], config["data"], config["algorithm"]
    for group, part in (("model", "policy_loss"), ("data", "advantage")):
        found, named = config[group][part].class_path, own[group].get(part, {}).get("class_path")
        if named and locate(found) is not locate(named):
            raise ConfigError(
                f"{group}.{part}: found {found}, which a later --config or option sets; algorithm {own['name']} wants "
                f"{named}. Give the algorithm's file after the others, or one of your own with another algorithm.name."
            )
    advantage = locate(data["advantage"].class_path)
    assert isinstance(advantage, type)
    check_composition(advantage, model, data)


class AgentCLI(LightningCLI):
    """LightningCLI with the project's module and data, logs and checkpoints in `trainer.default_root_dir`.

    `trainer.callbacks` join the default ones and those of the algorithm.
    """

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Make the parser, which takes a user's classes by their methods."""
        self.parser_class = AgentParser
        return super().init_parser(**kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """See `add_run_settings`."""
        add_run_settings(parser, self._data)

    @property
    def algorithm(self) -> Namespace | None:
        """The settings of `Algorithm`; None where nothing is rolled out."""
        return cast("Namespace | None", self.config.get("algorithm"))

    @property
    def _data(self) -> type[AgentData]:
        return cast("type[AgentData]", self.datamodule_class)

    def before_instantiate_classes(self) -> None:
        """Settings that must hold before a model is built."""
        trainer, data = self.config["trainer"], self.config["data"]
        check_trainer_settings(trainer)
        ranks = num_ranks(trainer["devices"], trainer["num_nodes"])
        if issubclass(self._data, RolloutData) and ranks:
            parts = data["num_minibatches"] * data["num_micro_batches"]
            check_shares(data["num_questions"], data["num_samples"], parts, ranks)
        if self.algorithm:
            check_algorithm(self.config)
        given = trainer["callbacks"] or []
        callbacks = given if isinstance(given, list) else [given]  # Lightning takes one callback without a list too
        self.callbacks = callbacks  # the configuration's own
        trainer["callbacks"] = with_defaults(
            [*(self.algorithm["callbacks"] if self.algorithm else []), *callbacks],
            self._data.default_callbacks,
            without=self.config["without_callbacks"],
        )
        self.asked_dtype = self.config["model"]["dtype"]
        self.config["model"]["dtype"] = resolve_dtype(
            self.asked_dtype,
            self.config["model"]["base_model"],
            device="cpu" if trainer["accelerator"] == "cpu" else fastest_device(),
            run=None if self.config["overwrite"] else _run_root(trainer),
        )
        if self.config["optimizer"] and self.config["model"].get("weight_decay"):
            raise ConfigError("model.weight_decay: found one beside --optimizer, wanted 0. Set it in --optimizer.")
        keep_freed_memory()
        if self.config["threads"]:
            torch.set_num_threads(self.config["threads"])

    def instantiate_classes(self) -> None:
        """Make the classes. An optimizer that is named gets the module's groups and their rates."""
        super().instantiate_classes()
        module, optimizer, scheduler = self.model, self.config["optimizer"], self.config["lr_scheduler"]
        assert isinstance(module, AgentModule)
        own = module.configure_optimizers

        def configure() -> tuple[list[Optimizer], list[LRScheduler]]:
            made = instantiate_class(module.parameter_groups(), optimizer) if optimizer else own()
            return [made], [instantiate_class(made, scheduler)] if scheduler else []

        if optimizer or scheduler:
            module.configure_optimizers = configure  # type: ignore[assignment, method-assign]

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, which by default logs to CSV and TensorBoard and writes a checkpoint per iteration."""
        root = _run_root(self.config_init["trainer"])
        if self.config_init["trainer"]["logger"] is None:
            kwargs.setdefault("logger", run_loggers(root))
        callbacks = [*(self.config_init["trainer"]["callbacks"] or []), run_checkpoints(root)]
        return super().instantiate_trainer(default_root_dir=str(root), callbacks=callbacks, **kwargs)


def train_command(args: list[str]) -> Path:
    """Train by configuration (`--config FILE` plus overrides) and return the run's folder.

    See `medagent train --help`.
    """
    return _root_of(fit(args, AgentModule, RolloutData, command="train", description=str(train_command.__doc__)))


def sft_command(args: list[str]) -> Path:
    """Teach the protocol by demonstrations (`--config FILE` plus overrides) and return the run's folder.

    See `medagent sft --help`.
    """
    return _root_of(fit(args, SupervisedModule, SupervisedData, command="sft", description=str(sft_command.__doc__)))


@errors_of_classes()
def fit(
    args: list[str], module: type[AgentModule], data: type[AgentData], *, command: str, description: str
) -> AgentCLI:
    """Fit a module to its data as `medagent COMMAND` does. Each of several ranks on CPUs must then call `end_rank`."""
    quiet_lightning()
    cli = AgentCLI(
        module,
        data,
        run=False,
        args=args,
        save_config_callback=None,
        seed_everything_default=0,
        auto_configure_optimizers=False,
        parser_kwargs={"prog": f"medagent {command}", "description": description},
    )
    cli.config["trainer"]["callbacks"] = cli.callbacks
    resolved = yaml.safe_load(cli.parser.dump(cli.config, skip_none=False))
    resolved["model"]["dtype"] = cli.asked_dtype
    if cli.algorithm:
        own = resolved["algorithm"]
        for group in ("model", "data"):  # as they are used, in full
            own[group] = {name: resolved[group][name] for name in own[group]}
    for how in ("overwrite", "threads"):  # ways of running, not settings of the run
        resolved.pop(how)
    fit_in_folder(cli.trainer, cli.model, cli.datamodule, resolved, overwrite=cli.config["overwrite"])
    return cli


def _root_of(cli: AgentCLI) -> Path:
    return Path(cli.trainer.default_root_dir)


def _run_root(trainer: Any) -> Path:
    """The folder of the run that the trainer's settings name."""
    return Path(trainer["default_root_dir"] or "runs/train")
