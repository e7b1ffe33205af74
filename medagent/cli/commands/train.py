"""The commands about training: `train`, `sft`, `preference`, `plan`, `export` and `starter`."""

from __future__ import annotations

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


def preference() -> None:
    """Teach a model to prefer its right rollouts to its wrong ones, by DPO, TDPO1 or TDPO2.

    `medagent preference --config configs/preference/starter.yaml`; `medagent preference --help` lists every setting.
    """


def plan() -> None:
    """Say what a configuration needs (parameters, memory by part, tokens) without loading weights.

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


def starter_build(out: str = "runs/starter-base", hidden_size: int = 128, seed: int = 0, threads: int = 0) -> None:
    """Make the starter base policy, in about half an hour on 2 cores. After an interruption the same command goes on.

    It is trained from scratch on made-up names.

    Args:
        out: Folder for tokenizer and weights.
        hidden_size: Width of the model, a multiple of 8; the packaged one has 128. FFN layers are twice as wide.
        seed: Seed of names, lessons and initialisation.
        threads: Torch threads; 0 keeps torch's own choice.
    """
    import torch

    from medagent.starter.world import World
    from medagent.training.starter.build import WarmStartConfig, warm_start

    if threads:
        torch.set_num_threads(threads)
    config = WarmStartConfig(seed=seed, hidden_size=hidden_size, intermediate_size=2 * hidden_size)
    world = World.load()
    texts = [text for c in world.conditions if c.split == "train" for text in (c.name, *c.facts.values())]
    figures = warm_start(Path(out), config, forbidden=world.names, texts=texts, report=partial(print, flush=True))
    print(f"Saved to {out}: lookup accuracy {figures['lookup_accuracy']:.1%} after {figures['minutes']:.1f} minutes.")


def starter_lengthen(thinking: int, out: str | None = None, steps: int = 800, seed: int = 0, threads: int = 0) -> None:
    """Teach the packaged base to think aloud in every turn: the same task with longer turns.

    Args:
        thinking: Least tokens of thinking per turn; a turn goes on to the end of a sentence. 22 makes whole turns of
            40 tokens, and 54 makes 74. 0 trains on without thinking, as a control.
        out: Folder for tokenizer and weights. By default it is runs/starter-thinking-THINKING.
        steps: Optimizer steps.
        seed: Seed of names and lessons.
        threads: Torch threads; 0 keeps torch's own choice.
    """
    import torch

    from medagent.starter.world import World
    from medagent.training.starter.build import lengthen

    if threads:
        torch.set_num_threads(threads)
    folder = Path(out or f"runs/starter-thinking-{thinking}")
    names = World.load().names
    report = partial(print, flush=True)
    figures = lengthen(folder, thinking=thinking, forbidden=names, steps=steps, seed=seed, report=report)
    print(
        f"Saved to {folder}: lookup accuracy {figures['lookup_accuracy']:.1%} after {figures['minutes']:.1f} minutes."
    )


def _plan(arguments: list[str]) -> None:
    from medagent.training.memory.plan import plan as run_plan

    run_plan(arguments)


def _training(name: str, arguments: list[str]) -> None:
    from medagent.training import command
    from medagent.training.run import end_rank

    run = {"train": command.train_command, "sft": command.sft_command, "preference": command.preference_command}[name]
    run(arguments)
    end_rank()


def settings_help(command: str) -> str:
    """The help of a command that parses settings. `make reference` writes it: the parser itself takes seconds."""
    return (files("medagent.cli") / "help" / f"{command}.txt").read_text(encoding="utf-8").rstrip()


# These commands parse a configuration's settings themselves.
CONFIGURED: dict[str, Callable[[list[str]], None]] = {
    "train": partial(_training, "train"),
    "plan": _plan,
    "sft": partial(_training, "sft"),
    "preference": partial(_training, "preference"),
}
TRAINING_COMMANDS: dict[str, Any] = {
    "train": train,
    "plan": plan,
    "sft": sft,
    "preference": preference,
    "export": export,
    "starter": {
        "_help": "Make the starter base policy, or a variant.",
        "build": starter_build,
        "lengthen": starter_lengthen,
    },
}
