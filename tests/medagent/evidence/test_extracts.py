"""The documents' own sentences: of the asked subject and kind, whole, and none where there is nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from medagent.agent import Job
from medagent.agent_folder import open_agent
from medagent.evaluation.acceptance import read_acceptance
from medagent.evidence.answers import answer_job
from medagent.evidence.check import EvidenceCheck
from medagent.evidence.extracts import Quote, answer_from, best_quotes
from medagent.evidence.verdict import EvidenceKind
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.types import Question
from tests.recording import Finds

CLINICIANS = {
    "My patient has newly diagnosed Graves'. What do we start?": "methimazole",
    "Can you remind me what bug causes whooping cough?": "Bordetella",
    "how do I confirm suspected Addison's disease": "cosyntropin",
    "What should I give someone with an opioid overdose?": "naloxone",
    "Treatment of scurvy?": "ascorbic acid",
    "What gene is mutated in Marfan syndrome?": "FBN1",
    "Is cystic fibrosis autosomal recessive or dominant?": "recessive",
    "Eye finding in Wilson disease?": "Kayser",
    "What do you prescribe for scabies?": "permethrin",
    "Gold standard test for giant cell arteritis": "temporal artery biopsy",
    "What kind of tremor is seen in Parkinson disease?": "pill-rolling",
    "Acute treatment for cluster headache please": "oxygen",
    "What's the go-to drug for trigeminal neuralgia?": "carbamazepine",
    "A kid has staring spells, absence epilepsy. Best medication to begin with?": "ethosuximide",
    "What do you give someone with scurvy?": "ascorbic acid",
    "what med would you reach for first in absence epilepsy": "ethosuximide",
    "I've just been told I have celiac disease, which blood test shows that?": "transglutaminase",
    "How does one pick up Lyme disease, which germ is it?": "Borrelia",
    "What rash is typical for Lyme disease?": "erythema migrans",
    "how come people get scurvy": "fruit",
    "Is Huntington disease inherited, and how?": "dominant",
    "What should we start in a patient with anaphylaxis?": "epinephrine",
    "my uncle was diagnosed with gout, what can he take": "allopurinol",
    "In a baby with croup, what would you hear?": "barking",
    "Which bug is behind cat scratch disease?": "Bartonella",
    "treating myasthenia gravis - where to begin?": "pyridostigmine",
    "What lab test would confirm a pheochromocytoma?": "metanephrines",
    "How is hereditary angioedema passed on in families?": "dominant",
    "Can you name the culprit gene in Marfan syndrome": "FBN1",
    "Antidote for paracetamol overdose?": "acetylcysteine",
    "What do you see on examination in Graves disease?": "bulging",
}
MADE_UP = (
    "What treats Velmar syndrome?",
    "What is the first-line drug for zorblatt fever?",
    "Is headache seen in Kessler-Brandt disease?",
    "What causes Harrow anemia?",
    "How is quintal fibrosis diagnosed?",
    "What should I give a child with brelitis?",
)


def quoted(question: str, retriever: HybridRetriever) -> tuple[Quote, ...]:
    """What a service quotes where no agent answers."""
    agent = open_agent("none", index=None, retriever=retriever)
    rollout = asyncio.run(agent.run(Job(Question("q", question))))
    return asyncio.run(EvidenceCheck().quotes(rollout, agent.search_batcher())) or ()


def test_natural_wordings_find_the_right_sentence(retriever: HybridRetriever) -> None:
    found = {question: [quote.text for quote in quoted(question, retriever)[:2]] for question in CLINICIANS}
    assert not {question: texts for question, texts in found.items() if CLINICIANS[question] not in " ".join(texts)}


def test_people_wordings_find_the_right_sentence_first(retriever: HybridRetriever) -> None:
    asked = {each.id: each for each in read_acceptance(Path("benchmarks/natural_questions/starter.jsonl"))}
    real = [each for id, each in asked.items() if id.startswith(("real", "misspelt"))]
    shown = {each.id: quoted(each.question, retriever)[:1] for each in real}
    first = [id for id, quotes in shown.items() if any(asked[id].answered_by(q.passage, q.text) for q in quotes)]
    assert len(first) >= 25, f"25 of {len(real)} were right when the rules were made"
    of_harm = [each for id, each in asked.items() if id.startswith("wrong-relation")]
    treated = {
        each.question: quotes for each in of_harm if (quotes := quoted(each.question, retriever)) and quotes[0].sure
    }
    assert len(treated) <= 1, "a treatment is no answer to what harms"


def test_of_a_made_up_disease_nothing_is_quoted(retriever: HybridRetriever) -> None:
    assert not {question: found for question in MADE_UP if (found := quoted(question, retriever))}


def test_a_narrower_form_is_quoted_under_its_own_name(retriever: HybridRetriever) -> None:
    found = quoted("Which drug treats diabetes insipidus?", retriever)
    agent = open_agent("none", index=None, retriever=retriever)
    job = Job(Question("q", "Which drug treats diabetes insipidus?"))
    shown = asyncio.run(answer_job(agent, job, check=EvidenceCheck(), search=agent.search_batcher()))
    assert (shown.verdict.kind, shown.quoted) == (EvidenceKind.PARTLY, found), "the answer alone does not say for what"
    assert {quote.scope for quote in found} == {"central diabetes insipidus", "nephrogenic diabetes insipidus"}
    assert [quote.scope for quote in quoted("Which drug treats central diabetes insipidus?", retriever)] == [""]


SCURVY = Passage.make(
    "Scurvy",
    "Treatment\nScurvy is rare today. It is treated with ascorbic acid 250 mg, which is taken by mouth for at least "
    "three months, and with a diet that has fresh fruit and vegetables, as the stores of the body fill up slowly. "
    "How is it treated elsewhere? For more information on the treatment of scurvy visit www.example.org. Treatment may "
    "also include the following: - Rest. - Vitamin tablets.",
)


def test_sentences_are_whole_and_neither_headings_nor_questions_nor_links() -> None:
    first, second = best_quotes("How is scurvy treated?", [SCURVY])
    assert first.text.startswith("Scurvy is rare today. It is treated")
    assert first.text.endswith("the body fill up slowly.")
    assert second.text == "Treatment may also include the following: - Rest. - Vitamin tablets."


def test_of_a_drug_that_causes_no_drug_that_treats_is_quoted(retriever: HybridRetriever) -> None:
    assert quoted("Which drug causes hemophilia A?", retriever) == ()


def test_a_sentence_that_denies_comes_after_one_that_tells() -> None:
    texts = ("Gout is not treated with aspirin.", "Gout is treated with allopurinol.")
    found = best_quotes("Which drug treats gout?", [Passage.make("gout", text) for text in texts])
    assert [quote.text for quote in found] == [texts[1], texts[0]]


def test_a_sentence_on_another_subject_is_near_and_not_sure() -> None:
    (quote,) = best_quotes("Should I stay in bed with a bad back?", [Passage.make("x", "Rest in bed for your back.")])
    assert not quote.sure


def test_a_dose_is_quoted_with_its_drug_and_never_that_of_another() -> None:
    text = "Offer allopurinol first line. Start at 100 mg daily. In attacks give colchicine 0.5 mg twice daily."
    quotes = best_quotes("how much allopurinol in gout", [Passage.make("gout", text)])
    assert [quote.text for quote in quotes][0] == "Offer allopurinol first line. Start at 100 mg daily."
    assert not any("0.5 mg" in quote.text for quote in quotes)


def test_initials_of_a_title_name_its_subject() -> None:
    passage = Passage.make("Hereditary spastic paraplegia", "It is inherited in an autosomal dominant manner.")
    other = Passage.make("Gout", "Gout is rarely inherited.")
    assert best_quotes("My dad has HSP, will I get it from him?", [other, passage])[0].passage is passage


def test_a_section_tells_what_its_sentences_are_about() -> None:
    passages = [Passage.make("gout", f"Allopurinol is usual in {at}.", section=at) for at in ("History", "Treatment")]
    assert [quote.passage.section for quote in best_quotes("How is gout treated?", passages)] == ["Treatment"]


def test_each_sentence_of_an_answer_is_cited() -> None:
    quotes = best_quotes("How is scurvy treated?", [SCURVY], limit=1)
    assert answer_from(quotes, [Passage.make("x", "y"), SCURVY]).count("[2]") == 2


@pytest.mark.parametrize(
    ("question", "kind"),
    [("What is the first-line drug for trachoma?", EvidenceKind.PARTLY), ("What treats Velm?", EvidenceKind.NOT_SAID)],
)
def test_no_model_answers_with_verbatim_sentences_that_must_be_read_or_with_none(
    retriever: HybridRetriever, question: str, kind: EvidenceKind
) -> None:
    agent = open_agent("none", index=None, retriever=retriever)
    check = EvidenceCheck.over(retriever)
    answer = asyncio.run(answer_job(agent, Job(Question("q", question)), check=check, search=agent.search_batcher()))
    assert (answer.verdict.kind, answer.withheld, answer.quoted) == (kind, kind is EvidenceKind.NOT_SAID, ())
    assert answer.caption.startswith("No model")
    for cited in answer.citations:
        assert cited.quote in answer.text


def test_no_model_shows_only_what_a_search_that_is_given_found() -> None:
    agent = open_agent("none", index=None, retriever=Finds(SCURVY))
    rollout = asyncio.run(agent.run(Job(Question("q", "How is scurvy treated?"), force_answer=True)))
    assert (rollout.num_searches, rollout.answer) == (0, "No sentence about this was found.")


@pytest.mark.parametrize(
    ("question", "title", "text"),
    [
        ("What can be done for someone with gout?", "Gout", "You can treat gout with medicines."),
        ("What brings on an asthma attack?", "Asthma", "Asthma attacks are triggered by allergens."),
        ("Which gene is to blame for cystic fibrosis?", "Cystic fibrosis", "Mutations in CFTR cause cystic fibrosis."),
        ("Will someone with Bell's palsy get better?", "Bell's palsy", "Most people recover within six months."),
        ("Is whooping cough contagious?", "Whooping cough", "It spreads from person to person by coughing."),
        ("How can I keep from getting scurvy?", "Scurvy", "Fruit prevents scurvy."),
    ],
)
def test_everyday_words_ask_for_the_same_kinds_of_thing(question: str, title: str, text: str) -> None:
    around = f"{title} has been known for long. {text} It was named by a physician."
    (quote,) = best_quotes(question, [Passage.make(title, around)], limit=1)
    assert text in quote.text
