"""What a corpus says of an answer, judged by the program: its subject, its words, its option and its doses."""

from __future__ import annotations

from typing import Literal

Shown = Literal["stated", "partly", "all"]
"""Which answers people are shown, by their verdict."""
