"""What jsonargparse says of a wrong configuration, in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.fabric.utilities.exceptions import MisconfigurationException

from medagent.errors import ConfigError

# The part of a message of jsonargparse that names the class; the others tell what else a setting may be.
PROBLEM = re.compile(
    r"(?:Problem with given class_path|Expected a dot import path string:) .+?(?=\n\s*- |\nGiven value|\Z)", re.DOTALL
)


def in_one_line(message: str) -> str:
    """A parser's message without line breaks, and without other forms of a setting that names a class."""
    setting, problems = re.match(r'Parser key "[^"]+":', message), PROBLEM.findall(message)
    return " ".join((f"{setting[0]} {problems[-1]}" if setting and problems else message).split())


@contextmanager
def errors_of_classes() -> Iterator[None]:
    """Raise what a class of the configuration raised, and not the parser's account of it.

    Raises:
        ConfigError: a package is missing, or Lightning refuses a setting.
    """
    try:
        yield
    except (ValueError, ImportError, MisconfigurationException) as error:
        cause: BaseException = error
        while isinstance(cause, ValueError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, ImportError | MisconfigurationException):
            raise ConfigError(" ".join(str(cause).split())) from error
        raise cause from None
