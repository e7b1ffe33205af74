"""A tiny corpus in memory, questions on it, and the rules under which dialogues are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from medagent.protocol import TagProtocol
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.passages import Hit, Passage
from medagent.training.agent_data import AgentSettings
from medagent.types import Limits, Question, Rollout, StopReason, Turn

RULES = AgentSettings(TagProtocol(instructions=""), Limits(4, 60, 400, 2000), top_k=2)


@dataclass
class WordRetriever:
    """Ranks passages by how many of a query's stems they hold, then by their order, and keeps the queries."""

    passages: Sequence[Passage]
    asked: list[str] = field(default_factory=list)

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        self.asked += queries
        return [self._hits(set(Analyser().tokens(query)))[:top_k] for query in queries]

    def _hits(self, wanted: set[str]) -> list[Hit]:
        scored = [
            Hit(passage, float(len(wanted & set(Analyser().tokens(passage.indexed_text))))) for passage in self.passages
        ]
        return sorted((hit for hit in scored if hit.score), key=lambda hit: -hit.score)


class Asked:
    """A benchmark of given questions."""

    def __init__(self, *questions: Question) -> None:
        self._questions = list(questions)

    def questions(self) -> list[Question]:
        return self._questions


def passage(title: str, text: str, **fields: object) -> Passage:
    made = Passage.make(title, text, "made up")
    return replace(made, **fields)


def said(rollout: Rollout) -> list[str]:
    return [turn.text for turn in rollout.turns]


def dialogue(text: str, *, answer: str = "<answer>yes</answer>", id: str = "", gold: str = "") -> Rollout:
    """A dialogue of one turn on a question of that text."""
    turn = Turn((), (), answer, None, TagProtocol().parse(answer).answer)
    return Rollout(Question(id or text, text, answer=gold), (), (turn,), StopReason.ANSWERED)
