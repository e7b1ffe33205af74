"""The kinds of verdict on an answer, and what each says."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from medagent.evidence.reading import quoted
from medagent.types import StopReason

NOTHING_ON_IT = "The corpus does not say: a search for the question's own words finds nothing on it."
NOTHING_SURE = "No sentence was found that surely answers this question."
WHY_NONE = {
    StopReason.ANSWERED: "its reply was empty",
    StopReason.MALFORMED: "its reply was neither a search nor an answer",
    StopReason.MAX_TURNS: "it searched until its turns were used up",
    StopReason.MAX_TURN_TOKENS: "its reply was longer than a turn may be",
    StopReason.MAX_TOTAL_TOKENS: "the dialogue was longer than it may be",
    StopReason.REFUSED: "the model's server refused",
    StopReason.ERROR: "the model's server or the search failed",
}


class EvidenceKind(StrEnum):
    """How far the corpus states an answer."""

    STATED = "stated"
    PARTLY = "partly"
    OWN_WORDS = "own_words"  # a cited passage is on the subject, in other words
    SOMETHING_ELSE = "something_else"  # a passage says it, of another subject or another kind of thing
    NOT_READ = "not_read"  # no passage that was read says it
    NOT_SAID = "not_said"  # nor does the corpus, by a search for the question's own words
    NO_ANSWER = "no_answer"  # the agent gave none
    ASKS_BACK = "asks_back"  # nobody can tell what is asked
    OTHER_LANGUAGE = "other_language"  # the question is not in English


@dataclass(frozen=True)
class EvidenceVerdict:
    """The verdict on one answer.

    `stated_in` are the numbers of the passages that state it. `text` says the verdict in a sentence or two. `missing`
    are words of the question that those passages lack. `did_you_mean` are titles of the corpus near a misspelt name.
    `unsafe`: the answer names a dose that no passage it cites contains. `contradicts`: the letter is another text's.
    """

    kind: EvidenceKind
    text: str
    stated_in: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    did_you_mean: tuple[str, ...] = ()
    unsafe: bool = False
    contradicts: bool = False

    @property
    def told(self) -> str:
        """The text, with the names that may be meant."""
        return f"{self.text} Did you mean {quoted(self.did_you_mean, last='or')}?" if self.did_you_mean else self.text

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        lists = {name: list(getattr(self, name)) for name in ("stated_in", "missing", "did_you_mean")}
        return {"kind": self.kind.value, "text": self.text, **lists}
