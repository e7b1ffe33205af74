"""Answers that cannot answer what is asked, whatever a passage says."""

from __future__ import annotations

import pytest

from medagent.evidence.sentences import echoes, is_of_sort, says_too_little, without_sort
from medagent.evidence.verdict import EvidenceKind, judge
from medagent.evidence.words import Names, subject_words
from medagent.retrieval.passages import Hit, Passage
from medagent.serving.conversation import standing_alone
from medagent.types import Question, Rollout, StopReason, Turn


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
        (
            "What is the incubation period of measles?",
            "10 to 14 days",
            "Measles",
            "Its incubation period is 10 to 14 days.",
            True,
        ),
        (
            "What is anosmia?",
            "loss of the sense of smell",
            "Anosmia",
            "Loss of the sense of smell is called anosmia.",
            True,
        ),
        ("What is lupus?", "an autoimmune disease", "Lupus", "It is an autoimmune disease.", True),
        (
            "What is ALS?",
            "a disease of motor neurons",
            "ALS",
            "Amyotrophic lateral sclerosis (ALS), also called Lou Gehrig's disease, is a disease of motor neurons.",
            True,
        ),
        (
            "Which hormone is deficient in Addison disease?",
            "cortisol",
            "Addison disease",
            "In Addison disease the adrenal glands do not make enough of the hormone cortisol.",
            True,
        ),
        (
            "Which bacterium causes Lyme disease?",
            "Borrelia burgdorferi",
            "Lyme disease",
            "Lyme disease is a bacterial infection caused by Borrelia burgdorferi.",
            True,
        ),
        (
            "Which organ is affected in hepatitis B?",
            "virus",
            "Hepatitis B",
            "The hepatitis B virus infects the organ called liver.",
            False,
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


def test_the_sort_of_thing_that_is_asked_for_is_no_subject() -> None:
    assert "enzyme" not in without_sort("And which enzyme is missing in Tay-Sachs disease?")
    assert "hormone" in without_sort("What is the growth hormone for?")


@pytest.mark.parametrize(
    ("answer", "text", "of_it"),
    [
        ("aspartoacylase", "An enzyme called aspartoacylase is missing.", True),
        ("aspartoacylase", "Aspartoacylase, an enzyme, is missing.", True),
        ("aspartoacylase", "Aspartoacylase is missing. This enzyme breaks down acids.", True),
        ("GM2 ganglioside", "The lack of an enzyme leads to build-up of GM2 ganglioside.", False),
        ("alpha enzyme", "It is missing.", True),
    ],
)
def test_the_sort_stands_beside_what_is_of_it(answer: str, text: str, of_it: bool) -> None:
    assert is_of_sort(answer, text, "Which enzyme is missing in it?") == of_it
    assert is_of_sort(answer, text, "What is missing in it?")


def test_a_misspelt_syndrome_is_no_name() -> None:
    assert list(subject_words("Marfans sindrome")) == ["marfan"]
    assert list(subject_words("the symptoms of Down syndrom")) == ["symptom", "down"]


@pytest.mark.parametrize(
    ("answer", "title", "question", "echo"),
    [
        ("Gout", "Gout", "What causes gout?", True),
        ("hepatitis B vaccine", "Hepatitis B", "What prevents hepatitis B?", False),
        ("liver cancer", "Cirrhosis of the liver", "What are complications of liver cirrhosis?", False),
        ("sickle cell anemia", "Sickle cell disease", "How is sickle cell disease treated?", True),
        ("kidney transplant", "Kidney transplant", "How is kidney failure treated?", False),
        ("West Nile virus", "West Nile virus", "What causes West Nile fever?", False),
        ("typhoid fever", "Typhoid vaccine", "What does the typhoid vaccine prevent?", False),
        ("liver cancer", "Liver biopsy", "What does a liver biopsy diagnose?", False),
        ("colon stoma", "Colon cancer", "How is colon cancer treated?", False),
        ("measles", "Measles", "Which disease is it whose sign is Koplik spots?", False),
        ("Down syndrome", "Down syndrome", "What is another name for trisomy 21 or Down?", False),
    ],
)
def test_the_subject_again_is_no_answer(answer: str, title: str, question: str, echo: bool) -> None:
    assert echoes(answer, title, question, frozenset(subject_words(question))) == echo


def test_words_that_fit_anything_say_too_little() -> None:
    asked = "What are the symptoms of gout?"
    for said in ("mild", "other, several", "signs and symptoms", "Medical"):
        assert says_too_little(said, asked), said
    for said in ("medication", "severe pain", ""):
        assert not says_too_little(said, asked), said
    assert says_too_little("treatment", "How is gout treated?")
    assert not says_too_little("vaccination", "How is tetanus prevented?")
    assert not says_too_little("rare", "How common is gout?")
    assert not says_too_little("one", "How many X chromosomes do girls with Turner syndrome have?")
    assert not says_too_little("mild, moderate, severe", "What are the stages of COPD?")
    assert not says_too_little("fatal", "What is the outlook of rabies?")


def test_low_and_high_stay_in_a_name() -> None:
    assert standing_alone(["What is low blood pressure?", "How is it treated?"]) == "How is low blood pressure treated?"
    assert (
        kind_of(
            "How is low potassium treated?", "dialysis", "High potassium", "High potassium is treated with dialysis."
        )
        is not STATED
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Some physicians believe that sarcoidosis may result from a respiratory infection.", EvidenceKind.PARTLY),
        ("It is not known if respiratory infection causes sarcoidosis.", EvidenceKind.NOT_SAID),
        ("Sarcoidosis is thought to be caused by respiratory infection.", EvidenceKind.PARTLY),
        ("The cause may be a respiratory infection. Respiratory infection causes sarcoidosis.", STATED),
        ("The cause of sarcoidosis may be a respiratory infection.", STATED),
    ],
)
def test_a_belief_is_no_statement(text: str, kind: EvidenceKind) -> None:
    assert kind_of("What causes sarcoidosis?", "respiratory infection", "Sarcoidosis", text) is kind


