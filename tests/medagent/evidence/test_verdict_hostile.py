"""Wrong answers whose words stand in a passage, none of which may be shown as stated, and right ones in other words."""

from __future__ import annotations

import pytest

from medagent.evidence.verdict import EvidenceKind, judge
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn


def said(question: str, answer: str, *shown: tuple[str, str], options: tuple[str, ...] = ()) -> EvidenceKind:
    """The verdict on an answer that was shown these (title, text) passages."""
    hits = tuple(Hit(Passage.make(title, text), 1.0) for title, text in shown)
    turns = (Turn((1,), (0.0,), "", query="q", hits=hits), Turn((2,), (0.0,), "", answer=answer))
    return judge(Rollout(Question("q", question, options), (5,), turns, StopReason.ANSWERED)).kind


PARACETAMOL = (
    "Paracetamol",
    "Adults: 500 mg to 1 g every 4 to 6 hours, maximum 4 g daily. Children 6 to 8 years: 250 mg every 4 to 6 hours.",
)
WRONG = [
    # denied, or of another disease
    (
        "What is the treatment for influenza?",
        "amoxicillin [1]",
        (
            "",
            "Antibiotics such as amoxicillin are not effective in the treatment of influenza.",
        ),
    ),
    (
        "Which drug is the first choice for migraine in pregnancy?",
        "ergotamine [1]",
        ("", "Ergotamine is contraindicated in pregnancy. The first choice for migraine is paracetamol."),
    ),
    (
        "What is the treatment for rheumatoid arthritis?",
        "colchicine [1]",
        ("", "Acute gout is treated with colchicine. Rheumatoid arthritis is treated with methotrexate."),
    ),
    (
        "What is the treatment of hypothyroidism?",
        "methimazole [1]",
        ("", "Hyperthyroidism is treated with methimazole. Hypothyroidism is treated with levothyroxine."),
    ),
    (
        "What is the inheritance of Huntington disease?",
        "autosomal recessive [1]",
        ("Huntington disease", "It is autosomal dominant, not autosomal recessive in inheritance."),
    ),
    # the opposite, or a qualifier that the sentence lacks
    (
        "Which drug should be avoided in gout?",
        "colchicine [1]",
        ("gout", "The first-line drug is colchicine. Avoid aspirin."),
    ),
    (
        "What is the second-line drug for gout?",
        "colchicine [1]",
        ("gout", "The first-line drug is colchicine. The second-line drug is prednisone."),
    ),
    # a population, a dose
    (
        "What is the first-line drug for hypertension in pregnancy?",
        "lisinopril [1]",
        ("hypertension", "The drug is lisinopril."),
    ),
    ("What is the dose of paracetamol for children?", "500 mg to 1 g [1]", PARACETAMOL),
    ("What is the dose of paracetamol for adults?", "250 mg every 4 to 6 hours [1]", PARACETAMOL),
    (
        "How long is doxycycline given for Lyme disease?",
        "100 days [1]",
        ("Lyme disease", "Doxycycline 100 mg for 14 days."),
    ),
    (
        "What is the cause of Down syndrome?",
        "trisomy 18 [1]",
        ("Down syndrome", "The cause is trisomy 21, in 18 of 10,000."),
    ),
    # letters and numbers
    (
        "What virus causes hepatocellular carcinoma?",
        "hepatitis A virus [1]",
        ("hepatocellular carcinoma", "It is caused by the hepatitis B virus."),
    ),
    ("what is the treatment for hepatitis a?", "tenofovir [1]", ("hepatitis B", "The treatment is tenofovir.")),
    (
        "What is the first-line drug for type 1 diabetes?",
        "metformin [1]",
        ("", "Metformin is the first-line drug for type 2 diabetes. It has no place in type 1."),
    ),
    (
        "What is the treatment for first-degree heart block?",
        "permanent pacemaker [1]",
        ("third-degree heart block", "Treatment is a permanent pacemaker."),
    ),
    (
        "What is the treatment of primary hyperparathyroidism?",
        "calcitriol [1]",
        ("secondary hyperparathyroidism", "The treatment is calcitriol."),
    ),
    # passages that do not belong together, made-up subjects
    (
        "What is the drug for measles?",
        "insulin [2]",
        ("measles", "It is severe in people with diabetes."),
        ("diabetes", "The treatment is insulin."),
    ),
    (
        "What is the drug for flurbitosis?",
        "insulin [2]",
        ("diabetes trials", "Flurbitosis is not a known disease; diabetes is."),
        ("diabetes", "The treatment is insulin."),
    ),
    (
        "What is the treatment for acute renal migraine?",
        "colchicine [1]",
        ("", "Acute gout is treated with colchicine. Renal function is watched. Migraine is a side effect."),
    ),
    (
        "What is the treatment of gout?",
        "Penicillin is the treatment [2].",
        ("gout", "It hurts."),
        ("syphilis", "Penicillin is the treatment."),
    ),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[0][:50]} {case[1]}")
