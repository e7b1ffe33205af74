"""Settings of Lightning's trainer that would do something else here than they say: each is refused with its remedy.

The update has its own precision, gradient clipping, micro-batches and held-out evaluation. A setting that changes these
from outside would be ignored, or would break them in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pydoc import locate
from typing import Any

from lightning import Trainer
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator, MPSAccelerator
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    SingleDeviceStrategy,
    StrategyRegistry,
)
from lightning.pytorch.strategies.single_xla import SingleDeviceXLAStrategy
from lightning.pytorch.strategies.xla import XLAStrategy

from medagent.errors import ConfigError

NO_LOOP = "none: no such loop runs here. trainer.callbacks HeldOutEvaluation measures (every, benchmark)"


@dataclass(frozen=True)
class TrainerRule:
    """What a setting may be, and what is wanted instead of anything else."""

    name: str
    allows: Callable[[Any], bool]
    wanted: str


def _whole(value: Any) -> bool:
    """None, or everything as a share; 1 is one batch."""
    return value is None or (isinstance(value, float) and value == 1)


def _unset(value: Any) -> bool:
    return value is None


def _off(value: Any) -> bool:
    return value is None or value == 0


RULES = (
    TrainerRule("fast_dev_run", _off, "false. For a short run set trainer.max_epochs 1 and lower data.num_questions"),
    TrainerRule("barebones", _off, "false: metrics and checkpoints are needed"),
    TrainerRule(
        "precision",
        lambda value: value in (None, 32, "32", "32-true"),
        "32-true, Lightning's way not to change it. Set model.dtype: the policy's passes and those that it is compared "
        "with must compute alike",
    ),
    TrainerRule(
        "gradient_clip_val", _unset, "none. Set model.policy_max_grad_norm and model.critic_max_grad_norm instead"
    ),
    TrainerRule(
        "gradient_clip_algorithm",
        _unset,
        "none. Gradients are clipped by norm; set model.policy_max_grad_norm and model.critic_max_grad_norm",
    ),
    TrainerRule(
        "max_epochs",
        lambda value: value is None or value >= 1,
        "1 or more: the agent is exported after the last iteration",
    ),
    TrainerRule(
        "max_steps", lambda value: value in (None, -1), "-1. It would end inside an iteration; set trainer.max_epochs"
    ),
    TrainerRule(
        "max_time",
        _unset,
        "none. It would end inside an iteration, without an agent. Set trainer.max_epochs, or stop the run: it goes on "
        "where it was",
    ),
    TrainerRule("min_epochs", lambda value: value in (None, 0, 1), "none: CollapseMonitor could not stop the run"),
    TrainerRule("min_steps", _off, "none: CollapseMonitor could not stop the run"),
    TrainerRule(
        "limit_train_batches",
        _whole,
        "none: it would leave rollouts out and cut optimizer steps. Lower data.num_questions",
    ),
    TrainerRule("overfit_batches", _off, "0. Give a benchmark of few questions instead"),
    *(
        TrainerRule(name, _whole, NO_LOOP)
        for name in ("limit_val_batches", "limit_test_batches", "limit_predict_batches", "val_check_interval")
    ),
    TrainerRule("check_val_every_n_epoch", lambda value: value == 1, NO_LOOP.replace("none", "1", 1)),
    TrainerRule("sync_batchnorm", _off, "false: the frozen base has no statistics to synchronise"),
)

ALONE = (  # of `medagent train` and `medagent sft`, which write checkpoints and one row of metrics per step
    TrainerRule(
        "enable_checkpointing", lambda value: value in (None, True), "true: a run goes on from its checkpoints"
    ),
    TrainerRule("log_every_n_steps", lambda value: value in (None, 1), "1: an iteration's own metrics come once"),
)

# Callbacks of Lightning that change what an optimizer step is, or which weights there are.
CALLBACKS: dict[type, str] = {
    lightning_callbacks.GradientAccumulationScheduler: (
        "set trainer.accumulate_grad_batches and data.num_micro_batches to one number"
    ),
    lightning_callbacks.StochasticWeightAveraging: "rollouts and export take the trained weights, not their average",
    lightning_callbacks.WeightAveraging: "rollouts and export take the trained weights, not their average",
    lightning_callbacks.BatchSizeFinder: "set model.execution.max_tokens",
    lightning_callbacks.LearningRateFinder: "set model.policy_lr and model.critic_lr",
    lightning_callbacks.Timer: "it would end inside an iteration, without an agent; set trainer.max_epochs",
    lightning_callbacks.ModelPruning: "the base is frozen, and the sampler has its own copy",
    lightning_callbacks.BaseFinetuning: "the base is frozen, and its adapters train throughout",
}
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")


def refuse_settings(settings: Mapping[str, Any], rules: Iterable[TrainerRule] = RULES) -> None:
    """Refuse a trainer's arguments that would not do what they say.

    Values may be objects, or settings that name them by `class_path`.

    Raises:
        ConfigError: there is one, named with its remedy.
    """
    for rule in rules:
        if rule.name in settings and not rule.allows(settings[rule.name]):
            raise ConfigError(f"trainer.{rule.name}: found {settings[rule.name]}, wanted {rule.wanted}.")
    accelerator = settings.get("accelerator", "auto")
    known = accelerator in ACCELERATORS if isinstance(accelerator, str) else _class_of(accelerator) in _KNOWN
    if not known:
        raise ConfigError(f"trainer.accelerator: found {_named(accelerator)}, wanted one of {', '.join(ACCELERATORS)}.")
    strategy = _strategy(settings.get("strategy", "auto"))
    if strategy and (hook := _communication_hook(settings.get("strategy"))):
        raise ConfigError(
            f"trainer.strategy: found {strategy.__name__} with ddp_comm_hook {hook}, wanted none. It would change the "
            "gradients on their way between ranks, by rounding them or by leaving parts out."
        )
    if strategy and not _is_whole(strategy):
        raise ConfigError(
            f"trainer.strategy: found {strategy.__name__}, wanted auto, ddp or training.sharding.ShardedBase. Others "
            "split what is trained, or the frozen base with it, so adapters, sync and checkpoints would be parts."
        )
    for plugin in _listed(settings.get("plugins")):
        if (found := _class_of(plugin)) and issubclass(found, Precision) and found is not Precision:
            raise ConfigError(f"trainer.plugins: found {found.__name__}, wanted no precision. Set model.dtype.")
    for callback in _listed(settings.get("callbacks")):
        for kind, why in CALLBACKS.items():
            if (found := _class_of(callback)) and issubclass(found, kind):
                raise ConfigError(f"trainer.callbacks: found {found.__name__}. Take it out: {why}.")
        if _waits_for_validation(callback):
            raise ConfigError(
                "trainer.callbacks: found EarlyStopping with check_on_train_epoch_end false, wanted true or none. It "
                "would never look at its metric, as no validation runs here."
            )


def check_trainer(trainer: Trainer) -> None:
    """The same for a trainer that was made in Python.

    Raises:
        ConfigError: one of its settings would not do what it says.
    """
    names = (
        "fast_dev_run",
        "barebones",
        "precision",
        "gradient_clip_val",
        "gradient_clip_algorithm",
        "max_epochs",
        "max_steps",
        "min_epochs",
        "min_steps",
        "limit_train_batches",
        "overfit_batches",
        "limit_val_batches",
        "limit_test_batches",
        "limit_predict_batches",
        "val_check_interval",
        "check_val_every_n_epoch",
        "accelerator",
        "strategy",
        "callbacks",
    )
    found = {name: getattr(trainer, name) for name in names}
    found["sync_batchnorm"] = getattr(trainer.strategy, "_layer_sync", None)
    refuse_settings({**found, "plugins": [trainer.precision_plugin]})


def num_ranks(devices: object, num_nodes: int) -> int | None:
    """How many ranks these settings make; none where the machine decides."""
    if isinstance(devices, str) and "," in devices:
        devices = [name for name in devices.split(",") if name.strip()]
    if isinstance(devices, str) and devices.strip().isdigit():
        devices = int(devices)
    if isinstance(devices, list):
        return len(devices) * num_nodes
    return devices * num_nodes if isinstance(devices, int) and devices > 0 else None


_KNOWN = (CPUAccelerator, CUDAAccelerator, MPSAccelerator)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _class_of(value: Any) -> type | None:
    """The class that a setting names by `class_path` or as a text, or an object's own."""
    path = value if isinstance(value, str) else None
    if hasattr(value, "class_path"):
        path = str(value.class_path)
    elif isinstance(value, dict):
        path = str(value.get("class_path", ""))
    if path is None:
        return type(value)
    found = locate(path)
    return found if isinstance(found, type) else None