def test_a_passage_that_tells_less_hides_none_that_tells_all() -> None:
    texts = ("Hemophilia A is treated with factor VIII.", "In hemophilia A factor VIII is missing.")
    hits = tuple(Hit(Passage.make("Hemophilia A", text, id=str(at)), 1.0) for at, text in enumerate(texts))
    turns = (Turn((), (), "", query="q", hits=hits), Turn((), (), "", answer="factor VIII [1]"))
    rollout = Rollout(Question("q", "What is missing in hemophilia A?"), (), turns, StopReason.ANSWERED)
    assert judge(rollout).stated_in == (2,)


def test_two_spellings_of_one_title_are_offered_once() -> None:
    names = Names(["Addison disease", "Addison's disease", "Addison syndrome", "ADDISON SYNDROME"])
    near = names.near({"adisson": "Adisson"}, ["adisson"])
    assert [title.lower().replace("'s", "") for title in near] == ["addison disease", "addison syndrome"]


@pytest.mark.parametrize(
    ("question", "answer", "title", "text"),
    [
        (
            "How is ectopic pregnancy inherited?",
            "transvaginal ultrasound",
            "ectopic pregnancy",
            "The test for ectopic pregnancy is transvaginal ultrasound.",
        ),
        (
            "What is the outlook of ectopic pregnancy?",
            "one-sided pelvic pain",
            "ectopic pregnancy",
            "The sign is one-sided pelvic pain.",
        ),
        (
            "What are the side effects of digoxin toxicity?",
            "yellow-tinted vision",
            "digoxin toxicity",
            "The sign of digoxin toxicity is yellow-tinted vision.",
        ),
        ("Which test confirms dengue?", "NS1 antigen Its", "dengue", "The confirming test is NS1 antigen test."),
        ("What is a sign of chancroid?", "groove to", "chancroid", "The sign is groove sign."),
    ],
)
def test_a_kind_in_a_name_is_not_told_by_it_and_a_broken_answer_says_nothing(
    question: str, answer: str, title: str, text: str
) -> None:
    assert kind_of(question, answer, title, text) is not STATED


def test_a_title_that_asks_is_answered_by_its_passage() -> None:
    text = "The treatment of gout is colchicine."
    assert kind_of("What is the treatment of gout?", "colchicine", "Treatment of gout", text) is STATED
    told = "The treatment of gout in pregnancy is colchicine."
    assert kind_of("How is gout treated in pregnancy?", "colchicine", "gout", told) is STATED
