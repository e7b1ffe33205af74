"""`model.dtype: auto`: chosen at a run's first start and kept, so that another machine goes on with the same dtype."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError

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
    for path in sorted(run.glob("checkpoints/*.ckpt"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, UnpicklingError):
            continue  # torn; the run says so when it goes on from the one before
        if found := checkpoint.get(DTYPE):
            return str(found)
    return None
