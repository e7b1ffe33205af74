"""Errors that a user can cause or must act on.

Each message says what, what was found, what was wanted, and the remedy.
"""

import math


class MedagentError(Exception):
    """Base of the project's errors. The command line prints these without a traceback.

    What a kind of error tells beside its message becomes attributes.
    """

    def __init__(self, message: str, **told: object) -> None:
        super().__init__(message)
        vars(self).update(told)


class ConfigError(MedagentError):
    """Settings or files that cannot work together."""


def require(holds: bool, setting: str, found: object, wanted: str) -> None:
    """Raise ConfigError, which names the setting, what was found and what was wanted, unless it `holds`."""
    if not holds:
        raise ConfigError(f"{setting}: found {found}, wanted {wanted}.")


class PolicyError(MedagentError):
    """A policy (engine) was misused or cannot run the model."""


class EndpointError(PolicyError):
    """An endpoint gave no usable answer to one request. Others may be answered.

    `since`: the monotonic time in seconds of its first failure, infinite if it was asked once. `host` and `status`, 0
    without any, are the server's. Waiting `retry_after_s`, if any, may help.
    """

    since, host, status = math.inf, "", 0
    retry_after_s: int | None = None


class InputError(MedagentError):
    """A file or question given by the user cannot be read."""
