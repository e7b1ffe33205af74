"""Errors that a user can cause or must act on.

Each message says what, what was found, what was wanted, and the remedy.
"""

import math


class MedagentError(Exception):
    """Base of the project's errors. The command line prints these without a traceback."""


class ConfigError(MedagentError):
    """Settings or files that cannot work together."""


class PolicyError(MedagentError):
    """A policy (engine) was misused or cannot run the model."""


class EndpointError(PolicyError):
    """An endpoint gave no usable answer to one request. Others may be answered.

    `since` is the monotonic time in seconds at which it first failed, infinite where it was asked once. `host` is the
    server's name and port, and `status` its last one, 0 where it gave none. `retry_after_s` is None where waiting does
    not help.
    """

    def __init__(
        self,
        message: str,
        *,
        since: float = math.inf,
        host: str = "",
        status: int = 0,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.since, self.host, self.status, self.retry_after_s = since, host, status, retry_after_s


class InputError(MedagentError):
    """A file or question given by the user cannot be read."""
