"""`medagent serve`: an agent over HTTP, for people and programs."""

from __future__ import annotations

from typing import Literal

EngineName = Literal["in_process", "vllm", "servers"]
"""What samples the turns."""
