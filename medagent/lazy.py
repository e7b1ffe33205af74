"""Names of a package that are imported when they are first used, so that importing the package stays cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names live in other modules, its homes.

    Import the same names below `if TYPE_CHECKING:`, so that type checkers see them. A home `PACKAGE.NAME` is the
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
