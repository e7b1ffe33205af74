"""Why a question gives no dialogue, or a dialogue is not imitated: each is counted under its reason."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class LeftOut(StrEnum):
    """Why a question or a dialogue is left out. The values are parts of metrics' names.

    The first group is about questions that scripted demonstrations are made of, the second about which dialogues are
    wanted. The third is about what this run's agent could not have said, or not have seen.
    """

    NO_GOLD = "no_gold"
    NOT_FOUND = "not_found"
    WRONG = "wrong"
    FEW_SEARCHES = "few_searches"
    SURPLUS = "surplus"
    REPEATED = "repeated"
    NO_ANSWER = "no_answer"
    AFTER_ANSWER = "after_answer"
    UNREADABLE = "unreadable"
    MAX_TURNS = "max_turns"
    MAX_TURN_TOKENS = "max_turn_tokens"
    MAX_TOTAL_TOKENS = "max_total_tokens"
    CITATION = "citation"
    CONTROL = "control_token"

    @property
    def in_words(self) -> str:
        """What such a question or dialogue does."""
        return {
            LeftOut.NO_GOLD: "have no gold answer",
            LeftOut.NOT_FOUND: "ask for what no search shows",
            LeftOut.WRONG: "answer wrong",
            LeftOut.FEW_SEARCHES: "search less than min_searches",
            LeftOut.SURPLUS: "are more than was asked for",
            LeftOut.REPEATED: "repeat a question of another part",
            LeftOut.NO_ANSWER: "end without an answer",
            LeftOut.AFTER_ANSWER: "go on after an answer",
            LeftOut.UNREADABLE: "have a turn that neither searches nor answers",
            LeftOut.MAX_TURNS: "have more than max_turns turns",
            LeftOut.MAX_TURN_TOKENS: "have a turn over max_turn_tokens",
            LeftOut.MAX_TOTAL_TOKENS: "exceed max_total_tokens",
            LeftOut.CITATION: "cite a passage that this run does not show under that number",
            LeftOut.CONTROL: "write a control token of the tokenizer",
        }[self]


def in_words(left_out: Mapping[LeftOut, int]) -> str:
    """Counts by reason, in the order of reasons.

    >>> in_words({LeftOut.CITATION: 0, LeftOut.NO_ANSWER: 2, LeftOut.WRONG: 1})
    '1 answer wrong, 2 end without an answer'
    """
    said = (f"{left_out[reason]} {reason.in_words}" for reason in LeftOut if left_out.get(reason))
    return ", ".join(said) or "none"
