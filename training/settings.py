"""Checks of settings before a model is loaded: Lightning's trainer, and the numbers of an update.

A trainer's setting that the update would ignore, or that would break it, is refused with its remedy.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pydoc import locate
from types import FunctionType
from typing import Any, Protocol, runtime_checkable

import torch
from jsonargparse import Namespace
from lightning import Trainer
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, StrategyRegistry

from medagent.errors import ConfigError, require

# The supported settings of Lightning's trainer. A configuration may set others, unless `TRAINER_RULES` names them.
SUPPORTED = {
    "default_root_dir": "Folder of the run; by default runs/train.",
    "max_epochs": "Iterations: rollouts, then their update.",
    "check_val_every_n_epoch": "Iterations from one validation to the next.",
    "accelerator": "Auto, cpu, gpu, cuda or mps.",
    "devices": "Number of devices, or a list of their indices.",
    "num_nodes": "Number of machines.",
    "strategy": "Auto or ddp.",
    "callbacks": "Callbacks beside the default and the algorithm's ones.",
    "logger": "By default CSV and TensorBoard files in the run's folder.",
    "enable_progress_bar": "Show Lightning's progress bar.",
    "profiler": "Simple, advanced or pytorch: report where time goes.",
}
TRAINER_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(SUPPORTED),
    **dict.fromkeys(("accelerator", "strategy"), "auto"),
    **dict.fromkeys(("check_val_every_n_epoch", "devices", "num_nodes", "log_every_n_steps"), 1),
    **dict.fromkeys(("enable_progress_bar", "enable_model_summary"), False),
    "num_sanity_val_steps": 0,
}


Rules = Mapping[str, tuple[Callable[[Any], bool], str]]
"""Which values a setting may have, in code and in words."""


def check_rules(group: str, settings: Mapping[str, Any], rules: Rules) -> None:
    """Raise ConfigError for the first setting that its rule does not allow; absent ones are not checked."""
    for name, (allows, wanted) in rules.items():
        if name in settings:
            require(allows(settings[name]), f"{group}.{name}", settings[name], wanted)


def _only(*values: str) -> Callable[[Any], bool]:
    """Whether a value is written like one of these: 1.0 is everything, and 1 is one batch."""
    return lambda value: str(value) in values


def _number(least: float, most: float = math.inf, *, optional: bool = False) -> Callable[[Any], bool]:
    """Whether a value is a finite number from `least` to `most`."""

    def allows(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return optional if value is None else number and math.isfinite(value) and least <= value <= most

    return allows


NONE, OFF, WHOLE = _only("None"), _only("None", "False", "0", "0.0"), _only("None", "1.0")
NO_LOOP = (WHOLE, "none: no such loop runs here. Validation asks data.val_benchmark")
NO_STOP = "none: CollapseMonitor could not stop the run"
NORMS = "model.policy_max_grad_norm and model.critic_max_grad_norm"
TRAINER_RULES: Rules = {
    "fast_dev_run": (OFF, "false. For a short run set trainer.max_epochs 1 and lower data.num_questions"),
    "barebones": (OFF, "false: metrics and checkpoints are needed"),
    "precision": (_only("None", "32", "32-true"), "32-true. Set model.dtype: all passes must compute alike"),
    "gradient_clip_val": (NONE, f"none. Set {NORMS} instead"),
    "gradient_clip_algorithm": (NONE, f"none. Gradients are clipped by norm; set {NORMS}"),
    "max_epochs": (_number(1, optional=True), "1 or more: the agent is exported after the last iteration"),
    "max_steps": (_only("None", "-1"), "-1. It would end inside an iteration; set trainer.max_epochs"),
    "max_time": (NONE, "none. It would end inside an iteration. Set trainer.max_epochs, or stop the run: it goes on"),
    "min_epochs": (_only("None", "0", "1"), NO_STOP),
    "min_steps": (_only("None", "0"), NO_STOP),
    "limit_train_batches": (WHOLE, "none: it would cut optimizer steps. Lower data.num_questions"),
    "accumulate_grad_batches": (_only("1"), "1: a batch is an optimizer step. Set data.num_micro_batches"),
    "overfit_batches": (OFF, "0. Give a benchmark of few questions instead"),
    "limit_test_batches": NO_LOOP,
    "limit_predict_batches": NO_LOOP,
    "val_check_interval": (WHOLE, "none: validation follows iterations. Set trainer.check_val_every_n_epoch"),
    "check_val_every_n_epoch": (_number(1), "1 iteration or more"),
    "sync_batchnorm": (OFF, "false: the frozen base has no statistics to synchronise"),
    "enable_checkpointing": (_only("None", "True"), "true: a run goes on from its checkpoints"),
    "log_every_n_steps": (_only("None", "1"), "1: an iteration's own metrics come once"),
}
# A trainer made in Python may log rarely or write no checkpoints; it holds no value for the other two.
NOT_OF_TRAINERS = ("enable_checkpointing", "log_every_n_steps", "max_time", "sync_batchnorm")

# Callbacks of Lightning that change what an optimizer step is, or which weights there are.
CALLBACKS: dict[type, str] = {
    lightning_callbacks.GradientAccumulationScheduler: "set data.num_micro_batches",
    lightning_callbacks.StochasticWeightAveraging: "rollouts and export take the trained weights, not their average",
    lightning_callbacks.WeightAveraging: "rollouts and export take the trained weights, not their average",
    lightning_callbacks.BatchSizeFinder: "set model.execution.max_tokens",
    lightning_callbacks.LearningRateFinder: "set model.policy_lr and model.critic_lr",
    lightning_callbacks.Timer: "it would end inside an iteration, without an agent; set trainer.max_epochs",
    lightning_callbacks.ModelPruning: "the base is frozen, and the sampler has its own copy",
    lightning_callbacks.BaseFinetuning: "the base is frozen, and its adapters train throughout",
}
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")


def check_trainer_settings(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a trainer's argument, as object or `class_path`, that would not do what it says."""
    check_rules("trainer", settings, TRAINER_RULES)
    accelerator = settings.get("accelerator", "auto")
    if not isinstance(accelerator, str):
        accelerator = type(accelerator).__name__.removesuffix("Accelerator").lower()
    require(accelerator in ACCELERATORS, "trainer.accelerator", accelerator, f"one of {', '.join(ACCELERATORS)}")
    _check_strategy(settings.get("strategy", "auto"))
    for plugin in _listed(settings.get("plugins")):
        kind, _ = _class_of(plugin)
        if kind and issubclass(kind, Precision) and kind is not Precision:
            raise ConfigError(f"trainer.plugins: found {kind.__name__}, wanted no precision. Set model.dtype.")
    for callback in _listed(settings.get("callbacks")):
        found, _ = _class_of(callback)
        for kind, why in CALLBACKS.items():
            if found and issubclass(found, kind):
                raise ConfigError(f"trainer.callbacks: found {found.__name__}. Take it out: {why}.")


