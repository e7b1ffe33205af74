"""Makes the starter base policy, or a variant.

python -m studies.starter_base build --out DIR
python -m studies.starter_base lengthen 22
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
from jsonargparse import auto_cli

from medagent.errors import MedagentError
from medagent.starter.world import World
from studies.starter_base.build import WarmStartConfig, warm_start
from studies.starter_base.build import lengthen as lengthen_base


def build(out: str = "runs/starter-base", hidden_size: int = 128, seed: int = 0, threads: int = 0) -> None:
    """Make the starter base policy, in about half an hour on 2 cores. After an interruption the same command goes on.

    It is trained from scratch on made-up names.

    Args:
        out: Folder for tokenizer and weights.
        hidden_size: Width of the model, a multiple of 8; the packaged one has 128. FFN layers are twice as wide.
        seed: Seed of names, lessons and initialisation.
        threads: Torch threads; 0 keeps torch's own choice.
    """
    if threads:
        torch.set_num_threads(threads)
    config = WarmStartConfig(seed=seed, hidden_size=hidden_size, intermediate_size=2 * hidden_size)
    world = World.load()
    texts = [text for c in world.conditions if c.split == "train" for text in (c.name, *c.facts.values())]
    _tell(out, warm_start(Path(out), config, forbidden=world.names, texts=texts, report=partial(print, flush=True)))


def lengthen(thinking: int, out: str | None = None, steps: int = 800, seed: int = 0, threads: int = 0) -> None:
    """Teach the packaged base to think aloud in every turn: the same task with longer turns.

    Args:
        thinking: Least tokens of thinking per turn; a turn goes on to the end of a sentence. 22 makes whole turns of
            40 tokens, and 54 makes 74. 0 trains on without thinking, as a control.
        out: Folder for tokenizer and weights. By default it is runs/starter-thinking-THINKING.
        steps: Optimizer steps.
        seed: Seed of names and lessons.
        threads: Torch threads; 0 keeps torch's own choice.
    """
    if threads:
        torch.set_num_threads(threads)
    folder = Path(out or f"runs/starter-thinking-{thinking}")
    names, report = World.load().names, partial(print, flush=True)
    _tell(folder, lengthen_base(folder, thinking=thinking, forbidden=names, steps=steps, seed=seed, report=report))


def _tell(out: str | Path, figures: dict[str, float]) -> None:
    print(f"Saved to {out}: lookup accuracy {figures['lookup_accuracy']:.1%} after {figures['minutes']:.1f} minutes.")


COMMANDS = [build, lengthen]

if __name__ == "__main__":
    try:
        auto_cli(COMMANDS, as_positional=True, prog="python -m studies.starter_base")
    except MedagentError as error:
        sys.exit(str(error))
