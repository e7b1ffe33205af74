"""Making questions from an index: drafts of any maker, checked, each with its passages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pytest

from medagent.errors import InputError
from medagent.evaluation.question_making import making
from medagent.evaluation.question_making.checks import GIVEN_AWAY, Checks
from medagent.evaluation.question_making.making import REPEATED, Found, Maker, count_index, find_candidates
from medagent.evaluation.question_making.rules import Draft, rule_drafts
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.retrieval.passages import Passage
from tests.evaluation.question_making.support import PASSAGES, Searched, draft

ASKED = "Which rare disorder affects many parts of the body and delays growth?"


@pytest.fixture(autouse=True)
def _short_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "BATCH", 4)


def found_in(index: Searched, maker: Maker | None = None) -> Found:
    statistics = CorpusStatistics()
    count_index(index, statistics)
    return find_candidates(index, maker or partial(rule_drafts, statistics=statistics), Checks(statistics), top_k=5)


def test_drafts_become_candidates_with_their_passages() -> None:
    found = found_in(Searched(PASSAGES))
    by_question = {each.question: each for each in found.candidates}
    one = by_question[ASKED]
    assert (one.answers, one.gold_ids[0], one.source, one.kind) == (
        ("Costello syndrome",),
        "f0",
        "Primer",
        "definition",
    )
    assert one.sentence in PASSAGES[0].text
    assert found.drafts == len(found.candidates) + sum(found.dropped.values())


def test_the_same_question_is_searched_once() -> None:
    index = Searched([*PASSAGES, Passage.make("Copy", f"{PASSAGES[0].text} More of it follows here.", id="copy")])
    found = found_in(index)
    assert found.dropped[REPEATED] >= 1
    assert len(index.queries) == len(set(index.queries))
    one = next(each for each in found.candidates if each.question == ASKED)
    assert one.gold_ids == ("f0", "copy")


def test_the_drafts_of_any_maker_pass_the_same_checks() -> None:
    def maker(passages: Iterable[Passage]) -> Iterator[tuple[Draft, Passage]]:
        for passage in passages:
            if passage.title == "COPD":
                for asked in ("Which habit brings most COPD to smokers' lungs?", "Does cigarette smoking cause COPD?"):
                    yield draft(asked, "cigarette smoking", sentence=passage.text.split(". ")[0] + "."), passage

    found = found_in(Searched(PASSAGES), maker)
    assert [each.question for each in found.candidates] == ["Which habit brings most COPD to smokers' lungs?"]
    assert found.dropped == {GIVEN_AWAY: 1}


def test_no_passages_give_no_questions_and_wrong_settings_are_refused() -> None:
    found = found_in(Searched([]))
    assert (found.candidates, found.drafts) == ([], 0)
    for settings, message in (
        ({"top_k": 0}, "--top_k 0"),
        ({"limit": -1}, "--limit -1"),
    ):
        with pytest.raises(InputError, match=message):
            making.Making(**settings)