def check_trainer(trainer: Trainer) -> None:
    """The same for a trainer that was made in Python."""
    names = TRAINER_RULES.keys() - NOT_OF_TRAINERS
    found = {name: getattr(trainer, name) for name in (*names, "accelerator", "strategy", "callbacks")}
    found["sync_batchnorm"] = vars(trainer.strategy).get("_layer_sync")
    check_trainer_settings({**found, "plugins": [trainer.precision_plugin]})


def num_ranks(devices: object, num_nodes: int) -> int | None:
    """How many ranks these settings make; none where the machine decides."""
    if isinstance(devices, str) and "," in devices:
        devices = [name for name in devices.split(",") if name.strip()]
    if isinstance(devices, str) and devices.strip().isdigit():
        devices = int(devices)
    if isinstance(devices, list):
        return len(devices) * num_nodes
    return devices * num_nodes if isinstance(devices, int) and devices > 0 else None


def check_shares(num_questions: int, num_samples: int, num_parts: int, num_ranks: int) -> None:
    """Raise ConfigError unless ranks share an iteration's questions equally and fill their micro-batches."""
    share = len(range(0, num_questions, num_ranks)) * num_samples
    if share < num_parts or num_questions % num_ranks:
        raise ConfigError(
            f"data.num_questions is {num_questions} on {num_ranks} ranks, wanted a multiple of the ranks, whose shares "
            f"fill {num_parts} micro-batches (with shared_prefixes by whole questions). Lower data.num_minibatches."
        )


MOST_LISTED = 1000
# How Lightning makes a module from such settings in `load_from_checkpoint`.
INSTANTIATOR = {"_instantiator": "lightning.pytorch.cli.instantiate_module"}


@runtime_checkable
class _Lazy(Protocol):
    """A default of jsonargparse's `lazy_instance`, which has no attributes until it is used."""

    def lazy_get_init_data(self) -> Namespace: ...


