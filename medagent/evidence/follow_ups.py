"""Questions that a person may ask next: those that the corpus' passages of the same subject tell something of."""

from __future__ import annotations

from collections.abc import Sequence

from medagent.evidence.kinds import asked_for, question_kinds, tells
from medagent.evidence.verdict import EvidenceKind, EvidenceVerdict
from medagent.evidence.words import folded
from medagent.retrieval.passages import Passage
from medagent.types import Rollout

MOST_WORDS, MOST_QUESTIONS = 5, 3


def subject_of(rollout: Rollout, verdict: EvidenceVerdict) -> str:
    """The title of the passage that states the answer, where it is short enough to be a name; else empty."""
    if verdict.kind is not EvidenceKind.STATED or not verdict.stated_in:
        return ""
    title = rollout.hits[verdict.stated_in[0] - 1].passage.title.strip()
    plain = title.replace(" ", "").replace("-", "").isalpha()
    return title if plain and len(title.split()) <= MOST_WORDS else ""


def follow_ups(question: str, subject: str, passages: Sequence[Passage]) -> tuple[str, ...]:
    """Three questions on the subject at most.

    Only kinds of the same sort of subject are offered, so that nobody is asked how a drug is inherited. A kind is
    offered where one of the passages with the subject as title has its words; that the agent can answer it is not
    promised.
    """
    asked = asked_for(question)
    sorts = {kind.of for kind in asked if kind.of}
    told = [passage.text for passage in passages if folded(passage.title) == folded(subject)]
    offered = [
        kind.follow_up.format(subject)
        for kind in question_kinds()
        if kind.of in sorts and kind not in asked and any(tells(text, (kind,)) for text in told)
    ]
    return tuple(offered[:MOST_QUESTIONS])
