"""Whether a passage is about the subject asked of, about a narrower one, or about another."""

from __future__ import annotations

import pytest

from medagent.evidence.kinds import EvidenceKind
from medagent.evidence.subject import SAME, match_subject
from medagent.evidence.verdict import judge
from medagent.retrieval.passages import Hit, Passage
from medagent.starter.world import World
from medagent.types import Question, Rollout, StopReason, Turn

WORLD = World.load()
DRUGS = {each.name: each.facts["drug"] for each in WORLD.conditions if "drug" in each.facts}
GENERAL = (
    "diabetes headache hypertension pneumonia anemia meningitis epilepsy leukemia colitis poisoning overdose fever "
    "hemorrhage neuropathy arthritis angina hepatitis glaucoma lymphoma ataxia porphyria thalassemia encephalopathy "
    "encephalitis pericarditis nephropathy cholangitis thyroiditis dystrophy sclerosis hypercholesterolemia "
    "thrombocytopenia purpura aldosteronism malaria leishmaniasis typhus herpes tinea pemphigoid pemphigus lupus "
    "angioedema retinitis neuralgia palsy embolism filariasis rickets vaginosis"
).split()

TITLES = {
    "narrower": """
diabetes|central diabetes insipidus
diabetes|diabetes insipidus
diabetes|Diabetic neuropathy
diabetes|Kidney disease in diabetes
diabetes|Diabetes and pregnancy
meningitis|cryptococcal meningitis
angina|Prinzmetal angina
headache|cluster headache
pneumonia|aspiration pneumonia
pneumonia|walking pneumonia
hepatitis|chronic hepatitis C
hemophilia|hemophilia A
leukemia|Leukemia, Acute Myeloid
anemia|Anemia of chronic disease
spinocerebellar ataxia|Spinocerebellar ataxia 2
gout|Colchicine in acute gout
meningitis|Meningitis > Bacterial
pneumonia|Pneumonia > Children
headache|Types of headache > Cluster headaches
cirrhosis|Dystonia with polycythemia and cirrhosis""",
    "same": """
gout|Gout
gout|Gout: treatment
gout|What is gout?
gout|Overview of gout
gout|gout (disorder)
gout|Patient information: gout and its management
gout|nice_ng219_gout_guideline_2022.pdf
gout|5. Gout
gout|Allopurinol for gout
gout|What I need to know about Gout
HIV|HIV infection
typhoid|typhoid fever
Huntington's disease|Huntington disease
tumour lysis|Tumor lysis syndrome
central diabetes insipidus|central diabetes insipidus
meningitis|Meningitis > Treatment
toxocariasis|Parasites - Toxocariasis (also known as Roundworm Infection)
metabolic acidosis|Disorders of Acid-Base Balance > Metabolic Acidosis: Primary Bicarbonate Deficiency""",
    "other": """
gout|Pseudogout
trachoma|Gout""",
}
SENTENCES = """
meningitis|Fungal infections|Cryptococcal meningitis is treated with amphotericin B.|cryptococcal meningitis
pneumonia|Pneumonia|Clindamycin is used in aspiration pneumonia.|aspiration pneumonia
diabetes|Hormones|The drug for diabetes insipidus is desmopressin.|diabetes insipidus
meningitis|Infections|Antibiotics treat meningitis in children.|
type 2 diabetes|Diabetes|Type 2 diabetes is treated with metformin.|
heart attack|Heart failure|After a heart attack, aspirin is given.|
gout|Gout and pseudogout|Allopurinol is given for gout.|"""


@pytest.mark.parametrize(
    ("asked", "heading", "kind"),
    [(*line.split("|"), kind) for kind, lines in TITLES.items() for line in lines.split("\n") if line],
)
def test_a_heading_is_narrower_by_words_that_are_no_frame(asked: str, heading: str, kind: str) -> None:
    title, _, section = heading.partition(" > ")
    passage = Passage.make(title, "A tablet is given daily.", section=section)
    assert match_subject(f"What is the first-line drug for {asked}?", passage).kind == kind


@pytest.mark.parametrize("row", SENTENCES.strip().split("\n"))
def test_a_sentence_narrows_what_its_heading_does_not(row: str) -> None:
    asked, title, sentence, name = row.split("|")
    found = match_subject(f"How is {asked} treated?", Passage.make(title, f"It exists. {sentence}"), sentence)
    assert (found.kind, found.name.lower()) == (("narrower", name) if name else ("same", ""))


def test_a_question_that_describes_its_subject_is_narrowed_by_no_name() -> None:
    passage = Passage.make("central diabetes insipidus", "Its cause is a lack of vasopressin.")
    assert match_subject("What treats the disease caused by a lack of vasopressin?", passage) is SAME


@pytest.mark.parametrize("term", GENERAL)
def test_the_drug_of_a_special_form_is_not_stated_for_a_general_term(term: str) -> None:
    special = [each for each in WORLD.passages() if each.id.endswith(":drug") and term in each.title.lower()]
    kinds = {_kind(f"What is the first-line drug for {term}?", f"{DRUGS[each.title]} [1]", each) for each in special}
    assert EvidenceKind.PARTLY in kinds
    assert EvidenceKind.STATED not in kinds


def test_the_verdict_names_the_narrower_subject_and_the_other_forms_that_were_read() -> None:
    central = Passage.make("central diabetes insipidus", "The first-line drug is desmopressin.")
    rollout = _said(
        "What is the first-line drug for diabetes?", "desmopressin [1]", central, Passage.make("type 1 diabetes", "x")
    )
    assert judge(rollout).text == (
        "Stated in [1], only for \u201ccentral diabetes insipidus\u201d. Other forms that were read: type 1 diabetes."
    )


def _kind(question: str, answer: str, *shown: Passage) -> EvidenceKind:
    return judge(_said(question, answer, *shown)).kind


def _said(question: str, answer: str, *shown: Passage) -> Rollout:
    turns = (
        Turn((1,), (0.0,), "", query="q", hits=tuple(Hit(each, 1.0) for each in shown)),
        Turn((2,), (0.0,), "", answer=answer),
    )
    return Rollout(Question("q", question), (5,), turns, StopReason.ANSWERED)
