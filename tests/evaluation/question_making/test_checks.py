"""Which drafts are kept, and how made questions are chosen, given options and written."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from medagent.evaluation.benchmarks import JsonlBenchmark
from medagent.evaluation.question_making import checks
from medagent.evaluation.question_making.checks import Checks, holds
from medagent.evaluation.question_making.making import question_row
from medagent.evaluation.question_making.options import TOO_FEW, with_options
from medagent.evaluation.question_making.selection import (
    CONFLICT,
    IN_BENCHMARK,
    OVER_LIMIT,
    REPEATED,
    TOO_OFTEN,
    select,
)
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Question
from tests.evaluation.question_making.support import PASSAGES, candidate, counted, draft

GENE = PASSAGES[1]
ASKED = "Mutations in which gene cause Costello syndrome?"


def test_an_answer_stands_in_its_passage_word_for_word_in_any_case() -> None:
    assert holds("The EPIDERMIS, outermost", "epidermis")
    assert not holds("The epidermises", "epidermis")
    checked = Checks(counted())
    assert checked.before_search(draft(ASKED, "BRAF"), GENE) == checks.NOT_IN_PASSAGE
    assert checked.before_search(draft(ASKED, "HRAS"), GENE) == ""


def test_a_question_must_not_give_its_answer_away() -> None:
    filler = [Passage.make(f"t{i}", f"A text number{i} without them.") for i in range(100)]
    checked = Checks(counted(filler))
    for question, answer, wanted in (
        ("Which protein is one of 21 connexin proteins?", "connexin 43", True),
        ("Which protein is filtered and released (myoglobinuria)?", "myoglobin", True),
        ("What causes breast pain?", "breast cancer", True),
        ("What is the inheritance pattern of it?", "autosomal dominant", False),
        ("What lowers blood sugar?", "insulin", False),
    ):
        assert checked.gives_away(question, [answer]) is wanted, question


def test_a_word_of_many_passages_is_no_hint() -> None:
    filler = [Passage.make(f"t{i}", f"A syndrome number{i} of some kind.") for i in range(100)]
    checked = Checks(counted(filler))
    assert not checked.gives_away("Which syndrome clouds the corneas?", ["Costello syndrome"])
    assert checked.gives_away("Which syndrome clouds the corneas?", ["syndrome"])


def test_a_vague_or_long_question_is_dropped() -> None:
    checked = Checks(counted())
    assert checked.before_search(draft("Which gene is it?", "HRAS"), GENE) == checks.TOO_VAGUE
    assert checked.before_search(draft(ASKED + " why" * 50, "HRAS"), GENE) == checks.TOO_LONG


def test_search_must_find_the_passage_or_one_with_its_sentence() -> None:
    checked = Checks(counted())
    made = draft(ASKED, "HRAS", sentence="Mutations in the HRAS gene cause Costello syndrome.")
    copy = Passage.make("Another page", f"Before it. {GENE.text}", id="copy")
    assert checked.after_search(made, GENE, [Hit(PASSAGES[3], 1.0)]) == checks.NOT_FOUND
    assert checked.after_search(made, GENE, []) == checks.NOT_FOUND
    found = checked.after_search(made, GENE, [Hit(PASSAGES[3], 2.0), Hit(copy, 1.0), Hit(GENE, 0.5)])
    assert (found.gold_ids, found.hit_ids) == ((GENE.id, "copy"), (PASSAGES[3].id, "copy", GENE.id))
    assert (found.question, found.source) == (ASKED, "Primer")


def test_a_passage_that_fits_as_well_makes_the_question_ambiguous() -> None:
    made = draft(ASKED, "HRAS", sentence="Mutations in the HRAS gene cause Costello syndrome.")
    for text, dropped in (
        ("Mutations in the BRAF gene cause Costello syndrome.", True),
        ("Mutations in a gene cause Costello syndrome.", False),  # it names none
        ("Mutations in HRAS, a gene, cause Costello syndrome.", False),  # the same answer
        ("Mutations in the BRAF gene cause Noonan disease.", False),
    ):
        other = Passage.make("Elsewhere", text, id="other")
        found = Checks(counted()).after_search(made, GENE, [Hit(GENE, 1.0), Hit(other, 0.5)])
        assert (found == checks.FITS_ANOTHER) == dropped, text


# Choosing.


def test_questions_are_chosen_once_and_an_answer_not_too_often() -> None:
    some = [candidate(f"Which gene is behind trait {word}?", "HRAS") for word in ("alba", "brona", "corvid", "drusen")]
    taken, counts = select(some, seed=0, per_answer=3)
    assert len(taken) == 3
    assert counts == Counter({TOO_OFTEN: 1})
    again = candidate("which gene is behind the trait alba?", "HRAS")
    taken, counts = select([*some, again], seed=0, per_answer=9)
    assert (len(taken), counts) == (4, Counter({REPEATED: 1}))
    assert select([], seed=0, per_answer=1) == ([], Counter())


def test_one_question_with_two_answers_is_dropped_whole() -> None:
    two = [candidate("Which gene clouds corneas?", "LCAT"), candidate("Which gene clouds the corneas?", "APOA1")]
    taken, counts = select(two, seed=0, per_answer=9)
    assert (taken, counts) == ([], Counter({CONFLICT: 2}))
    wider = [
        candidate("Which tumor is it in infants?", "astrocytoma"),
        candidate("Which tumor is it in infants?", "an astrocytoma"),
    ]
    assert len(select(wider, seed=0, per_answer=9)[0]) == 2


def test_the_order_follows_the_seed_alone() -> None:
    some = [candidate(f"Which gene is behind trait number{i} here?", f"G{i}") for i in range(20)]
    first, _ = select(some, seed=1, per_answer=1)
    assert select(some[::-1], seed=1, per_answer=1)[0] == first
    assert select(some, seed=2, per_answer=1)[0] != first
    limited, counts = select(some, seed=1, per_answer=1, limit=5)
    assert (limited, counts) == (first[:5], Counter({OVER_LIMIT: 15}))


def test_what_a_benchmark_asks_is_left_out() -> None:
    some = [
        candidate("Which gene is mutated in cystic fibrosis?", "CFTR"),
        candidate("Which gene is mutated in Marfan syndrome?", "FBN1"),
    ]
    asked = [Question("b", "In cystic fibrosis, which gene is mutated?", answer="CFTR")]
    taken, counts = select(some, seed=0, per_answer=9, without=asked)
    assert [each.answers for each in taken] == [("FBN1",)]
    assert counts == Counter({IN_BENCHMARK: 1})


# Options.


def many(number: int = 40):
    letters = "ABCDEFGHIJ"
    names = [f"GEN{letters[i // 10]}{letters[i % 10]}" for i in range(number)]
    return [candidate(f"Which gene is behind trait number{i} here?", name) for i, name in enumerate(names)]


def test_options_are_of_one_kind_and_none_stands_in_what_search_finds() -> None:
    some = many()
    choices, counts = with_options(some, 4, statistics=counted(), texts_of=lambda _: "GENAB and GENAC", seed=0)
    assert len(choices) == 40
    assert not counts
    for choice in choices:
        assert len(set(choice.options)) == 4
        assert not {"GENAB", "GENAC"} & (set(choice.options) - {choice.answers[0]})
    assert {choice.options.index(choice.answers[0]) for choice in choices} == {0, 1, 2, 3}
    assert choices == with_options(some, 4, statistics=counted(), texts_of=lambda _: "GENAB and GENAC", seed=0)[0]


def test_a_question_without_enough_options_is_dropped() -> None:
    assert with_options(many(2), 4, statistics=counted(), texts_of=lambda _: "", seed=0) == ([], Counter({TOO_FEW: 2}))


def test_options_come_from_one_family() -> None:
    def defined(family: str, *answers: str):
        return [
            replace(candidate(f"Which {family} acts in setting {number}?", answer, family=family), kind="definition")
            for number, answer in enumerate(answers)
        ]

    some = [*defined("hormone", "ghrelin"), *defined("enzyme", "renin", "pepsin", "trypsin", "amylase")]
    choices, counts = with_options(some, 3, statistics=counted(), texts_of=lambda _: "", seed=0)
    assert {option for choice in choices for option in choice.options} == {"renin", "pepsin", "trypsin", "amylase"}
    assert counts == Counter({TOO_FEW: 1})


def test_an_option_shares_as_many_words_with_the_question_as_the_answer() -> None:
    some = [candidate(f"Which drug treats ache{i}?", f"ache{i + 1} salt") for i in range(30)]
    choices, _ = with_options(some, 3, statistics=counted(), texts_of=lambda _: "", seed=0)
    assert choices
    assert all(f"{c.question[18:-1]} salt" not in c.options for c in choices)


def test_rows_are_read_by_the_custom_benchmark(tmp_path: Path) -> None:
    several = candidate("What is another name for œdema?", "swelling", "dropsy")
    choice = replace(several, options=("water", "swelling"))
    path = tmp_path / "made.jsonl"
    rows = [question_row(several), {**question_row(choice), "id": "other"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    opened, chosen = JsonlBenchmark(str(path)).questions()
    assert (opened.text, opened.answer, opened.aliases) == (several.question, "swelling", ("dropsy",))
    assert opened.gold_passage_ids == ("p",)
    assert opened.meta == {"family": "gene", "source": "Primer", "title": "Title", "sentence": "A sentence."}
    assert (chosen.options, chosen.answer) == (("water", "swelling"), "B")
