"""The command line of a part of a run: its configuration files, its settings, and whether it is done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from medagent.files import write_whole


def constant_share(scale: float) -> dict[str, Any]:
    """Settings that cut every step of the policy to this share, without looking at the clipping bias."""
    settings = {"normaliser": "constant", "constant": scale}
    callback = {"class_path": "medagent.training.callbacks.ClippingBiasCorrection", "init_args": settings}
    return {"trainer": {"callbacks+": [callback]}}


def once(folder: Path, arguments: list[str]) -> Iterator[list[str]]:
    """The arguments, unless this part has ended well; it is marked beside its folder once the next one is asked for."""
    mark = folder.with_name(f"{folder.name}.done")
    if not mark.exists():
        yield arguments
        mark.touch()


def ends(run: Path, units: float) -> list[str]:
    """A run in this folder that ends by its budget."""
    callback = {"class_path": "medagent.training.callbacks.ComputeBudget", "init_args": {"units": float(units)}}
    files = config_files(run.parent, f"{run.name}-budget", [{"trainer": {"callbacks+": [callback]}}])
    return [*files, f"--trainer.default_root_dir={run}"]


def config_files(folder: Path, name: str, contents: Sequence[dict[str, Any]]) -> list[str]:
    """Write configuration files to `folder`, and give them as arguments.

    They come from the plan: who edits a study's files while it runs does not change it.
    """
    arguments = []
    for number, values in enumerate(contents):
        path = folder / f"{name}-{number}.yaml"
        write_whole(path, yaml.safe_dump(values, sort_keys=False))
        arguments += ["--config", str(path)]
    return arguments


def options(settings: dict[str, Any]) -> list[str]:
    """Settings as the command line takes them: null, lists and numbers as JSON."""
    return [
        f"--{name}={value if isinstance(value, str | Path) else json.dumps(value)}" for name, value in settings.items()
    ]
