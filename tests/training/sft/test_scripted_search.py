"""Queries by rule, and where passages show an answer: in whole words, and only as far as the agent is shown them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from medagent.protocol import TagProtocol
from medagent.retrieval.passages import Hit
from medagent.training.sft import scripted_search
from medagent.training.sft.scripted_search import (
    Evidence,
    Rarity,
    bridges,
    evidence_in,
    first_query,
    golds_of,
    next_query,
    shown,
    words_of,
)
from medagent.types import Question
from tests.training.sft.support import RULES, passage

GOUT = Question("q", "Which drug treats gout?", answer="colchicine")


def found(*texts: str, question: Question = GOUT, golds: tuple[str, ...] = (), query: str = "drug gout", **fields):
    passages = [passage("", text, **fields) for text in texts]
    rarity = Rarity()
    rarity.add(texts)
    read = [(Hit(each, 1.0), each.text) for each in passages]
    return evidence_in(read, question, golds or (question.answer, *question.aliases), query, rarity)


@pytest.mark.parametrize(
    ("text", "gold", "wording"),
    [
        ("gout drug: Colchicine helps", "colchicine", "Colchicine"),
        ("gout drugs are bisphosphonates", "bisphosphonate", "bisphosphonates"),
        ("a gout drug, bisphosphonate", "Bisphosphonates", "bisphosphonate"),
        ("gout drug after biopsies", "biopsy", "biopsies"),
        ("gout drug against viruses", "virus", "viruses"),
        ("gout drug PD 1", "PD-1", "PD 1"),
        ("gout drug PD–1", "pd-1", "PD–1"),
        ("gout drug beta-blocker", "Beta blockers", "beta-blocker"),
        ("gout drug in Sjögren syndrome", "SJÖGREN syndrome", "Sjögren syndrome"),
        ("gout drug 秋水仙碱 ok", "秋水仙碱", "秋水仙碱"),
        ("gout drug (Rh+)", "Rh+", "Rh+"),
        ("gout drug 12 mg", "12", "12"),
        ("gout drug U.S.A. ", "U.S.A.", "U.S.A"),
    ],
)
def test_the_answer_is_worded_as_the_passage_words_it(text: str, gold: str, wording: str) -> None:
    assert found(text, golds=(gold,)) == Evidence(1, wording)


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("gout drug: colchicine", "colchicin"),
        ("gout drug in non-Hodgkin lymphoma", "Hodgkin lymphoma"),
        ("gout drug in non Hodgkin lymphoma", "Hodgkin lymphoma"),
        ("gout drug Rh+", "Rh"),
        ("gout drug Rh- here", "Rh"),
        ("gout drug 0.12 mg", "12"),
        ("gout drug 12.5 mg", "12"),
        ("gout drug is not aspirin", "aspirin"),
        ("gout drug", "..."),
        ("gout drug: the AS of it", "A"),
    ],
)
def test_what_only_looks_like_the_answer_is_none(text: str, gold: str) -> None:
    assert found(text, golds=(gold,)) is None


def test_of_several_right_answers_that_which_grading_takes_goes_first() -> None:
    many = replace(GOUT, answer="aspirin", aliases=("colchicine", "bisphosphonate"))
    assert found("gout drug colchicine", question=many) == Evidence(1, "colchicine")
    assert found("gout drug bisphosphonates", "gout drug aspirin", question=many) == Evidence(2, "aspirin")
    assert found("gout drug bisphosphonates or aspirin", question=many) == Evidence(1, "aspirin")
    assert found("gout drug aspirin", "gout drug aspirin", question=many) == Evidence(1, "aspirin"), "the better rank"


def test_a_passage_on_something_else_shows_nothing() -> None:
    assert found("Colchicine is a plant toxin", "gout is a disease") is None
    assert found("Colchicine is a gout drug", "gout is a disease") == Evidence(1, "Colchicine")


def test_where_gold_passages_are_named_only_these_count() -> None:
    named = replace(GOUT, gold_passage_ids=("doc",))
    assert found("gout drug colchicine", question=named, id="other") is None
    assert found("colchicine", question=named, id="doc") == Evidence(1, "colchicine")
    assert found("colchicine", question=named, id="doc#2", document="doc") == Evidence(1, "colchicine"), "its piece"


@pytest.mark.parametrize("answer", ["yes", "No", "maybe"])
def test_a_judgement_needs_a_gold_passage(answer: str) -> None:
    judged = Question("q", "Does colchicine help in gout?", answer=answer)
    text = "yes, no, maybe: colchicine helps in gout"
    assert found(text, question=judged, query="colchicine gout") is None
    judged = replace(judged, gold_passage_ids=("doc",))
    assert found("colchicine helps", question=judged, query="colchicine gout", id="doc") == Evidence(1, "")


def test_gold_answers_are_read_as_the_agent_may_read_them(tokenizer) -> None:
    def golds(**fields: object) -> tuple[str, ...]:
        return golds_of(replace(GOUT, **{"answer": "", **fields}), TagProtocol(), tokenizer)

    assert golds() == ()
    assert golds(answer="a", aliases=("b", "a", "")) == ("a", "b")
    assert golds(answer="B", options=("one", "two")) == ("two",)
    assert golds(options=("one", "two")) == ()
    assert golds(answer="C", options=("one", "two")) == ()
    assert golds(answer="x [1] </answer>") == ("x (1) ‹/answer>",)


def test_what_is_cut_or_left_out_is_not_shown(tokenizer) -> None:
    texts = [f"gout{number} " + "word " * 20 + f"end{number}" for number in range(3)]
    hits = [Hit(passage(f"t{number}", text), 1.0) for number, text in enumerate(texts)]

    def read(limit: int) -> list[str]:
        rules = replace(RULES, limits=replace(RULES.limits, max_observation_tokens=limit))
        return [text for _, text in shown(hits, rules, tokenizer)]

    whole = read(1000)
    assert [text.split()[-1] for text in whole] == ["end0", "end1", "end2"]
    sizes = [limit for limit in range(20, 140) if len(read(limit)) == 2 and "end1" not in read(limit)[1]]
    assert sizes
    for limit in (sizes[0], sizes[-1]):
        first, second = read(limit)
        assert first == whole[0]
        assert "gout0" not in second
        assert second
        assert "end1" not in second
    assert read(5) == []
    assert shown([], RULES, tokenizer) == []


LONG = "A 54-year-old man comes with a swollen toe after a feast. Which drug is given first for his gout?"


def test_the_words_of_a_question() -> None:
    assert words_of("What is the role of IL-6 in Crohn's disease?") == ["role", "IL-6", "Crohn's", "disease"]
    assert words_of("Gout, gout or GOUT?") == ["Gout"]
    assert words_of("What is it?") == words_of("") == []
    assert words_of("什么药治疗痛风？ TNF-α") == ["什么药治疗痛风", "TNF-α"]
    assert words_of("</search><answer>(B)") == ["search", "answer", "B"]


def test_rarity_is_the_inverse_document_frequency() -> None:
    rarity = Rarity()
    rarity.add(["gout fever", "gout", "gout toe", "rash"])
    assert rarity.weight("gout") == pytest.approx(math.log(5 / 3.5))
    assert rarity.weight("rash") == pytest.approx(math.log(5 / 1.5))
    assert rarity.rarest(["gout", "rash", "toe"], 2) == ["rash", "toe"], "in their order"
    assert Rarity().rarest(["b", "a"], 1) == ["b"], "the first where nothing is known"
    # "rash" and "toe" are wanted, "unicorn" stands in no text and is not asked for.
    share = rarity.share(frozenset({"gout", "toe", "unicorn"}), "a toe")
    assert share == pytest.approx(math.log(5 / 1.5) / (math.log(5 / 1.5) + math.log(5 / 3.5)))
    assert rarity.share(frozenset({"unicorn"}), "unicorn") == 0
    assert rarity.share(frozenset(), "toe") == 0


def test_of_a_long_question_the_rarest_words_are_the_query(monkeypatch) -> None:
    monkeypatch.setattr(scripted_search, "MOST_WORDS", 4)
    among = Rarity()
    among.add([LONG, "A 54-year-old man comes with a rash. Which drug is given first?"] * 3)
    assert first_query(LONG, among) == "swollen toe feast gout"
    assert first_query("What is it?", among) == "What is it?"
    assert first_query(" \n", among) == ""


def test_what_is_described_is_searched_first() -> None:
    asked = "Which drug treats the condition whose classic sign is rose spots?"
    assert first_query(asked, Rarity()) == "classic sign rose spots"
    assert first_query("What is the name of the disease?", Rarity()) == "disease"
    assert first_query("Which drug treats the disease of kings?", Rarity()) == "drug treats disease kings"


def test_a_bridge_is_named_by_the_passage_and_not_by_the_question() -> None:
    rarity = Rarity()
    rarity.add(["The illness is common."] * 60 + ["Elek test", "Diphtheria"])
    question = "Which drug treats the disease with a positive Elek test?"
    text = "It is common. The Elek test shows toxin of Corynebacterium diphtheriae strains."
    found = bridges(question, "diphtheria", text, rarity)
    assert found[:2] == ["diphtheria", "Corynebacterium"]
    assert not any("Elek" in each for each in found), "the question names it"
    assert "toxin" in found
    assert not any("common" in each for each in found), "another sentence, and frequent"
    told = bridges(question, "This title is a whole sentence with more than eight words", text, rarity)
    assert told[0] == "Corynebacterium"
    assert bridges(question, "", "", rarity) == []


def test_the_next_query_joins_the_bridge_to_what_is_still_asked(monkeypatch) -> None:
    question, passage = "What is the sign of the disease caused by V. cholerae?", "cholera: The cause is V. cholerae."
    assert next_query(question, "cholera", passage) == "cholera sign"
    asked = "Where does Marie Curie's student work?"
    assert next_query(asked, "Perey", "Perey was a student of Marie Curie.") == "Perey work"
    assert next_query("Which gene?", "BRCA1", "BRCA1 is a gene.") == "BRCA1 gene"
    monkeypatch.setattr(scripted_search, "MOST_WORDS", 3)
    assert next_query("Which gene and enzyme and organ?", "BRCA1", "") == "BRCA1 gene enzyme"
