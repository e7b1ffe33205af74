"""Names that the command line offers, apart from their classes: `--help` need not import those."""

from __future__ import annotations

from typing import Literal, get_args

BenchmarkName = Literal[
    "starter",
    "medqa",
    "medmcqa",
    "pubmedqa",
    "pubmedqa_with_abstract",
    "pubmedqa_yes_no",
    "mmlu",
    "bioasq",
    "bioasq_factoid",
    "bioasq_list",
    "bioasq_yes_no",
    "medxpertqa",
    "open",
    "jsonl",
]
BENCHMARKS: tuple[str, ...] = get_args(BenchmarkName)
ModeName = Literal[
    "search", "forced_search", "closed_book", "gold", "single_shot", "unrelated", "without_evidence", "injected"
]
Prompting = Literal["tags", "plain", "likelihood", "likelihood_of_texts"]
