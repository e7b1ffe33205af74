"""Names of engines, apart from the classes behind them, so that `--help` need not import those."""

from __future__ import annotations

from typing import Literal

EngineName = Literal["in_process", "vllm", "servers"]
