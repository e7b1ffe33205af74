"""Settings of the service by group, apart from what they set: `--help` need not import that."""

from dataclasses import dataclass, field
from typing import Literal

from medagent.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1")
EngineName = Literal["in_process", "vllm", "servers"]
"""The engine that samples the turns."""


@dataclass(frozen=True)
class AuthSettings:
    """Who may ask.

    Args:
        api_key_hashes: File with the SHA-256 digest of one bearer token per line. Requests then need one of them.
        allowed_hosts: Host names under which a proxy in front reaches the service, as
            --auth.allowed_hosts '[medagent.example.org]'. Requests to others are refused.
    """

    api_key_hashes: str | None = None
    allowed_hosts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AdmissionLimits:
    """How many questions are answered, wait, and for how long.

    Args:
        max_running: Questions answered at once.
        max_waiting: Questions that may wait; more are refused with status 429.
        timeout_s: Seconds that an answer may take, waiting included.
        max_per_key: Questions of one bearer token that may run and wait at once; more are refused likewise.
    """

    max_running: int = 64
    max_waiting: int = 256
    timeout_s: float = 120.0
    max_per_key: int = 32

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.max_waiting < 0 or self.timeout_s <= 0 or self.max_per_key < 1:
            raise ConfigError(
                f"limits: found max_running {self.max_running}, max_waiting {self.max_waiting}, timeout_s "
                f"{self.timeout_s:g} and max_per_key {self.max_per_key}, wanted 1 or more, 0 or more, above 0, and "
                "1 or more."
            )


@dataclass(frozen=True)
class PageSettings:
    """Files of the page.

    Args:
        examples: JSON lines of questions that the page offers. By default it is examples.jsonl in the agent's folder.
        feedback: File to which answers are written that people report as wrong, with their whole rollouts.
    """

    examples: str | None = None
    feedback: str | None = None
