"""Configuration files: where they lie, and the classes that they name.

Agents and runs hold settings too, and may come from others. Opening one never imports a module that it names.
"""

import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from medagent.errors import ConfigError, InputError


def packaged_configs() -> Path:
    """The folder of the packaged configurations."""
    return Path(str(files("medagent") / "configs"))


def config_path(name: str) -> Path:
    """A configuration file: the user's own, or a packaged one such as "starter.yaml" or "configs/critic/group.yaml"."""
    given, packaged = Path(name), packaged_configs()
    inner = given.relative_to("configs") if given.parts[:1] == ("configs",) else given
    for found in (given, packaged / inner, packaged / "experiments" / inner):
        if found.is_file():
            return found
    known = ", ".join(sorted(path.name for path in (packaged / "experiments").glob("*.yaml")))
    raise ConfigError(f"--config {name}: found no such file, here or among medagent's own ({known}). Correct its path.")


def with_config_paths(arguments: list[str]) -> list[str]:
    """Command-line arguments whose `--config` names the files that `config_path` finds."""
    found = list(arguments)
    for at, argument in enumerate(arguments):
        if argument.startswith("--config="):
            found[at] = f"--config={config_path(argument.removeprefix('--config='))}"
        elif argument == "--config" and at + 1 < len(arguments):
            found[at + 1] = str(config_path(arguments[at + 1]))
    return found


def with_one_algorithm(arguments: list[str]) -> list[str]:
    """Arguments of `medagent train` in which the last file's `algorithm` is the run's, and no part of others is left.

    An `algorithm` has a name, callbacks, and settings below `model` and `data`. The last file's own settings win over
    those of its algorithm. Settings of an earlier file that equal those of its own algorithm go with it.
    """
    files = []
    for at, argument in enumerate(arguments):
        given = arguments[at - 1] == "--config" if at else False
        if given or argument.startswith("--config="):
            name = argument if given else argument.removeprefix("--config=")
            try:
                text = Path(name).read_text(encoding="utf-8")
            except (OSError, ValueError):
                text = name  # the settings themselves
            try:
                settings = yaml.safe_load(text)
            except yaml.YAMLError:
                continue  # the parser says what is wrong
            if isinstance(settings, dict) and "algorithm" in settings:
                _check_algorithm(settings["algorithm"])
                files.append((at, "" if given else "--config=", settings))
    found = list(arguments)
    for (at, option, _), settings in zip(files, one_algorithm([each for *_, each in files]), strict=True):
        found[at] = option + yaml.safe_dump(settings, sort_keys=False)
    return found


def one_algorithm(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """See `with_one_algorithm`: of the settings of files that each have an `algorithm`."""
    found = []
    for number, settings in enumerate(files, start=1):
        last = number == len(files)
        kept = {name: value for name, value in settings.items() if last or name != "algorithm"}
        for part in ("model", "data"):
            chosen, own = settings["algorithm"].get(part) or {}, settings.get(part) or {}
            others = {name: value for name, value in own.items() if chosen.get(name, ...) != value}
            kept[part] = {**chosen, **own} if last else others
        found.append(kept)
    return found


def _check_algorithm(found: Any) -> None:
    fits = isinstance(found, dict) and found.keys() <= {"name", "callbacks", "model", "data"}
    if not fits or not all(isinstance(found.get(part) or {}, dict) for part in ("model", "data")):
        raise ConfigError(
            f"algorithm: found {found}, wanted a name, callbacks, and settings below model and data. A packaged one is "
            "given as --config algorithms/st_ppo.yaml."
        )


def is_known(path: str) -> bool:
    """Whether a class path leads into the project, or into a module that the user's own program has imported."""
    module = path.rpartition(".")[0]
    return module in sys.modules or module.partition(".")[0] == "medagent"


def known_class(path: str, where: str) -> Any:
    """What a path such as "my_task.MyProtocol" in `where` names, None where its module lacks that name.

    Raises:
        ConfigError: it is not `is_known`. Its module is not imported.
    """
    if not is_known(path):
        raise ConfigError(
            f"{where}: found the class {path}, wanted one of the project's own. Importing another runs code of whoever "
            f"wrote it. If you trust it, add --allow_class {path}, or in Python import its module first."
        )
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None


def allow_class(path: str) -> None:
    """Import a class that the user trusts, so that files may name it."""
    module, _, name = path.rpartition(".")
    try:
        found = vars(import_module(module))[name]
    except Exception as error:  # a user's module may raise anything when it is imported
        raise InputError(
            f"--allow_class {path}: cannot be imported ({error!r}), wanted a class that Python finds from here, such "
            "as my_task.MyTool. Run the command where its module lies, or install it."
        ) from error
    if not isinstance(found, type):
        raise InputError(f"--allow_class {path}: found {found!r}, wanted a class. Name its class.")
