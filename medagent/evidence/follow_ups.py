"""Questions that a person may ask next: those that the passages of the same subject tell something of."""

from __future__ import annotations

from medagent.evidence.kinds import asked_for, question_kinds, tells
from medagent.evidence.verdict import EvidenceKind, EvidenceVerdict
from medagent.evidence.words import folded
from medagent.types import Rollout

MOST_WORDS, MOST_QUESTIONS = 5, 3


def follow_ups(rollout: Rollout, verdict: EvidenceVerdict) -> tuple[str, ...]:
    """Three questions at most, where a passage states the answer.

    The subject is the title of that passage, where it is short enough to be a name. Only kinds of the same sort of
    subject are offered, so that nobody is asked how a drug is inherited. A kind is offered where a passage with that
    title, of those that were read, has its words; that the agent can answer it is not promised.
    """
    if verdict.kind is not EvidenceKind.STATED or not verdict.stated_in:
        return ()
    title = rollout.hits[verdict.stated_in[0] - 1].passage.title.strip()
    if not title or len(title.split()) > MOST_WORDS or not title.replace(" ", "").replace("-", "").isalpha():
        return ()
    asked = asked_for(rollout.question.text)
    sorts = {kind.of for kind in asked if kind.of}
    told = [hit.passage.text for hit in rollout.hits if folded(hit.passage.title) == folded(title)]
    offered = [
        kind.follow_up.format(title)
        for kind in question_kinds()
        if kind.of in sorts and kind not in asked and any(tells(text, (kind,)) for text in told)
    ]
    return tuple(offered[:MOST_QUESTIONS])
