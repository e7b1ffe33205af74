"""Whether passages state an answer: ALCE's counts by hand, and the rule of words against labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from medagent.evaluation.grading.citations import ground
from medagent.evidence.rules import LexicalRule
from medagent.evidence.support import Item, Statement, Support, statements_of, support_of
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question, Rollout, StopReason, Turn

LABELS = Path(__file__).with_name("support_labels.jsonl")


class Table:
    """Judges as a table says: {(texts of the passages, statement): True}."""

    label = "table"

    def __init__(self, *stated: tuple[str, str]) -> None:
        self._stated = set(stated)

    def judge_all(self, items: Sequence[Item]) -> list[bool]:
        return [("\n".join(each.text for each in read), said.text) in self._stated for said, read in items]


def untitled(*texts: str) -> list[Passage]:
    return [Passage.make("", text) for text in texts]


def test_the_rule_of_words_against_200_labels() -> None:
    rule, marks = LexicalRule(), []
    for line in LABELS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for claim, label in row["claims"]:
            marks.append((rule.judge_all([(Statement(claim, (1,)), untitled(row["passage"]))])[0], label))
    assert len(marks) == 200
    right = sum(said == label for said, label in marks)
    both = sum(said and label for said, label in marks)
    assert right / 200 >= 0.91
    assert both / sum(said for said, _ in marks) >= 0.92  # precision
    assert both / sum(label for _, label in marks) >= 0.89  # recall


def test_the_counts_of_alce_by_hand() -> None:
    passages = untitled("one", "two", "three")
    said = [Statement("a", (1, 2)), Statement("b", (2, 3)), Statement("c", (3,)), Statement("d", ())]
    table = Table(
        ("one\ntwo", "a"),  # only both together: each citation counts
        ("two\nthree", "b"),
        ("two", "b"),  # the second is enough: the third is irrelevant
    )
    assert support_of(said, passages, table) == Support(statements=4, entailed=2, citations=5, counted=3)


def test_citations_of_what_is_not_entailed_never_count() -> None:
    # Each alone entails, both together do not: recall 0, so neither counts.
    table = Table(("one", "a"), ("two", "a"))
    assert support_of([Statement("a", (1, 2))], untitled("one", "two"), table) == Support(1, 0, 2, 0)


LONG = "Allopurinol lowers uric acid in the long run"


def test_statements() -> None:
    both = [Statement(f"{LONG}.", (1,)), Statement("It is not for acute attacks.", (2,))]
    for answer, expected in [
        ("(B) allopurinol [1] [9]", [Statement("allopurinol", (1,), "What lowers urate?", name=True)]),
        (f"{LONG} [1]. It is not for acute attacks [2].", both),
        (f"{LONG}. [1] It is not for acute attacks. [2]", both),
        (f"{LONG} [1, 2].", [Statement(f"{LONG} [1, 2].", ())]),
    ]:
        found = statements_of(answer, "allopurinol", "What lowers urate?", shown=2)
        assert [(each.text, each.cited, each.name) for each in found] == [(e.text, e.cited, e.name) for e in expected]


def test_sentences_by_words() -> None:
    for text, claim, entailed in [
        ("Start with 5 mg once a day.", "Start with 5 mg once a day.", True),
        ("Start with 5 mg once a day.", "Start with 50 mg once a day.", False),
        ("It is not given in pregnancy.", "It is given in pregnancy.", False),
        ("Aspirin is given. Warfarin is stopped.", "Warfarin is given.", False),
        ("Gout is painful. It is treated with colchicine.", "Gout is treated with colchicine.", True),
    ]:
        assert LexicalRule().judge_all([(Statement(claim, (1,)), untitled(text))]) == [entailed]


@pytest.mark.parametrize(
    ("question", "name", "text", "stated"),
    [
        ("What treats it?", "allopurinol", "Allopurinol lowers uric acid.", True),
        ("What treats it?", "allopurinol", "It is not treated with allopurinol.", False),
        ("Which drug must not be given?", "allopurinol", "Do not give allopurinol.", True),
        ("What is it?", "iron deficiency anemia", "Iron tablets treat the iron deficiency anemias.", True),
        ("What is it?", "iron deficiency anemia", "Give iron. A deficiency of folate is another anemia.", False),
        ("Which hormone is lacking?", "cortisol", "The glands do not make enough cortisol.", True),
        ("Which mother?", "Rh- mother", "The child of an Rh+ mother.", False),
        ("What is it?", "the", "The end.", False),
    ],
)
def test_a_sentence_states_a_name_unless_it_denies_it(question: str, name: str, text: str, stated: bool) -> None:
    assert LexicalRule().judge_all([(Statement(name, (), question, name=True), untitled(text))]) == [stated]


def test_a_long_answer_is_counted_by_its_sentences() -> None:
    hits = (
        Hit(Passage("p1", "gout", "Allopurinol lowers uric acid in the long run."), 1.0),
        Hit(Passage("p2", "gout", "Colchicine relieves acute attacks of gout."), 0.5),
    )
    answer = "Allopurinol lowers uric acid in the long run [1]. Colchicine relieves acute attacks of gout [1][2]."
    turns = (Turn((), (), "", query="x", hits=hits), Turn((), (), "", answer=answer))
    found = ground([Rollout(Question("q", "?", (), "allopurinol"), (), turns, StopReason.ANSWERED)])
    assert (found.statements, found.citation_recall, found.citation_precision) == (2, 1.0, pytest.approx(2 / 3))
