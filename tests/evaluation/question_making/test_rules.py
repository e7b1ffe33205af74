"""The rules: which sentences become questions, and which are refused."""

from __future__ import annotations

from medagent.evaluation.question_making.rules import abbreviations, definitions, rule_drafts
from medagent.evaluation.question_making.text import (
    begins_with_verb,
    cut_clause,
    is_term,
    points_elsewhere,
    usable_sentences,
)
from medagent.retrieval.passages import Passage
from tests.evaluation.question_making.support import PASSAGES, counted, drafts


def test_a_definition_asks_for_its_term() -> None:
    for sentence, question, answer in (
        (
            "Costello syndrome is a rare disorder that affects many parts of the body.",
            "Which rare disorder affects many parts of the body?",
            "Costello syndrome",
        ),
        (
            "Anemia is a condition in which the body has fewer red blood cells than normal.",
            "What is the term for a condition in which the body has fewer red blood cells than normal?",
            "anemia",
        ),
        (
            "Croup is an inflammation of the vocal cords and windpipe.",
            "What is the term for an inflammation of the vocal cords and windpipe?",
            "croup",
        ),
        (
            "Darier disease is a skin condition characterized by wart-like blemishes on the body.",
            "Which skin condition is characterized by wart-like blemishes on the body?",
            "Darier disease",
        ),
    ):
        assert (question, (answer,)) in drafts(definitions, sentence)


def test_a_definition_that_cannot_stand_alone_is_refused() -> None:
    for sentence in (
        "This disorder is a rare condition that affects the heart of newborns.",
        "Heart failure is a condition that doctors treat with these drugs every day.",
        "One example is a test that shows it well.",
        "Histiocytosis is not a disease of the normal cells of the skin.",
        "The carina is a ridge that induces violent coughing if a foreign body, such as food, is present.",
    ):
        assert not drafts(definitions, sentence), sentence


def test_a_bracket_gives_another_right_answer() -> None:
    sentence = "Spinal muscular atrophy (SMA) is a genetic disorder that weakens the muscles used for movement."
    assert drafts(definitions, sentence) == [
        (
            "Which genetic disorder weakens the muscles used for movement?",
            ("spinal muscular atrophy", "SMA"),
        )
    ]


def test_this_condition_is_the_title_where_the_index_says_what_the_title_is() -> None:
    sentence = "This condition is a growth disorder that affects the speech of most children."
    asked = [("Which growth disorder affects the speech of most children?", ("Costello syndrome",))]
    assert drafts(definitions, sentence, title="Costello syndrome") == asked
    assert not drafts(definitions, sentence, title="An introduction")


def test_an_abbreviation_with_two_long_forms_is_not_asked_for() -> None:
    one = "Lentigo maligna melanoma (LMM) grows slowly on skin exposed to the sun."
    other = "Large muscle mass (LMM) protects from falls in older people every winter."
    assert drafts(abbreviations, one) == [("What does the abbreviation LMM stand for?", ("lentigo maligna melanoma",))]
    both = counted([*PASSAGES, Passage.make("Muscle", other)])
    assert not drafts(abbreviations, one, statistics=both)


def test_sentences_of_tables_lists_and_broken_text_are_left_out() -> None:
    text = (
        "Osteoclasts ( a) break down bone in every part of the skeleton. Signs and Symptoms Approximate number of "
        "patients 90% Atrophy. - Item one of a list follows here. Is this a question about the heart of man? "
        "Mllerian ducts vanish early in the development of males. A type 1 dont know sentence stands here now."
    )
    assert usable_sentences(text) == ["Osteoclasts break down bone in every part of the skeleton."]
    assert usable_sentences("") == []


def test_words_run_together_and_headings_break_a_sentence() -> None:
    filler = [
        Passage.make(f"t{i}", "People with diabetes and the heart of other tests are often seen here.")
        for i in range(20)
    ]
    statistics = counted(filler)
    assert statistics.broken("People with diabetesand more are seen here.")
    assert statistics.broken("Heart Tests Other Often the tests are seen.")
    assert not statistics.broken("People with diabetes are often seen here.")


def test_names_keep_their_capital_inside_a_sentence_and_words_lose_it() -> None:
    passages = [Passage.make("a", "The signs of Marfan syndrome vary. Doctors see anemia in children of every age.")]
    statistics = counted(passages)
    assert statistics.inside("Marfan syndrome") == "Marfan syndrome"
    assert statistics.inside("Anemia") == "anemia"
    assert statistics.inside("The anemia") == "the anemia"
    assert statistics.inside("COPD") == "COPD"
    assert statistics.inside("") == ""


def test_a_term_is_a_name() -> None:
    for phrase in ("atrial fibrillation", "T lymphocytes", "œdème aigu"):
        assert is_term(phrase), phrase
    for phrase in "this condition|what doctors call it|a||and the rest|1 2 3 4 5 6 7 eight|angina (chest pain".split(
        "|"
    ):
        assert not is_term(phrase), phrase


def test_clauses_are_cut_at_remarks_and_pointers_are_seen() -> None:
    assert cut_clause("affects the lungs, which makes breathing hard") == "affects the lungs"
    assert cut_clause("affects skin, hair, and nails.") == "affects skin, hair, and nails"
    assert points_elsewhere("the families of these children")
    assert points_elsewhere("the disorder in adults")
    assert not points_elsewhere("a disorder of the skin")


def test_verbs_agree_in_number() -> None:
    assert begins_with_verb("carries and attaches", plural=False)
    assert begins_with_verb("usually affects the skin", plural=False)
    assert not begins_with_verb("usually affect the skin", plural=False)
    assert not begins_with_verb("", plural=True)


def test_a_huge_passage_and_one_without_sentences_are_read() -> None:
    text = "Costello syndrome is a rare disorder that affects many parts of the body. " * 2_000
    for passage, wanted in ((text, 2_000), ("|" * 100_000, 0), ("日本語の文。これは薬です。", 0)):
        assert len(list(rule_drafts([Passage.make("x", passage)], counted()))) == wanted
