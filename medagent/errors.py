"""Errors that a user can cause or must act on.

Each message says what, what was found, what was wanted, and the remedy.
"""


class MedagentError(Exception):
    """Base of the project's errors. The command line prints these without a traceback."""


class ConfigError(MedagentError):
    """Settings or files that cannot work together."""


class PolicyError(MedagentError):
    """A policy (engine) was misused or cannot run the model."""


class InputError(MedagentError):
    """A file or question given by the user cannot be read."""
