"""`load_from_checkpoint` of a file that may come from others."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Self

from lightning import LightningModule
from lightning.fabric.utilities.cloud_io import _load
from lightning.pytorch.core.saving import CHECKPOINT_PAST_HPARAMS_KEYS

from medagent.config_files import known_class


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