def test_words_that_stand_somewhere_are_not_enough(case: tuple[str, str, tuple[str, str]]) -> None:
    question, answer, *shown = case
    assert said(question, answer, *shown) is not EvidenceKind.STATED


def test_an_option_that_fits_better_contradicts_the_letter() -> None:
    gout = ("gout", "The drug is colchicine.")
    options = ("colchicine with penicillin", "colchicine", "all of the above")
    assert said("Which drug is for gout?", "colchicine [1] (A)", gout, options=options) is EvidenceKind.PARTLY
    assert said("Which drug is for gout?", "colchicine [1] (B)", gout, options=options) is EvidenceKind.STATED
    hunter = ("Hunter syndrome", "The sign is coarse face with clear corneas.")
    signs = ("coarse face with cloudy corneas", "doll-like face with hypoglycemia", "elfin face")
    asked = "What is the sign of Hunter syndrome?"
    assert said(asked, "coarse face with clear corneas (A) [1]", hunter, options=signs) is EvidenceKind.PARTLY
    right = ("coarse face with clear corneas", *signs[1:])
    assert said(asked, "coarse face with clear corneas (A) [1]", hunter, options=right) is EvidenceKind.STATED
    assert said(asked, "coarse face (A) [1]", hunter, options=right) is EvidenceKind.STATED
    above = ("gout", "The drugs of all the lists above are for gout: colchicine. All of the above fail.")
    assert said("Which drug is for gout?", "(C) [1]", above, options=options) is not EvidenceKind.STATED


RIGHT = [
    ("WHAT IS A STROKE TREATED WITH?", "alteplase [1]", ("stroke", "It is treated with alteplase.")),
    ("What are the symptoms of Addison disease?", "hyperkalaemia [1]", ("Addison disease", "A sign is hyperkalemia.")),
    (
        "Which drug should be avoided in gout?",
        "aspirin [1]",
        ("gout", "The drug is colchicine. Avoid the drug aspirin."),
    ),
    (
        "Which drug treats the disease whose classic sign is swelling without hives?",
        "icatibant [2]",
        ("hereditary angioedema", "The classic sign is swelling without hives."),
        ("hereditary angioedema", "The first-line drug is icatibant."),
    ),
    ("How does omeprazole work?", "it blocks the proton pump [1]", ("omeprazole", "It blocks the proton pump.")),
    ("What is the treatment in children with croup?", "steroids [1]", ("croup", "In a child, treatment is steroids.")),
    (
        "What is the inheritance of Huntington disease?",
        "autosomal dominant [1]",
        ("Huntington disease", "It is autosomal dominant, not autosomal recessive in inheritance."),
    ),
    (
        "What is the confirming test for atrial fibrillation?",
        "ECG without P waves [1]",
        ("atrial fibrillation", "The confirming test is an ECG without P waves."),
    ),
    (
        "What are the genetic changes of Marfan syndrome?",
        "FBN1 [1]",
        ("Marfan syndrome", "Mutations of the gene FBN1."),
    ),
]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case[0][:50])
def test_right_answers_are_stated(case: tuple[str, str, tuple[str, str]]) -> None:
    question, answer, *shown = case
    assert said(question, answer, *shown) is EvidenceKind.STATED


def test_yes_with_a_reason_is_judged_by_the_reason() -> None:
    dengue = ("dengue", "Ibuprofen must be avoided in dengue. Paracetamol is safe in dengue.")
    for answer in ("No, ibuprofen must be avoided in dengue [1].", "No. Ibuprofen must be avoided in dengue [1]."):
        assert said("Can ibuprofen be given in dengue?", answer, dengue) is EvidenceKind.PARTLY
    assert said("Can ibuprofen be given in dengue?", "Yes, ibuprofen is safe in dengue [1].", dengue) in (
        EvidenceKind.NOT_SAID,
        EvidenceKind.SOMETHING_ELSE,
    )
