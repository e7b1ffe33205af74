"""Checks of settings before a model is loaded: Lightning's trainer, and the numbers of an update.

A trainer's setting that the update would ignore, or that would break it, is refused with its remedy.
"""

import inspect
import math
from collections.abc import Mapping
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
from medagent.lazy import packaged

_PACKAGED = packaged("medagent.training", "trainer.yaml")
# The supported settings of Lightning's trainer. A configuration may set others, unless `TRAINER_RULES` names them.
SUPPORTED: dict[str, str] = _PACKAGED["supported"]
TRAINER_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(SUPPORTED),
    **dict.fromkeys(("accelerator", "strategy"), "auto"),
    **dict.fromkeys(("check_val_every_n_epoch", "devices", "num_nodes", "log_every_n_steps"), 1),
    **dict.fromkeys(("enable_progress_bar", "enable_model_summary"), False),
    "num_sanity_val_steps": 0,
}


Rules = Mapping[str, Mapping[str, Any]]
"""By setting which values it may have, as in trainer.yaml, and the same in words."""
TRAINER_RULES: Rules = _PACKAGED["trainer"]
MODULE_RULES: Rules = _PACKAGED["model"]
LORA_RULES: Rules = _PACKAGED["lora"]


def check_rules(group: str, settings: Mapping[str, Any], rules: Rules) -> None:
    """Raise ConfigError for the first setting that its rule does not allow; absent ones are not checked."""
    for name, rule in rules.items():
        if name in settings:
            require(_allows(rule, settings[name]), f"{group}.{name}", settings[name], rule["wanted"])


def _allows(rule: Mapping[str, Any], value: Any) -> bool:
    if "only" in rule:
        return str(value) in rule["only"]
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value is None and "optional" in rule
    return math.isfinite(value) and rule["least"] <= value <= rule.get("most", math.inf)


# A trainer made in Python may log rarely or write no checkpoints; it holds no value for the other two.
NOT_OF_TRAINERS = ("enable_checkpointing", "log_every_n_steps", "max_time", "sync_batchnorm")

# Callbacks of Lightning that change what an optimizer step is, or which weights there are.
CALLBACKS: dict[type, str] = {getattr(lightning_callbacks, name): why for name, why in _PACKAGED["callbacks"].items()}
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


def check_module_settings(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for an `AgentModule`'s argument out of range or against another."""
    check_rules("model", settings, MODULE_RULES)
    require(
        getattr(torch, settings["dtype"], None) is not torch.float16,
        "model.dtype",
        settings["dtype"],
        "bfloat16 or float32. In float16 small gradients become 0, and the loss is not scaled. An agent trained so can "
        "still be loaded in float16",
    )
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
