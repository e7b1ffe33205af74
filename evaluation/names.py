"""Names that the command line offers, apart from the classes behind them, so that `--help` need not import those."""

from __future__ import annotations

from typing import Literal

BenchmarkName = Literal[
    "starter",
    "medqa",
    "medmcqa",
    "pubmedqa",
    "pubmedqa_with_abstract",
    "pubmedqa_yes_no",
    "mmlu",
    "bioasq",
    "medxpertqa",
    "open",
    "jsonl",
]
ModeName = Literal["search", "forced_search", "closed_book", "gold", "single_shot", "unrelated"]
