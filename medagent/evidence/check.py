"""Decides whether people are shown an answer, and what the corpus offers instead."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medagent.evidence import Shown
from medagent.evidence.emergencies import NUMBER, Emergencies
from medagent.evidence.extracts import Quote, best_quotes, queries_of
from medagent.evidence.judges import RULES, support_judge
from medagent.evidence.kinds import EvidenceKind, EvidenceVerdict
from medagent.evidence.reading import Asked, words_of
from medagent.evidence.rules import LexicalRule
from medagent.evidence.support import SupportJudge
from medagent.evidence.synonyms import SynonymTable
from medagent.evidence.verdict import judge
from medagent.evidence.words import Names, asked_for, folded, question_kinds, tells
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.controls import corpus_of
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.passages import Passage
from medagent.retrieval.retriever import Retriever
from medagent.retrieval.search import HybridRetriever
from medagent.types import Rollout

log = logging.getLogger("medagent.evidence")
LOOKED_AT = 10  # passages of each of the program's own searches
NEAR = 0.3  # share of the subject's words from which a passage is near
MAX_TITLES = 200_000  # some hundred bytes each
SHOWN_KINDS: dict[Shown, tuple[EvidenceKind, ...]] = {
    "stated": (EvidenceKind.STATED,),
    "partly": (EvidenceKind.STATED, EvidenceKind.PARTLY),
    "all": tuple(EvidenceKind),
}


@dataclass(frozen=True)
class EvidenceCheck:
    """How answers are judged, and which are `shown`: stated ones, partly stated ones too, or all, with their verdicts.

    `names` are the corpus's titles.
    """

    names: Names = field(default_factory=lambda: Names(()))
    support: SupportJudge = LexicalRule()
    shown: Shown = "partly"
    emergencies: Emergencies = field(default_factory=Emergencies.load)
    synonyms: SynonymTable = field(default_factory=SynonymTable.load)

    @staticmethod
    def over(
        retriever: Retriever,
        *,
        shown: Shown = "partly",
        support: str = RULES,
        emergencies: str | None = None,
        synonyms: str | None = None,
        number: str = NUMBER,
    ) -> "EvidenceCheck":
        """The check of answers over this retriever. `number` is whom the lines of `emergencies` tell to call."""
        lines = Emergencies.load(Path(emergencies) if emergencies else None, number=number)
        table = SynonymTable.load(Path(synonyms) if synonyms else None)
        return EvidenceCheck(names_of(retriever), support_judge(support), shown, lines, table)

    def judge(self, rollout: Rollout) -> EvidenceVerdict:
        """The verdict on a rollout's answer. A person in danger is offered no names."""
        urgent = self.emergencies.line_for(rollout.question.text)
        return judge(rollout, self.support, Names(()) if urgent else self.names, self.synonyms)

    def withholds(self, verdict: EvidenceVerdict) -> bool:
        """Whether an answer with this verdict is kept from people."""
        return verdict.unsafe or verdict.kind not in SHOWN_KINDS[self.shown]

    async def quotes(self, rollout: Rollout, search: SearchBatcher) -> tuple[Quote, ...] | None:
        """The best sentences for the question in the passages of the rollout and of searches for its own words.

        None where there are none, and yet the corpus cannot be called silent: it has the subject, or a search failed.
        """
        found, searched = await _read_and_found(rollout, queries_of(rollout.question.text, self.synonyms), search)
        quotes = await asyncio.to_thread(best_quotes, rollout.question.text, found, synonyms=self.synonyms)
        asked = Asked.of(rollout.question)
        near = any(asked.share_in(words_of(passage)) >= NEAR for passage in found)
        return quotes if quotes or (searched and not near) else None

    async def follow_ups(self, rollout: Rollout, verdict: EvidenceVerdict, search: SearchBatcher) -> tuple[str, ...]:
        """Questions that may be asked next; none where no answer is stated."""
        subject = subject_of(rollout, verdict)
        if not subject:
            return ()
        found, _ = await _read_and_found(rollout, [subject], search)
        return follow_ups(rollout.question.text, subject, found)


async def _read_and_found(
    rollout: Rollout, queries: Sequence[str], search: SearchBatcher
) -> tuple[list[Passage], bool]:
    """The passages of a rollout and of more searches, each once, and whether the searches succeeded."""
    found = [hit.passage for hit in rollout.hits]
    try:
        for hits in await asyncio.gather(*(search.search(query, top_k=LOOKED_AT) for query in queries)):
            found += [hit.passage for hit in hits]
    except RetrievalError as error:
        log.warning("the search for what may be offered failed (%s); passages of the rollout are.", error)
        return found, False
    return list({passage.id: passage for passage in found}.values()), True


def names_of(retriever: Retriever) -> Names:
    """The titles of an index in this process; none of one elsewhere, or with more than `MAX_TITLES`."""
    corpus = corpus_of(retriever)
    if not isinstance(corpus, HybridRetriever):
        return Names(())
    titles = corpus.titles(limit=MAX_TITLES + 1)
    if len(titles) > MAX_TITLES:
        log.warning("names near misspelt ones: not offered, as the index has more than %d titles.", MAX_TITLES)
        return Names(())
    return Names(titles)


MAX_WORDS, MAX_QUESTIONS = 5, 3


def subject_of(rollout: Rollout, verdict: EvidenceVerdict) -> str:
    """The title of the passage that states the answer, where it is short enough to be a name; else empty."""
    if verdict.kind is not EvidenceKind.STATED or not verdict.stated_in:
        return ""
    title = rollout.hits[verdict.stated_in[0] - 1].passage.title.strip()
    plain = title.replace(" ", "").replace("-", "").isalpha()
    return title if plain and len(title.split()) <= MAX_WORDS else ""


def follow_ups(question: str, subject: str, passages: Sequence[Passage]) -> tuple[str, ...]:
    """Three questions on the subject at most: of kinds for the same sort of subject that its own passages tell."""
    asked = asked_for(question)
    sorts = {kind.of for kind in asked if kind.of}
    told = [passage.text for passage in passages if folded(passage.title) == folded(subject)]
    others = (kind for kind in question_kinds() if kind.of in sorts and kind not in asked)
    offered = [kind.follow_up.format(subject) for kind in others if any(tells(text, (kind,)) for text in told)]
    return tuple(offered[:MAX_QUESTIONS])
