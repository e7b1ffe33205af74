"""Answers that cannot answer what is asked, whatever a passage says."""

from __future__ import annotations

import pytest

from medagent.evidence.answer_form import asked_type, echoes, names_a_gene, says_too_little, without_type
from medagent.evidence.names import Names
from medagent.evidence.verdict import EvidenceKind, judge
from medagent.evidence.words import subject_words
from medagent.types import Question, Rollout, StopReason, Turn
from retrieval.passages import Hit, Passage


def kind_of(question: str, answer: str, title: str, text: str) -> EvidenceKind:
    hit = Hit(Passage.make(title, text, id="p"), 1.0)
    turns = (Turn((), (), "", query="q", hits=(hit,)), Turn((), (), "", answer=f"{answer} [1]"))
    rollout = Rollout(Question("q", question), (), turns, StopReason.ANSWERED)
    return judge(rollout, names=Names([title])).kind


FRAGILE = "A DNA segment, known as the CGG triplet repeat, is expanded within the FMR1 gene. The FMR1 gene is mutated."
STATED = EvidenceKind.STATED


@pytest.mark.parametrize(
    ("question", "answer", "title", "text", "stated"),
    [
        ("Mutations in which gene cause fragile X syndrome?", "FMR1", "Fragile X syndrome", FRAGILE, True),
        (
            "Mutations in which gene cause fragile X syndrome?",
            "CGG triplet repeat",
            "Fragile X syndrome",
            FRAGILE,
            False,
        ),
        (
            "Which nerve is affected in Bell's palsy?",
            "7th cranial nerve",
            "Bell's palsy",
            "Bell's palsy results from damage to the 7th cranial nerve.",
            True,
        ),
        (
            "Which hormone is in excess in acromegaly?",
            "growth hormone",
            "Acromegaly",
            "In acromegaly the pituitary makes too much growth hormone.",
            True,
        ),
        (
            "Which vitamin is lacking in scurvy?",
            "vitamin C",
            "Scurvy",
            "Scurvy is a lack of vitamin C.",
            True,
        ),
        (
            "Which vitamin is lacking in scurvy?",
            "fresh fruit",
            "Scurvy",
            "Scurvy comes from a lack of fresh fruit.",
            False,
        ),
        (
            "Which metal builds up in Wilson disease?",
            "copper",
            "Wilson disease",
            "In Wilson disease copper builds up in the liver. It is a metal.",
            True,
        ),
        (
            "Which metal builds up in Wilson disease?",
            "copper",
            "Wilson disease",
            "The liver of healthy people also has some of the metal copper.",
            False,
        ),
        (
            "What does the abbreviation RLS stand for?",
            "restless legs syndrome",
            "Restless legs syndrome",
            "Restless legs syndrome (RLS) is common.",
            True,
        ),
        (
            "Which test diagnoses sickle cell disease?",
            "sickle cell anemia",
            "Sickle cell disease",
            "A blood test diagnoses sickle cell anemia.",
            False,
        ),
        (
            "What is endometriosis?",
            "collapse of the lung",
            "Pneumothorax",
            "Collapse of the lung occurs in endometriosis.",
            False,
        ),
        (
            "What is endometriosis?",
            "tissue outside the uterus",
            "Endometriosis",
            "Endometriosis, an illness of women, is tissue outside the uterus.",
            True,
        ),
        ("What causes gout?", "urate crystals", "Gout", "Do urate crystals cause gout?", False),
        (
            "Which enzyme is deficient in phenylketonuria?",
            "phenylalanine hydroxylase",
            "Phenylketonuria",
            "An enzyme is phenylalanine hydroxylase. It is large. It is old. In phenylketonuria mutations reduce "
            "phenylalanine hydroxylase.",
            True,
        ),
        ("Which insect spreads Lyme disease?", "tick", "Lyme disease", "A tick spreads Lyme disease.", True),
        (
            "Which chromosome is involved in Down syndrome?",
            "chromosome 21",
            "Down syndrome",
            "There are three copies of chromosome 21.",
            True,
        ),
        ("What are the symptoms of gout?", "severe", "Gout", "The symptoms of gout can be severe.", False),
        ("What are the symptoms of gout?", "severe pain", "Gout", "The symptoms of gout: severe pain.", True),
    ],
)
def test_what_a_verdict_makes_of_it(question: str, answer: str, title: str, text: str, stated: bool) -> None:
    assert (kind_of(question, answer, title, text) is STATED) == stated


