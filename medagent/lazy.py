"""What packages of all floors need: names that are imported when they are first used, and YAML files of their own."""

import ast
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any


@cache
def packaged(package: str, name: str) -> Any:
    """What a YAML file of a package holds. It is read once, and not to be changed."""
    import yaml  # which a package that reads no file does not wait for

    return yaml.safe_load(files(package).joinpath(name).read_text(encoding="utf-8"))


def homes_in(package: str, file: str) -> dict[str, str]:
    """The homes of the names that a package's file imports below `if TYPE_CHECKING:`, for `lazy`."""
    tests = [node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    imports = [each for node in tests for each in node.body if isinstance(each, ast.ImportFrom)]
    homes = {alias.name: str(each.module) for each in imports for alias in each.names}
    return {name: f"{package}.{name}" if home == package else home for name, home in homes.items()}


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names live in other modules, its homes.

    Type checkers see what is imported below `if TYPE_CHECKING:`, which `homes_in` reads. A home `PACKAGE.NAME` is the
    subpackage itself.

    Raises:
        ImportError: a folder of a checkout is imported by its own name. Its classes would then exist twice.
    """
    if package.partition(".")[0] != "medagent":
        raise ImportError(f"{package}: found an import by the folder's name, wanted medagent.{package}.")

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else vars(module)[name]

    return get, lambda: sorted({*vars(sys.modules[package]), *homes})
