"""Names that the command line offers, apart from their classes: `--help` need not import those."""

from typing import Literal

ModeName = Literal[
    "search", "forced_search", "closed_book", "gold", "single_shot", "unrelated", "without_evidence", "injected"
]
Prompting = Literal["tags", "tools", "plain", "lines", "likelihood", "likelihood_of_texts"]
CopFrom = Literal["zero", "one"]
