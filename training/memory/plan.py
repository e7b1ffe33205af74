"""`medagent plan`: what a configuration will need, from its settings and the base's configuration alone."""

from dataclasses import replace
from typing import Any

import psutil
import torch
from lightning import Trainer

from medagent.errors import ConfigError
from medagent.models.precision import resolve_precision
from medagent.training.agent_data import rows_of_micro_batch
from medagent.training.command import AgentParser, add_run_settings
from medagent.training.data import RolloutData
from medagent.training.execution import Execution
from medagent.training.lora import LoraSettings
from medagent.training.memory.estimate import GIB, MOMENTS, Load, ModelShape, fit_token_limit, free_memory
from medagent.training.module import AgentModule
from medagent.training.settings import num_ranks
from medagent.types import Limits


def load_of(config: Any, dtype: str, *, world_size: int) -> Load:
    """The work of one rank, from a parsed (not instantiated) configuration of `medagent train`."""
    model, data = config.model, config.data
    rollouts = data.num_questions * data.num_samples // world_size
    lora = [LoraSettings(each.rank, each.alpha) if each else None for each in (model.policy_lora, model.critic_lora)]
    limits = Limits(**vars(data.agent.limits))  # which the last passages may exceed
    assert lora[0] is not None, "the policy has an adapter"
    return Load(
        ModelShape.of(model.base_model),
        dtype,
        lora[0],
        lora[1],
        Execution(**vars(model.execution)),
        replace(limits, max_total_tokens=limits.max_total_tokens + limits.max_observation_tokens),
        rollouts,
        rows_of_micro_batch(
            rollouts,
            parts=data.num_minibatches * data.num_micro_batches,
            together=data.num_samples if model.execution.shared_prefixes else 1,
        ),
        in_process=_name(data.engine) == "InProcessEngine",
        device="cpu" if config.trainer.accelerator == "cpu" else "gpu",
        weight_sync=(vars(data.engine.init_args) if "init_args" in data.engine else {}).get("weight_sync", "auto"),
    )


def report(load: Load, *, memory_gib: float | None) -> str:
    """The memory of a rank by part, as a table; ConfigError if it does not fit into `memory_gib`."""
    parts, peak = load.parts(), load.peak()
    rows = [f"  {'*' if name in MOMENTS else ' '} {name:34s} {size / GIB:8.2f} GiB" for name, size in parts.items()]
    where = "process" if load.device == "cpu" else "GPU"
    title = f"memory of a {where} (the largest of the lines marked * counts):"
    text = "\n".join([title, *rows, f"    {'together, at the worst moment':34s} {peak / GIB:8.2f} GiB"])
    if memory_gib is not None and peak > memory_gib * GIB:
        raise ConfigError(
            f"{text}\nThis does not fit: {peak / GIB:.2f} GiB found, {memory_gib:.2f} GiB wanted. The largest "
            f"part is {max(parts, key=parts.__getitem__)}. Lower model.execution.max_tokens or "
            "data.agent.limits.max_total_tokens, switch on model.execution.gradient_checkpointing, take "
            "model.execution.quantise nf4, or choose a smaller base."
        )
    return text


def with_token_limit(load: Load, *, free_gib: float | None, share: float, sharing: int) -> Load:
    """The load with the limit of tokens that a run would choose for the trainer's `share` of `free_gib`."""
    if load.execution.max_tokens is not None:
        return load
    device = torch.device("cpu" if load.device == "cpu" else "cuda")
    if free_gib is None and device.type == "cuda" and not torch.cuda.is_available():
        print("model.execution.max_tokens: chosen on the GPU; give its free memory with --memory_gib")
        return load
    free = free_gib * GIB if free_gib is not None else free_memory(device, sharing=sharing)
    found = fit_token_limit(load, share * free)
    number = f"{found.max_tokens:,}" if found.max_tokens else "any number"
    print(f"model.execution.max_tokens: {number}, as {found.reason}")
    return replace(load, execution=replace(load.execution, max_tokens=found.max_tokens))


def _name(setting: Any) -> str:
    """The class that a setting names."""
    return str(setting.class_path).rsplit(".", 1)[-1] if "class_path" in setting else ""


def _trainer_share(engine: Any) -> float:
    """The trainer's share of a GPU: what vLLM leaves where both are on it at once."""
    if _name(engine) != "VllmEngine" or engine.init_args.colocated or engine.init_args.settings.devices:
        return 1.0
    return 1.0 - float(engine.init_args.settings.gpu_memory)


def plan(args: list[str]) -> None:
    """Print what a configuration of `medagent train` needs.

    `--memory_gib` says what a device has, if it is not the one here.
    """
    parser = AgentParser(prog="medagent plan", description=str(plan.__doc__))
    parser.add_lightning_class_args(Trainer, "trainer")
    parser.add_lightning_class_args(AgentModule, "model")
    parser.add_lightning_class_args(RolloutData, "data")
    parser.add_argument("--seed_everything", type=int, default=0)
    parser.add_argument("--config", action="config")
    add_run_settings(parser, RolloutData)
    parser.add_argument("--memory_gib", type=float | None, default=None, help="memory of a GPU, or of the machine")
    config = parser.parse_args(args)
    count = num_ranks(config.trainer.devices, 1) or 1
    device = "cpu" if config.trainer.accelerator == "cpu" else "cuda"
    precision = resolve_precision(config.model.dtype, config.model.base_model, device=device)
    load = load_of(config, precision.dtype, world_size=count * config.trainer.num_nodes)
    room: float | None = config.memory_gib
    if room is None and device == "cpu":
        room = psutil.virtual_memory().total / GIB
    elif room is None and torch.cuda.is_available():
        room = torch.cuda.get_device_properties(0).total_memory / GIB
    share = _trainer_share(config.data.engine) if device != "cpu" else 1.0
    room = room * share if room is not None else None
    print(f"model.dtype: {precision.dtype}, as {precision.reason}")
    load = with_token_limit(load, free_gib=config.memory_gib, share=share, sharing=count)
    print(report(load, memory_gib=room))
    there = f"{room:.2f} GiB" if room else "no GPU on this machine; --memory_gib says what yours has"
    print(f"there for the trainer: {there}")
