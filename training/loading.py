"""How bases and checkpoints are loaded: in the dtype that a run began in, and without running anybody's code."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Self

import torch
from lightning import LightningModule
from lightning.fabric.utilities.cloud_io import _load
from lightning.pytorch.core.saving import CHECKPOINT_PAST_HPARAMS_KEYS
from lightning.pytorch.utilities import rank_zero_only

from medagent.config_files import known_class
from medagent.errors import ConfigError
from medagent.models.base_models import STARTER
from medagent.models.precision import AUTO, Precision, resolve_precision

DTYPE = "dtype"  # the key in a checkpoint


def resolve_dtype(dtype: str, base_model: str, *, device: str, run: Path | None = None) -> str:
    """The dtype to load a base in; "auto" takes that of `run`'s checkpoints, or chooses one and prints why."""
    if dtype != AUTO:
        return dtype
    kept = (each.get(DTYPE) for _, each in readable_checkpoints(run)) if run is not None else ()
    before = next((str(each) for each in kept if each), None)
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


def readable_checkpoints(run: Path, torn: Callable[[str], None] = lambda _: None) -> Iterator[tuple[Path, Any]]:
    """The checkpoints of a run with their paths, newest first. `torn` is told of one that cannot be read."""
    for path in sorted(run.glob("checkpoints/*.ckpt"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            yield path, torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, UnpicklingError) as error:
            torn(f"checkpoint {path} cannot be read ({error}); trying the one before it.")


class CheckedModule(LightningModule):
    """A module whose checkpoints hold settings as a configuration writes them, with classes by name."""

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls, checkpoint_path: Any, map_location: Any = None, **kwargs: Any
    ) -> Self:
        """See Lightning. It reads no pickle.

        Raises:
            ConfigError: the checkpoint names a class that is not the project's own, in a module not imported yet.
        """
        whole, found = _load(checkpoint_path, map_location="cpu", weights_only=True), dict[str, Any]()
        for key in (*CHECKPOINT_PAST_HPARAMS_KEYS, cls.CHECKPOINT_HYPER_PARAMS_KEY):  # all of which Lightning reads
            found |= whole.get(key, {})
        # Lightning ignores what only an earlier version took, and checks its own, "_...".
        taken = inspect.signature(cls).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
            found = {name: each for name, each in found.items() if name in taken or name[0] == "_"}
        # A setting that takes an object may name its class by a bare text too.
        plain = {name for name, each in taken.items() if isinstance(each.default, str)}
        bare = [each for name, each in found.items() if isinstance(each, str) and name not in plain and name[0] != "_"]
        for path in [*bare, *class_paths(found)]:
            known_class(path, f"checkpoint {checkpoint_path}")
        return super().load_from_checkpoint(checkpoint_path, map_location, **{**kwargs, "weights_only": True})


def class_paths(value: Any) -> Iterator[str]:
    """The values of `class_path`, wherever in settings."""
    if isinstance(value, Mapping):
        yield from (str(each) for name, each in value.items() if str(name).rpartition(".")[2] == "class_path")
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from class_paths(each)
