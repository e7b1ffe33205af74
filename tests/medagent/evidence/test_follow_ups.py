"""Which questions are offered next."""

from __future__ import annotations

from medagent.evidence.check import follow_ups, subject_of
from medagent.evidence.support import LexicalRule
from medagent.evidence.verdict import judge
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn

DRUG = Passage.make("trachoma", "The usual first-line drug is oral azithromycin.", id="drug")
SIGN = Passage.make("Trachoma", "The classic sign is inturned eyelashes.", id="sign")
CAUSE = Passage.make("gout", "It is caused by crystals of urate.", id="cause")
HARMS = Passage.make("azithromycin", "Nausea is a side effect. It is caused by irritation.", id="harms")
LONG = Passage.make("What the first-line drug for trachoma may be", "The drug for trachoma is azithromycin.", id="l")


def offered(question: str, answer: str, *shown: Passage) -> tuple[str, ...]:
    turns = (
        Turn((1,), (0.0,), "", query="q", hits=tuple(Hit(each, 1.0) for each in shown)),
        Turn((2,), (0.0,), "", answer=answer),
    )
    rollout = Rollout(Question("q", question), (5,), turns, StopReason.ANSWERED)
    subject = subject_of(rollout, judge(rollout, LexicalRule()))
    return follow_ups(question, subject, shown) if subject else ()


def test_kinds_that_the_subjects_passages_tell() -> None:
    for question, answer, shown, wanted in [
        ("What is the drug for trachoma?", "azithromycin [1]", (DRUG, SIGN), ("What are the signs of trachoma?",)),
        ("What is the sign of trachoma?", "inturned eyelashes [2]", (DRUG, SIGN), ("How is Trachoma treated?",)),
        ("What is the drug for trachoma?", "azithromycin [1]", (DRUG, CAUSE), ()),
        ("What are the side effects of azithromycin?", "nausea [1]", (HARMS,), ()),
        ("What is the drug for trachoma?", "azithromycin [1]", (LONG, SIGN), ()),
        ("What is the drug for trachoma?", "colchicine [1]", (DRUG, SIGN), ()),
        ("What is the drug for gout?", "azithromycin [1]", (DRUG, SIGN), ()),
    ]:
        assert offered(question, answer, *shown) == wanted