@pytest.mark.parametrize(
    ("answer", "sentence", "named"),
    [
        ("PAH", "Mutations in the PAH gene cause phenylketonuria.", True),
        ("COL4A3", "Mutations in the COL4A3, COL4A4, and COL4A5 genes cause it.", True),
        ("COL4A5", "Mutations in the genes COL4A3, COL4A4 and COL4A5 cause it.", True),
        ("fibrillin-1", "It is caused by a gene called fibrillin-1.", True),
        ("PAH gene", "The PAH gene is mutated.", True),
        ("CGG triplet", "Within the FMR1 gene, CGG triplets are repeated.", False),
        ("MECP2", "The MECP2 (methyl CpG) gene", True),
        ("maternal copy of UBE3A", "The maternal copy of the UBE3A gene is lost.", True),
        ("HEXA", "An enzyme called HEXA is missing.", False),
    ],
)
def test_a_gene_is_what_the_sentence_calls_one(answer: str, sentence: str, named: bool) -> None:
    assert names_a_gene(answer, sentence, "Mutations in which gene cause it?") == named
    assert names_a_gene(answer, sentence, "What causes it?")


def test_the_sort_of_thing_that_is_asked_for_is_no_subject() -> None:
    assert asked_type("And which enzymes are missing in Tay-Sachs disease?") == "enzym"
    assert "enzyme" not in without_type("Which enzyme is missing in Tay-Sachs disease?")
    assert asked_type("What is the growth hormone for?") == "" == asked_type("Is a nerve which hurts inflamed?")


def test_a_misspelt_syndrome_is_no_name() -> None:
    assert list(subject_words("Marfans sindrome")) == ["marfan"]
    assert list(subject_words("the symptoms of Down syndrom")) == ["symptom", "down"]


@pytest.mark.parametrize(
    ("answer", "title", "question", "echo"),
    [
        ("Gout", "Gout", "What causes gout?", True),
        ("hepatitis B vaccine", "Hepatitis B", "What prevents hepatitis B?", False),
        ("liver cancer", "Cirrhosis of the liver", "What are complications of liver cirrhosis?", False),
        ("measles", "Measles", "Which disease is it whose sign is Koplik spots?", False),
        ("Down syndrome", "Down syndrome", "What is another name for trisomy 21 or Down?", False),
    ],
)
def test_the_subject_again_is_no_answer(answer: str, title: str, question: str, echo: bool) -> None:
    assert echoes(answer, title, question, frozenset(subject_words(question))) == echo


def test_words_that_fit_anything_say_too_little() -> None:
    asked = "What are the symptoms of gout?"
    for said in ("mild", "other, several", "signs and symptoms", "medical"):
        assert says_too_little(said, asked), said
    for said in ("medication", "severe pain", ""):
        assert not says_too_little(said, asked), said
    assert says_too_little("treatment", "How is gout treated?")
    assert not says_too_little("vaccination", "How is tetanus prevented?")
    assert not says_too_little("rare", "How common is gout?")


def test_two_spellings_of_one_title_are_offered_once() -> None:
    names = Names(["Angelman syndrome", "Angelman Syndrome", "Angel fish"])
    assert names.near({"anglemon": "Anglemon"}, ["anglemon"])[:1] in (["Angelman syndrome"], ["Angelman Syndrome"])
    assert len({title.lower() for title in names.near({"anglemon": "Anglemon"}, ["anglemon"])}) == len(
        names.near({"anglemon": "Anglemon"}, ["anglemon"])
    )
