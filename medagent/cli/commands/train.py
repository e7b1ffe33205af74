"""The commands about training: `train`, `sft`, `plan` and `export`."""

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal


def train() -> None:
    """Train an agent: `medagent train --config FILE` plus overrides; `medagent train --help` lists every setting."""


def sft() -> None:
    """Teach a model the protocol by examples, before reinforcement learning.

    `medagent sft --config configs/sft/own_model.yaml`; `medagent sft --help` lists every setting.
    """


def plan() -> None:
    """Say what memory a configuration needs, by part, without loading weights.

    `medagent plan --config FILE ...`, as for train.
    """


def export(
    agent: str,
    out: str = "runs/export",
    form: Literal["merged", "adapter"] = "merged",
    dtype: str | None = None,
    max_merge_lost: float = 0.05,
    overwrite: bool = False,
) -> None:
    """Write an agent as one merged model, or as its adapter, with a model card.

    transformers, vLLM and `medagent` load both. A merge into bfloat16 may round most of an adapter away. It is refused
    then: take float32, or the adapter.

    Args:
        agent: Folder of an exported agent, such as runs/mine/agent.
        out: Folder of the export.
        form: merged writes one model. adapter writes the LoRA alone, for its base.
        dtype: Of the merged weights; by default the agent's own.
        max_merge_lost: Largest share of the adapter that rounding may take.
        overwrite: Replace what an earlier export left there.
    """
    from medagent.errors import InputError
    from medagent.export import export_adapter, export_merged

    if form == "adapter":
        if dtype is not None:
            raise InputError(f"--dtype {dtype}: an adapter is written as it is. Leave --dtype or --form adapter out.")
        export_adapter(Path(agent), Path(out), overwrite=overwrite)
    else:
        export_merged(Path(agent), Path(out), dtype=dtype, max_merge_lost=max_merge_lost, overwrite=overwrite)


def check() -> None:
    """Try a configuration: one iteration on two questions, its tokens, rewards and update, and the commonest mistakes.

    `medagent check --config FILE ...`, as for train. Nothing is kept.
    """


def _plan(arguments: list[str]) -> None:
    from medagent.training.memory.plan import plan as run_plan

    run_plan(arguments)


def _training(name: str, arguments: list[str]) -> None:
    from medagent.training.command import sft_command, train_command
    from medagent.training.run import end_rank
    from medagent.training.trial import check_command

    commands: dict[str, Callable[[list[str]], object]] = {
        "train": train_command,
        "sft": sft_command,
        "check": check_command,
    }
    commands[name](arguments)
    end_rank()


def settings_help(command: str) -> str:
    """The help of a command that parses settings. `make reference` writes it: the parser itself takes seconds."""
    return (files("medagent.cli") / "help" / f"{command}.txt").read_text(encoding="utf-8").rstrip()


# These commands parse a configuration's settings themselves.
CONFIGURED: dict[str, Callable[[list[str]], None]] = {
    "train": partial(_training, "train"),
    "plan": _plan,
    "check": partial(_training, "check"),
    "sft": partial(_training, "sft"),
}
TRAINING_COMMANDS: dict[str, Any] = {
    "train": train,
    "check": check,
    "plan": plan,
    "sft": sft,
    "export": export,
}
