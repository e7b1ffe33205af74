"""Which drafts are kept, and how made questions are chosen and written."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from medagent.evaluation.benchmarks import JsonlBenchmark
from medagent.evaluation.question_making import checks
from medagent.evaluation.question_making.checks import holds
from medagent.evaluation.question_making.making import (
    ALIKE_ANOTHER,
    CONFLICT,
    OVER_LIMIT,
    TOO_OFTEN,
    question_row,
    select,
)
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.passages import Hit, Passage
from tests.evaluation.question_making.support import PASSAGES, checks_of, draft

GENE = PASSAGES[1]
ANALYSER = Analyser()
ASKED = "Mutations in which gene cause Costello syndrome?"


def test_an_answer_stands_in_its_passage_word_for_word_in_any_case() -> None:
    assert holds("The EPIDERMIS, outermost", "epidermis")
    assert not holds("The epidermises", "epidermis")
    checked = checks_of()
    assert checked.before_search(draft(ASKED, "BRAF")) == checks.NOT_IN_PASSAGE
    assert checked.before_search(draft(ASKED, "HRAS")) == ""


def test_a_question_must_not_give_its_answer_away() -> None:
    filler = [Passage.make(f"t{i}", f"A text number{i} without them.") for i in range(100)]
    checked = checks_of(filler)
    for question, answer, wanted in (
        ("Which protein is one of 21 connexin proteins?", "connexin 43", True),
        ("Which protein is filtered and released (myoglobinuria)?", "myoglobin", True),
        ("What causes breast pain?", "breast cancer", True),
        ("What is the inheritance pattern of it?", "autosomal dominant", False),
        ("What lowers blood sugar?", "insulin", False),
    ):
        assert checked.gives_away(question, answer) is wanted, question


def test_a_word_of_many_passages_is_no_hint() -> None:
    filler = [Passage.make(f"t{i}", f"A syndrome number{i} of some kind.") for i in range(100)]
    checked = checks_of(filler)
    assert not checked.gives_away("Which syndrome clouds the corneas?", "Costello syndrome")
    assert checked.gives_away("Which syndrome clouds the corneas?", "syndrome")


def test_a_vague_or_long_question_is_dropped() -> None:
    checked = checks_of()
    assert checked.before_search(draft("Which gene is it?", "HRAS")) == checks.TOO_VAGUE
    assert checked.before_search(draft(ASKED + " why" * 50, "HRAS")) == checks.TOO_LONG


def test_search_must_find_the_passage_or_one_with_its_sentence() -> None:
    checked = checks_of()
    made = draft(ASKED, "HRAS", sentence="Mutations in the HRAS gene cause Costello syndrome.")
    copy = Passage.make("Another page", f"Before it. {GENE.text}", id="copy")
    assert checked.after_search(made, [Hit(PASSAGES[3], 1.0)]) == checks.NOT_FOUND
    assert checked.after_search(made, []) == checks.NOT_FOUND
    found = checked.after_search(made, [Hit(PASSAGES[3], 2.0), Hit(copy, 1.0), Hit(GENE, 0.5)])
    assert (found.gold_ids, found.question, found.passage) == ((GENE.id, "copy"), ASKED, GENE)


def test_a_passage_that_fits_as_well_makes_the_question_ambiguous() -> None:
    made = draft(ASKED, "HRAS", sentence="Mutations in the HRAS gene cause Costello syndrome.")
    for text, dropped in (
        ("Mutations in the BRAF gene cause Costello syndrome.", True),
        ("Mutations in a gene cause Costello syndrome.", False),  # it names none
        ("Mutations in HRAS, a gene, cause Costello syndrome.", False),  # the same answer
        ("Mutations in the BRAF gene cause Noonan disease.", False),
    ):
        other = Passage.make("Elsewhere", text, id="other")
        found = checks_of().after_search(made, [Hit(GENE, 1.0), Hit(other, 0.5)])
        assert (found == checks.FITS_ANOTHER) == dropped, text


# Choosing.


def test_questions_are_chosen_once_and_an_answer_not_too_often() -> None:
    some = [draft(f"Which gene is behind trait {word}?", "HRAS") for word in ("alba", "brona", "corvid", "drusen")]
    taken, counts = select(some, seed=0, per_answer=3, analyser=ANALYSER)
    assert len(taken) == 3
    assert counts == Counter({TOO_OFTEN: 1})
    again = draft("which gene is behind the trait alba?", "HRAS")
    taken, counts = select([*some, again], seed=0, per_answer=9, analyser=ANALYSER)
    assert (len(taken), counts) == (4, Counter({ALIKE_ANOTHER: 1}))
    assert select([], seed=0, per_answer=1, analyser=ANALYSER) == ([], Counter())


def test_one_question_with_two_answers_is_dropped_whole() -> None:
    two = [draft("Which gene clouds corneas?", "LCAT"), draft("Which gene clouds the corneas?", "APOA1")]
    taken, counts = select(two, seed=0, per_answer=9, analyser=ANALYSER)
    assert (taken, counts) == ([], Counter({CONFLICT: 2}))
    wider = [
        draft("Which tumor is it in infants?", "astrocytoma"),
        draft("Which tumor is it in infants?", "an astrocytoma"),
    ]
    assert len(select(wider, seed=0, per_answer=9, analyser=ANALYSER)[0]) == 2


def test_the_order_follows_the_seed_alone() -> None:
    some = [draft(f"Which gene is behind trait number{i} here?", f"G{i}") for i in range(20)]
    first, _ = select(some, seed=1, per_answer=1, analyser=ANALYSER)
    assert select(some[::-1], seed=1, per_answer=1, analyser=ANALYSER)[0] == first
    assert select(some, seed=2, per_answer=1, analyser=ANALYSER)[0] != first
    limited, counts = select(some, seed=1, per_answer=1, analyser=ANALYSER, limit=5)
    assert (limited, counts) == (first[:5], Counter({OVER_LIMIT: 15}))


def test_rows_are_read_by_the_custom_benchmark(tmp_path: Path) -> None:
    made = draft("What is another name for œdema?", "swelling")
    path = tmp_path / "made.jsonl"
    path.write_text(json.dumps(question_row(made)))
    (opened,) = JsonlBenchmark(str(path)).questions()
    assert (opened.text, opened.answer) == (made.question, "swelling")
    assert opened.gold_passage_ids == ("f1",)
    assert opened.meta == {"source": "Primer", "title": "Costello syndrome", "sentence": "A sentence."}
