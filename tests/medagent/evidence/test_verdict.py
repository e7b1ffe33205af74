"""The verdict of the evidence: subject, kind, words, option and dose."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from medagent.evidence import check
from medagent.evidence.answers import answered, checked
from medagent.evidence.check import EvidenceCheck, names_of
from medagent.evidence.verdict import EvidenceKind, EvidenceVerdict, judge
from medagent.evidence.words import Names
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.errors import RetrieverUnavailableError
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn

STATED, PARTLY, OTHER, NOT_SAID = (
    EvidenceKind.STATED,
    EvidenceKind.PARTLY,
    EvidenceKind.SOMETHING_ELSE,
    EvidenceKind.NOT_SAID,
)
TRACHOMA = Passage.make("trachoma", "The usual first-line drug is oral azithromycin.", id="t:drug")
SIGN = Passage.make("trachoma", "The classic sign is inturned eyelashes.", id="t:sign")
GOUT = Passage.make("gout", "The first-line drug is colchicine. Give colchicine 0.5 mg twice daily.", id="g:drug")
LABELS = Path(__file__).with_name("verdict_labels.jsonl")


class Corpus:
    """A retriever that finds two passages, or fails."""

    fails = False

    def search(self, queries: Any, *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        if self.fails:
            raise RetrieverUnavailableError("down")
        return [[Hit(SIGN, 1.0), Hit(GOUT, 0.5)] for _ in queries]


def said(
    question: str,
    answer: str | None,
    *shown: Passage,
    options: tuple[str, ...] = (),
    stop: StopReason = StopReason.ANSWERED,
) -> Rollout:
    """A rollout that was shown these passages and then answered."""
    turns = (
        Turn((1,), (0.0,), "", query="q", hits=tuple(Hit(each, 1.0) for each in shown)),
        Turn((2,), (0.0,), "", answer=answer),
    )
    return Rollout(Question("q", question, options), (5,), turns, stop)


def test_verdicts_agree_with_the_labels() -> None:
    """A kind with "!" before it is any other kind. Wrong answers have their words in a passage that is shown."""
    rows = [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]
    wrong = []
    for row in rows:
        shown = [Passage.make(title, text) for title, text in row["passages"]]
        found = judge(said(row["question"], row["answer"], *shown, options=tuple(row.get("options", ())))).kind
        if (found == row["kind"].removeprefix("!")) == row["kind"].startswith("!"):
            wrong.append((found.value, row))
    assert len(rows) > 100
    assert not wrong


def test_the_passages_that_state_it_are_named_whatever_was_cited() -> None:
    found = judge(said("What is the first-line drug for trachoma?", "oral azithromycin [1]", GOUT, TRACHOMA))
    assert (found.kind, found.stated_in, found.text) == (STATED, (2,), "Stated in [2].")


def test_a_letter_must_belong_to_what_is_said() -> None:
    options = ("colchicine", "oral azithromycin")
    answer = checked(said("What is the drug for gout?", "colchicine [1] (B)", GOUT, options=options), EvidenceCheck())
    assert (answer.verdict.contradicts, answer.letter, answer.withheld) == (True, None, False)


def test_a_passage_that_tells_less_hides_none_that_tells_all() -> None:
    texts = ("Hemophilia A is treated with factor VIII.", "In hemophilia A factor VIII is missing.")
    shown = [Passage.make("Hemophilia A", text, id=str(at)) for at, text in enumerate(texts)]
    assert judge(said("What is missing in hemophilia A?", "factor VIII [1]", *shown)).stated_in == (2,)


def test_a_case_is_stated_as_far_as_the_passage_mentions_it() -> None:
    case = "An old farmer with fever, chills, headache, cough, diarrhea and trachoma. Which drug?"
    found = judge(said(case, "oral azithromycin [1]", TRACHOMA))
    assert found.kind is OTHER
    told = Passage.make("trachoma", "Trachoma with fever, chills and cough: the drug is oral azithromycin.")
    found = judge(said(case, "oral azithromycin [1]", told))
    assert found.kind is PARTLY
    assert "headache" in found.missing


def test_sentences_are_judged_one_by_one() -> None:
    whole = "The first-line drug for gout is colchicine [1]. Gout is caused by cold weather and by aliens [1]."
    found = judge(said("What is the first-line drug for gout?", whole, GOUT))
    assert (found.kind, found.text) == (PARTLY, "Only 1 of the 2 things said stand in what is cited.")


def test_a_dose_from_nowhere_is_never_shown() -> None:
    for shown in ["stated", "partly", "all"]:
        answer = checked(
            said("What is the dose of colchicine in gout?", "500 mg [1]", GOUT), EvidenceCheck(shown=shown)
        )
        assert answer.withheld
        assert "500" not in answer.text
        assert "dose" in answer.text
        right = checked(
            said("What is the dose of colchicine in gout?", "0.5 mg twice daily [1]", GOUT), EvidenceCheck()
        )
        assert right.verdict.kind is STATED


def test_how_strict_is_the_operators_choice() -> None:
    kinds = {kind: EvidenceVerdict(kind, "") for kind in EvidenceKind}
    withheld = {
        shown: [kind for kind in EvidenceKind if EvidenceCheck(shown=shown).withholds(kinds[kind])]
        for shown in ("stated", "partly", "all")
    }
    assert withheld == {"stated": [PARTLY, OTHER, NOT_SAID], "partly": [OTHER, NOT_SAID], "all": []}


def test_near_names_are_offered() -> None:
    names = Names(["trachoma", "Crohn disease", "chronic granulomatous disease", "migraine", "cutaneous larva migrans"])
    found = judge(said("What is the drug for tracoma?", "colchicine [1]", GOUT), names=names)
    assert found.did_you_mean == ("trachoma",)
    assert "Did you mean \u201ctrachoma\u201d?" in found.told
    for misspelt, meant in (("Chron disease", "Crohn disease"), ("migrane", "migraine")):
        assert judge(said(f"What causes {misspelt}?", "x [1]", GOUT), names=names).did_you_mean[0] == meant
    assert judge(said("What causes xyzzyosis?", "x [1]", GOUT), names=names).did_you_mean == ()
    assert judge(said("What is the drug for trachoma?", "colchicine [1]", GOUT), names=names).did_you_mean == ()


def test_a_withheld_answer_offers_the_nearest_passages() -> None:
    rollout = said("What is the first-line drug for trachoma?", "colchicine [1]", GOUT)

    async def run(corpus: Corpus) -> list[str]:
        answer = await answered(rollout, EvidenceCheck(), SearchBatcher(corpus, top_k=2, retries=0))
        assert answer.withheld
        assert (answer.citations, answer.letter) == ((), None)
        return [passage.id for passage in answer.nearest]

    corpus = Corpus()
    assert asyncio.run(run(corpus)) == ["t:sign"]
    corpus.fails = True
    assert asyncio.run(run(corpus)) == [], "what the rollout has is not near"


def test_no_answer_is_said_with_its_reason() -> None:
    found = judge(said("What is the drug for gout?", None, GOUT, stop=StopReason.MAX_TURNS))
    assert (found.kind, found.text) == (NOT_SAID, "No answer: the agent stopped before one (max_turns).")


def test_the_titles_of_a_huge_index_are_not_taken(retriever: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(names_of(retriever)) > 300
    monkeypatch.setattr(check, "MAX_TITLES", 10)
    assert len(names_of(retriever)) == 0
    assert len(names_of(Corpus())) == 0
