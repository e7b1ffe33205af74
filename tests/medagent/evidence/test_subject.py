"""Whether a passage is about the subject asked of, about a narrower one, or about another."""

from __future__ import annotations

import pytest

from medagent.evidence.subject import SAME, match_subject
from medagent.retrieval.passages import Passage

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
