"""The librarian's queries and how they are scored (benchmarks/librarian.py); neither needs the corpus."""

from __future__ import annotations

import re
from collections import Counter
from math import log2
from pathlib import Path

import pytest

from benchmarks.librarian import KINDS, QUERIES, Outcome, Query, ask, grades_by_digest, ndcg, read_queries, table
from medagent.retrieval.embedders import embedder_from_identity
from medagent.retrieval.passages import Passage


def test_the_gain_of_a_grade_is_discounted_by_its_rank() -> None:
    # Found: an answer first, another subject, the subject third. Best: both answers, then the subject.
    found = 3 / log2(2) + 0 / log2(3) + 1 / log2(4)
    best = 3 / log2(2) + 3 / log2(3) + 1 / log2(4)
    assert found == 3.5
    assert ndcg([2, 0, 1], [1, 2, 2]) == pytest.approx(found / best)
    assert ndcg([2, 2, 1], [1, 2, 2]) == pytest.approx(1.0)
    assert ndcg([], [2]) == 0.0
    assert ndcg([0, 2], [2]) == pytest.approx(1 / log2(3))


def test_only_ten_ranks_count_on_either_side() -> None:
    assert ndcg([0] * 10 + [2], [2]) == 0.0
    assert ndcg([1] * 10, [1] * 40) == pytest.approx(1.0)


def test_equal_passages_count_once_with_their_higher_grade() -> None:
    passages = {row: Passage.make("Gout", text, id=row) for row, text in (("0:a", "x"), ("1:b", "x"), ("2:c", "y"))}
    query = Query("gout", "drugs", {"0:a": 1, "1:b": 2, "2:c": 1})
    assert sorted(grades_by_digest(query, passages).values()) == [1, 2]
    with pytest.raises(SystemExit, match="no row 9:z"):
        grades_by_digest(Query("gout", "drugs", {"9:z": 2}), passages)


def test_kinds_are_averaged_apart_and_absent_subjects_left_out_of_all() -> None:
    right = [Outcome(Query("q", kind, {"0:a": 2}), [2], [2]) for kind in KINDS if kind != "absent"]
    right[0] = Outcome(right[0].query, [], [2])
    rows = table([*right, Outcome(Query("q", "absent", {}), [], []), Outcome(Query("q", "absent", {}), [0], [])])
    assert rows["absent"] == {"queries": 2, "empty": 0.5}
    assert rows["accents"] == {"queries": 1, "ndcg@10": 0.0, "hit@10": 0.0, "empty": 1.0}
    assert rows["all but absent"] == pytest.approx({"queries": 6, "ndcg@10": 5 / 6, "hit@10": 5 / 6, "empty": 1 / 6})


def test_queries_are_searched_in_an_index_of_their_own(tmp_path: Path) -> None:
    texts = ("Colchicine prevents attacks of gout.", "Scabies is treated with permethrin.", "Gout runs in families.")
    passages = [Passage.make("", text, id=f"{row}:X") for row, text in enumerate(texts)]
    query = Query("colchicine for gout", "drugs", {"0:X": 2, "2:X": 1})
    (outcome,) = ask([query], passages, embedder_from_identity("hashed-ngrams:64:3-5"), tmp_path / "index")
    assert outcome.found[0] == 2
    assert sorted(outcome.labelled) == [1, 2]


def test_the_file_has_sixty_queries_of_seven_kinds() -> None:
    queries = read_queries(QUERIES)
    wanted = {"accents": 10, "spelling": 10, "forms": 8, "drugs": 8, "synonyms": 8, "typos": 8, "absent": 8}
    assert Counter(query.kind for query in queries) == wanted
    assert tuple(wanted) == KINDS
    assert len({query.text.casefold() for query in queries}) == len(queries) == 60
    assert all(2 <= len(query.text.split()) <= 10 for query in queries)
    assert QUERIES.stat().st_size < 100_000


def test_each_subject_of_the_corpus_has_an_answer_and_absent_ones_have_no_row() -> None:
    for query in read_queries(QUERIES):
        grades = Counter(query.relevant.values())
        assert all(re.fullmatch(r"\d+:\w+-[\w-]+", row) for row in query.relevant), query.text
        assert grades.keys() <= {1, 2}, query.text
        assert grades[1] <= 40, query.text
        assert (grades[2] == 0) == (query.kind == "absent"), query.text
        assert bool(query.relevant) == (query.kind != "absent"), query.text
