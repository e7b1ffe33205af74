"""Queries by rule: what a question says, and what a passage names that the question does not."""

from __future__ import annotations

import math

import pytest

from medagent.training.sft.scripted_search import (
    Rarity,
    bridges,
    first_query,
    next_query,
    rewordings,
    stems,
    without,
    words_of,
)

LONG = "A 54-year-old man comes with a swollen toe after a feast. Which drug is given first for his gout?"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What is the role of IL-6 in Crohn's disease?", ["role", "IL-6", "Crohn's", "disease"]),
        ("Gout, gout or GOUT?", ["Gout"]),
        ("What is it?", []),
        ("", []),
        ("什么药治疗痛风？", ["什么药治疗痛风"]),
        ("TNF-α und Sjögren", ["TNF-α", "und", "Sjögren"]),
        ("</search><answer>(B)", ["search", "answer", "B"]),
    ],
)
def test_the_words_of_a_question(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_words_are_told_apart_by_their_stems() -> None:
    assert without(["caused", "fever"], stems("The cause is unknown.")) == ["fever"]
    assert without(["IL-6"], stems("interleukin IL 6")) == ["IL-6"] or stems("IL-6") <= stems("IL 6, il6")


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


def test_of_a_long_question_the_rarest_words_are_the_query() -> None:
    among = Rarity()
    among.add([LONG, "A 54-year-old man comes with a rash. Which drug is given first?"] * 3)
    assert first_query(LONG, among, 4) == "swollen toe feast gout"
    assert first_query("What is it?", among, 4) == "What is it?"
    assert first_query(" \n", among, 4) == ""


@pytest.mark.parametrize(
    ("question", "query"),
    [
        ("What is the sign of the disease caused by V. cholerae?", "caused V cholerae"),
        ("Which drug treats the condition whose classic sign is rose spots?", "classic sign rose spots"),
        ("What is the name of the disease?", "disease"),
        ("Which drug treats the disease of kings?", "drug treats disease kings"),
    ],
)
def test_what_is_described_is_searched_first(question: str, query: str) -> None:
    assert first_query(question, Rarity(), 12) == query


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


@pytest.mark.parametrize(
    ("question", "bridge", "passage", "query"),
    [
        (
            "What is the sign of the disease caused by V. cholerae?",
            "cholera",
            "cholera: The cause is V. cholerae.",
            "cholera sign",
        ),
        (
            "What causes the disease with the typical finding of lockjaw?",
            "tetanus",
            "tetanus: The sign is lockjaw.",
            "tetanus causes",
        ),
        ("Where does Marie Curie's student work?", "Perey", "Perey was a student of Marie Curie.", "Perey work"),
        ("Which gene?", "BRCA1", "BRCA1 is a gene.", "BRCA1 gene"),
        ("Which gene and enzyme and organ and vessel?", "BRCA1", "", "BRCA1 gene enzyme"),
    ],
)
def test_the_next_query_joins_the_bridge_to_what_is_still_asked(
    question: str, bridge: str, passage: str, query: str
) -> None:
    assert next_query(question, bridge, passage, 3) == query


def test_rewordings_are_shorter_or_whole() -> None:
    assert rewordings("Which drug treats severe gout quickly?", Rarity()) == [
        "drug treats severe",
        "drug treats",
        "Which drug treats severe gout quickly?",
    ]
    assert rewordings("Gout?", Rarity()) == ["Gout?"]
