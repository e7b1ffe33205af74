"""Names of engines, apart from their classes: `--help` need not import those."""

from __future__ import annotations

from typing import Literal

EngineName = Literal["in_process", "vllm", "servers"]