def as_config(value: Any) -> Any:
    """A setting as YAML writes it: an object by `class_path` and `init_args`, taken from attributes of those names.

    A leading underscore does not count. An object without them becomes a text, which no setting accepts.
    """
    if isinstance(value, Mapping):
        return {name: as_config(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_config(each) for each in value] if len(value) < MOST_LISTED else f"{len(value)} values"
    if isinstance(value, FunctionType | type):
        return f"{value.__module__}.{value.__qualname__}"
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, _Lazy):
        given = value.lazy_get_init_data()
        parameters = inspect.signature(locate(given.class_path)).parameters.values()  # type: ignore[arg-type]
        defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        return {"class_path": given.class_path, "init_args": defaults | dict(given.get("init_args", {}))}
    names = [name for name in inspect.signature(type(value)).parameters if name not in ("args", "kwargs")]
    path = f"{type(value).__module__}.{type(value).__qualname__}"
    kept = {name.removeprefix("_"): each for name, each in vars(value).items()}
    if not kept.keys() >= set(names):
        return f"{path}(...)"
    arguments = {name: as_config(kept[name]) for name in names}
    return arguments if is_dataclass(value) else {"class_path": path, "init_args": arguments}


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _class_of(value: Any) -> tuple[type | None, Mapping[str, Any]]:
    """The class and the arguments that a setting names; of an object its own class alone."""
    named: Any = {"class_path": value} if isinstance(value, str) else value
    if isinstance(named, Namespace):
        named = named.as_dict()
    if not isinstance(named, dict):
        return type(value), {}
    found = locate(str(named.get("class_path", "")))
    return found if isinstance(found, type) else None, named.get("init_args") or {}


def _check_strategy(value: Any) -> None:
    """Check that every rank holds all that is trained, on a known kind of machine, and that gradients arrive whole."""
    kind, arguments = _class_of(value)
    if isinstance(value, str) and value in StrategyRegistry:
        kind = StrategyRegistry[value]["strategy"]
    if kind is None:  # "auto", or a name that Lightning refuses
        return
    hook = value._ddp_comm_hook if isinstance(value, DDPStrategy) else arguments.get("ddp_comm_hook")
    if hook is not None:
        raise ConfigError(
            f"trainer.strategy: found {kind.__name__} with ddp_comm_hook {getattr(hook, '__name__', hook)}, wanted "
            "none. It would round the gradients on their way between ranks, or leave parts out."
        )
    if kind not in (DDPStrategy, SingleDeviceStrategy):  # others derive from these, and work otherwise
        raise ConfigError(
            f"trainer.strategy: found {kind.__name__}, wanted auto or ddp. "
            "Others split what is trained, or the frozen base with it, so adapters and checkpoints would be parts."
        )


ABOVE_0 = math.ulp(0.0)  # the least number above it
RATE = (_number(0, 1), "a learning rate from 0 to 1")
SIZE = (_number(0), "a finite number, 0 or more")
NORM = (_number(ABOVE_0), "a finite number above 0; a large one, such as 1e6, clips nothing")
MODULE_RULES: Rules = {
    "policy_lr": RATE,
    "critic_lr": RATE,
    "weight_decay": SIZE,
    "kl_coef": SIZE,
    "entropy_coef": (_number(-math.inf), "a finite number"),
    "policy_max_grad_norm": NORM,
    "critic_max_grad_norm": NORM,
    "temperature": (_number(ABOVE_0), "a positive finite number (sampling must explore)"),
    "value_clip": (_number(ABOVE_0, optional=True), "a finite number above 0, or none"),
    "lr_decay_iterations": (_number(1, optional=True), "1 or more iterations, or none"),
    "lr_warmup_iterations": (_number(0), "0 or more iterations"),
    "dtype": (
        lambda dtype: getattr(torch, dtype, None) is not torch.float16,
        "bfloat16 or float32. In float16 small gradients become 0, and the loss is not scaled. An agent trained so "
        "can still be loaded in float16",
    ),
}
LORA_RULES: Rules = dict.fromkeys(("rank", "alpha"), (_number(1), "a whole number, 1 or more"))


def check_module_settings(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for an `AgentModule`'s argument out of range or against another."""
    check_rules("model", settings, MODULE_RULES)
    critic, sees, value_clip = (settings[name] for name in ("critic_lora", "critic_inputs", "value_clip"))
    if critic is not None and critic.start is not None:
        raise ConfigError(f"model.critic_lora.start: found {critic.start}, wanted none (a policy's).")
    settings["policy_lora"].check_start(settings["base_model"], quantise=settings["execution"].quantise)
    if value_clip is not None and critic is None and sees == "context":
        raise ConfigError(f"model.value_clip: found {value_clip}, wanted none, as there is no critic.")
    if sees != "context" and critic is not None:
        raise ConfigError(
            f"model.critic_inputs: found {sees}, wanted context; or critic_lora null, as a critic that reads the "
            "evidence has no adapter."
        )
