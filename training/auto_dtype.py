"""`model.dtype: auto`: chosen at a run's first start and kept, so that another machine goes on with the same dtype."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only

from medagent.errors import ConfigError
from medagent.models.base_models import STARTER
from medagent.models.precision import AUTO, Precision, resolve_precision

DTYPE = "dtype"  # the key in a checkpoint


def resolve_dtype(dtype: str, base_model: str, *, device: str, run: Path | None = None) -> str:
    """The dtype to load a base in; "auto" takes that of `run`'s checkpoints, or chooses one and prints why."""
    if dtype != AUTO:
        return dtype
    before = _dtype_before(run) if run is not None else None
    found = Precision(before, "the run began in it") if before else resolve_precision(AUTO, base_model, device=device)
    if base_model != STARTER:
        say(f"model.dtype: {base_model} in {found.dtype}, as {found.reason}.")
    return found.dtype


def check_dtype(dtype: str, checkpoint: Mapping[str, object]) -> None:
    """Raise ConfigError if a checkpoint was trained in another dtype."""
    before = checkpoint.get(DTYPE, dtype)
    if before != dtype:
        raise ConfigError(
            f"model.dtype: found {dtype}, and the checkpoint was trained in {before}. Set model.dtype to {before}."
        )


@rank_zero_only
def say(line: str) -> None:
    """Print a line at once, on the first rank alone."""
    print(line, flush=True)


def _dtype_before(run: Path) -> str | None:
    """The dtype of the newest readable checkpoint in a run's folder, None without one."""
    return next((str(found) for _, each in readable_checkpoints(run) if (found := each.get(DTYPE))), None)


def readable_checkpoints(run: Path, torn: Callable[[str], None] = lambda _: None) -> Iterator[tuple[Path, Any]]:
    """The checkpoints of a run with their paths, newest first. `torn` is told of one that cannot be read."""
    for path in sorted(run.glob("checkpoints/*.ckpt"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            yield path, torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, UnpicklingError) as error:
            torn(f"checkpoint {path} cannot be read ({error}); trying the one before it.")
