"""The relation that is asked for must be the relation that is stated."""

from __future__ import annotations

import pytest

from medagent.evidence.kinds import EvidenceKind
from medagent.evidence.verdict import judge
from medagent.retrieval.passages import Hit, Passage
from medagent.starter.world import World
from medagent.types import Question, Rollout, StopReason, Turn

# The question, and the relation of the starter's passage that is shown for it.
STARTER = """
Which drug causes hemophilia A?|drug
Which drug causes gout?|cause
Which drug causes gout?|drug
Which drug causes scabies?|cause
Which medicine triggers migraine?|drug
Which drug worsens myasthenia gravis?|drug
Which drug is contraindicated in Parkinson disease?|drug
Which drug should be avoided in asthma?|drug
Which drug prevents scurvy?|drug
What prevents gout?|drug
Which drug interacts with gout?|drug
What is contraindicated in celiac disease?|cause
Which drug confirms syphilis?|test
Which drug confirms gout?|drug
Which test treats gout?|test
Which test causes cystic fibrosis?|test
Which test causes cystic fibrosis?|cause
Which drugs can lead to celiac disease?|cause
What worsens rosacea?|drug
Which antibiotic causes trachoma?|drug
Which drug is responsible for gout?|drug
What is the drug that causes gout?|drug
Which medicine can bring on gout?|drug"""
PROSE = """
Which drug causes gout?|Gout, caused by urate crystals, is treated with allopurinol.|allopurinol|
Which drug causes gout?|Hydrochlorothiazide can cause gout.|hydrochlorothiazide|stated
Which drug causes gout?|Gout may be caused by hydrochlorothiazide.|hydrochlorothiazide|stated
Which drug causes gout?|Allopurinol can cause a rash.|allopurinol|
Which drug prevents gout?|Allopurinol prevents attacks of gout.|allopurinol|stated
Which drug is contraindicated in gout?|In gout, avoid hydrochlorothiazide and give allopurinol.|allopurinol|
Which drug is contraindicated in gout?|In gout, hydrochlorothiazide is contraindicated.|hydrochlorothiazide|stated
Which drug is contraindicated in gout?|Do not give hydrochlorothiazide in gout.|hydrochlorothiazide|stated
Gout is caused by which drug?|The first-line drug is allopurinol.|allopurinol|
What does allopurinol prevent?|Allopurinol prevents gout.|gout|stated
Which drug treats gout?|Gout, caused by urate crystals, is treated with allopurinol.|allopurinol|stated
Which drug causes gout?|Allopurinol is given for gout.|Allopurinol is given for gout|
How is gout treated?|These links may help with gout treatment: ClinicalTrials.gov, allopurinol registry.|allopurinol|
How is gout treated?|See also: allopurinol, treatment of gout.|allopurinol|"""


def _kind(question: str, answer: str, shown: Passage) -> EvidenceKind:
    read = Turn((1,), (0.0,), "", query="q", hits=(Hit(shown, 1.0),))
    turns = (read, Turn((2,), (0.0,), "", answer=f"{answer} [1]"))
    return judge(Rollout(Question("q", question), (5,), turns, StopReason.ANSWERED)).kind


@pytest.mark.parametrize("row", STARTER.strip().split("\n"))
def test_another_relation_is_not_stated_nor_shown(row: str) -> None:
    question, relation = row.split("|")
    world = World.load()
    condition = next(each for each in world.conditions if question.endswith(f" {each.name}?"))
    shown = next(each for each in world.passages() if each.title == condition.name and each.id.endswith(relation))
    assert _kind(question, condition.facts[relation], shown) not in (EvidenceKind.STATED, EvidenceKind.PARTLY)


@pytest.mark.parametrize("row", PROSE.strip().split("\n"))
def test_a_sentence_states_a_relation_by_its_verb_and_direction(row: str) -> None:
    question, text, answer, stated = row.split("|")
    found = _kind(question, answer, Passage.make("Gout", text))
    assert (found is EvidenceKind.STATED) == bool(stated)