def _named(value: Any) -> str:
    return value if isinstance(value, str) else str(getattr(_class_of(value), "__name__", value))


def _strategy(value: Any) -> type | None:
    """The strategy's class; none for "auto", and for a name that Lightning will refuse."""
    if isinstance(value, str) and value in StrategyRegistry:
        found = StrategyRegistry[value]["strategy"]
        assert isinstance(found, type)
        return found
    return _class_of(value)


def _communication_hook(value: Any) -> str | None:
    """The name of what changes gradients on their way between ranks, None where they stay as they are."""
    if isinstance(value, DDPStrategy):
        hook = value._ddp_comm_hook
        return None if hook is None else getattr(hook, "__name__", type(hook).__name__)
    arguments = value.get("init_args") if isinstance(value, dict) else getattr(value, "init_args", None)
    hook = (arguments or {}).get("ddp_comm_hook")
    return None if hook is None else str(hook)


def _waits_for_validation(callback: Any) -> bool:
    """Whether this is an EarlyStopping, or names one, that looks at its metric after validation alone."""
    if isinstance(callback, lightning_callbacks.EarlyStopping):
        return callback._check_on_train_epoch_end is False
    kind = _class_of(callback)
    if kind is None or not issubclass(kind, lightning_callbacks.EarlyStopping):
        return False
    arguments = callback.get("init_args") if isinstance(callback, dict) else getattr(callback, "init_args", None)
    return (arguments or {}).get("check_on_train_epoch_end") is False


def _is_whole(strategy: type) -> bool:
    """Whether every rank holds all that is trained, on a kind of machine that is known here."""
    others = (DeepSpeedStrategy, SingleDeviceXLAStrategy, XLAStrategy)  # which derive from these
    return issubclass(strategy, DDPStrategy | SingleDeviceStrategy) and not issubclass(strategy, others)
