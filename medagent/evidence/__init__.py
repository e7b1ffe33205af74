"""Judges by program whether a corpus states an answer: its subject, its words, its option and its doses."""

from typing import Literal

Shown = Literal["stated", "partly", "all"]
"""The least verdict of an answer that people are shown."""
