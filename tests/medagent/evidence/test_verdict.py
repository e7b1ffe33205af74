"""The verdict of the evidence: subject, kind, words, option and dose."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from medagent.evidence import check
from medagent.evidence.answers import answered, checked
from medagent.evidence.check import EvidenceCheck, follow_ups, names_of, subject_of
from medagent.evidence.kinds import EvidenceKind, EvidenceVerdict
from medagent.evidence.verdict import judge
from medagent.evidence.words import Names
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn
from tests.medagent.serving.support import Corpus
from tests.recording import Finds

STATED, PARTLY, OTHER = EvidenceKind.STATED, EvidenceKind.PARTLY, EvidenceKind.SOMETHING_ELSE
TRACHOMA = Passage.make("trachoma", "The usual first-line drug is oral azithromycin.", id="t:drug")
SIGN = Passage.make("trachoma", "The classic sign is inturned eyelashes.", id="t:sign")
GOUT = Passage.make("gout", "The first-line drug is colchicine. Give colchicine 0.5 mg twice daily.", id="g:drug")
LABELS = Path(__file__).with_name("verdict_labels.jsonl")


def said(question: str, answer: str, *shown: Passage, options: tuple[str, ...] = ()) -> Rollout:
    """A rollout that was shown these passages and then answered."""
    turns = (
        Turn((1,), (0.0,), "", query="q", hits=tuple(Hit(each, 1.0) for each in shown)),
        Turn((2,), (0.0,), "", answer=answer),
    )
    return Rollout(Question("q", question, options), (5,), turns, StopReason.ANSWERED)


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
    dose = "What is the dose of colchicine in gout?"
    for shown in ["stated", "partly", "all"]:
        answer = checked(said(dose, "500 mg [1]", GOUT), EvidenceCheck(shown=shown))
        assert answer.withheld
        assert answer.text.startswith("The answer names a dose")
    assert checked(said(dose, "0.5 mg twice daily [1]", GOUT), EvidenceCheck()).verdict.kind is STATED


def test_how_strict_is_the_operators_choice() -> None:
    kinds = {kind: EvidenceVerdict(kind, "") for kind in EvidenceKind}
    withheld = {
        shown: [kind for kind in EvidenceKind if EvidenceCheck(shown=shown).withholds(kinds[kind])]
        for shown in ("stated", "partly", "all")
    }
    assert withheld == {"stated": list(EvidenceKind)[1:], "partly": list(EvidenceKind)[2:], "all": []}


def test_near_names_are_offered() -> None:
    names = Names(["trachoma", "Crohn disease", "chronic granulomatous disease", "migraine", "cutaneous larva migrans"])
    found = judge(said("What is the drug for tracoma?", "colchicine [1]", GOUT), names=names)
    assert found.did_you_mean == ("trachoma",)
    assert "Did you mean \u201ctrachoma\u201d?" in found.told
    for misspelt, meant in (("Chron disease", "Crohn disease"), ("migrane", "migraine")):
        assert judge(said(f"What causes {misspelt}?", "x [1]", GOUT), names=names).did_you_mean[0] == meant
    assert judge(said("What causes xyzzyosis?", "x [1]", GOUT), names=names).did_you_mean == ()
    assert judge(said("What is the drug for trachoma?", "colchicine [1]", GOUT), names=names).did_you_mean == ()


def test_a_withheld_answer_is_replaced_by_the_corpus_own_sentences() -> None:
    rollout, failing = said("What is the first-line drug for trachoma?", "colchicine [1]", GOUT), Corpus()
    failing.failing = True
    for corpus, near in ((Finds(SIGN, TRACHOMA, GOUT), ["t:drug"]), (failing, [])):
        search = SearchBatcher(corpus, top_k=2, retries=0)
        answer = asyncio.run(answered(rollout, EvidenceCheck(), search))
        assert (answer.withheld, answer.citations, answer.letter) == (True, (), None)
        assert [quote.passage.id for quote in answer.quoted] == near


def test_the_corpus_is_called_silent_only_after_a_search_that_found_nothing_on_the_subject() -> None:
    rollout, failing = said("What is the first-line drug for zorbinosis?", "nothing [1]", GOUT), Corpus()
    failing.failing = True
    silent, read = EvidenceKind.NOT_SAID, EvidenceKind.NOT_READ
    zorbinosis = Passage.make("zorbinosis", "It is rare.")
    for corpus, kind in ((Finds(GOUT), silent), (Finds(zorbinosis), read), (failing, read)):
        answer = asyncio.run(answered(rollout, EvidenceCheck(), SearchBatcher(corpus, top_k=2, retries=0)))
        assert (answer.verdict.kind, answer.text) == (kind, answer.verdict.told)


def test_the_titles_of_a_huge_index_are_not_taken(retriever: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(names_of(retriever)) > 300
    monkeypatch.setattr(check, "MAX_TITLES", 10)
    assert len(names_of(retriever)) == 0
    assert len(names_of(Corpus())) == 0


CLASSIC = Passage.make("Trachoma", "The classic sign is inturned eyelashes.", id="sign")
CAUSE = Passage.make("gout", "It is caused by crystals of urate.", id="cause")
HARMS = Passage.make("azithromycin", "Nausea is a side effect. It is caused by irritation.", id="harms")
LONG = Passage.make("What the first-line drug for trachoma may be", "The drug for trachoma is azithromycin.", id="l")


def test_questions_that_the_subjects_passages_tell_are_offered_next() -> None:
    for question, answer, shown, wanted in [
        ("the drug for trachoma", "azithromycin [1]", (TRACHOMA, CLASSIC), ("What are the signs of trachoma?",)),
        ("What is the sign of trachoma?", "inturned eyelashes [2]", (TRACHOMA, CLASSIC), ("How is Trachoma treated?",)),
        ("What is the drug for trachoma?", "azithromycin [1]", (TRACHOMA, CAUSE), ()),
        ("What are the side effects of azithromycin?", "nausea [1]", (HARMS,), ()),
        ("What is the drug for trachoma?", "azithromycin [1]", (LONG, CLASSIC), ()),
        ("What is the drug for trachoma?", "colchicine [1]", (TRACHOMA, CLASSIC), ()),
        ("What is the drug for gout?", "azithromycin [1]", (TRACHOMA, CLASSIC), ()),
    ]:
        rollout = said(question, answer, *shown)
        subject = subject_of(rollout, judge(rollout))
        assert (follow_ups(question, subject, shown) if subject else ()) == wanted


def test_citations_without_passages_are_taken_out() -> None:
    turn = Turn((1, 2), (-0.1, -0.3), "", answer=" (B) [0] [12] see [2].")
    every = EvidenceCheck(shown="all")
    answer = checked(Rollout(Question("q", "Gout?", ("a", "b see")), (5,), (turn,), StopReason.ANSWERED), every)
    assert (answer.text, answer.letter, answer.removed_citations, answer.citations) == ("(B) see.", "B", 3, ())
    assert answer.logprob == pytest.approx(-0.2)
    cut = checked(Rollout(Question("q", "Gout?"), (5,), (turn,), StopReason.MAX_TURNS), every)
    assert (cut.text, cut.logprob) == ("The agent gave no answer: it searched until its turns were used up.", None)
    assert (cut.stop_reason, cut.withheld) == (StopReason.MAX_TURNS, True)
