"""Making questions from an index: in stretches, to the same end after an interruption, with or without a writer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from medagent.errors import InputError
from medagent.evaluation.question_making import making
from medagent.evaluation.question_making.candidates import CandidateFile
from medagent.evaluation.question_making.drafts import Draft
from medagent.evaluation.question_making.making import NOT_WRITTEN, REPEATED_SENTENCE, count_index, find_candidates
from medagent.evaluation.question_making.statistics import CorpusStatistics
from medagent.retrieval.passages import Passage
from tests.evaluation.question_making.support import PASSAGES, Searched

MADE_FROM = {"content": "abc", "top_k": 5}
WANTED = {
    "Mutations in which gene cause Costello syndrome?",
    "What is the inheritance pattern of Costello syndrome?",
    "Which nerve cells transmit pain signals to the spinal cord?",
    "What is the most common cause of COPD?",
}


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "STRETCH", 4)


def statistics_of(index: Searched) -> CorpusStatistics:
    statistics = CorpusStatistics()
    count_index(index, statistics)
    return statistics


def found_in(path: Path, index: Searched, **settings):
    file = CandidateFile(path, MADE_FROM)
    return find_candidates(index, statistics_of(index), file, top_k=5, **settings)


def test_drafts_become_candidates_with_their_passages(tmp_path: Path) -> None:
    found = found_in(tmp_path / "part", Searched(PASSAGES))
    by_question = {each.question: each for each in found.candidates}
    assert set(by_question) >= WANTED - {"What is the inheritance pattern of Costello syndrome?"}
    gene = by_question["Mutations in which gene cause Costello syndrome?"]
    assert (gene.answers, gene.gold_ids[0], gene.source, gene.kind) == (("HRAS",), "f1", "Primer", "cause")
    assert gene.sentence in PASSAGES[1].text
    assert found.drafts == len(found.candidates) + sum(found.dropped.values())


def test_the_same_question_is_searched_once(tmp_path: Path) -> None:
    twice = [*PASSAGES, Passage.make("Copy", f"{PASSAGES[1].text} More of it follows here.", id="copy")]
    index = Searched(twice)
    found = found_in(tmp_path / "part", index)
    assert found.dropped[REPEATED_SENTENCE] >= 1
    assert len(index.queries) == len(set(index.queries))
    gene = next(each for each in found.candidates if each.answers == ("HRAS",))
    assert gene.gold_ids == ("f1", "copy")


@pytest.mark.parametrize("stretches", [1, 2, 3])
def test_an_interrupted_run_ends_with_the_same_candidates(tmp_path: Path, stretches: int) -> None:
    whole = found_in(tmp_path / "whole", Searched(PASSAGES))
    calls = []

    def stop(stage: str, done: int, total: int, questions: int) -> None:
        calls.append(done)
        if len(calls) == stretches:
            raise KeyboardInterrupt

    path = tmp_path / "part"
    with pytest.raises(KeyboardInterrupt):
        found_in(path, Searched(PASSAGES), progress=stop)
    with path.open("a") as file:
        file.write('{"kind": "name", "half of a li')  # as a kill leaves it
    index = Searched(PASSAGES)
    again = found_in(path, index)
    assert again.candidates == whole.candidates
    assert (again.drafts, again.dropped) == (whole.drafts, whole.dropped)
    assert CandidateFile(path, MADE_FROM).done == len(PASSAGES)
    assert len(index.queries) < len(whole.candidates) + whole.drafts
    assert found_in(path, Searched([])).candidates == whole.candidates


@pytest.mark.parametrize("reworded", [False, True])
def test_what_was_asked_in_vain_is_not_asked_again_after_an_interruption(tmp_path: Path, reworded: bool) -> None:
    """The second of two passages with one question comes after the interruption. No search finds the first."""

    class Blind(Searched):
        def search(self, queries: Sequence[str], *, top_k: int):
            return [[hit for hit in hits if hit.passage.id != "f1"] for hits in super().search(queries, top_k=top_k)]

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def as_it_is(pairs: Sequence[tuple[Draft, Passage]]) -> list[Draft | None]:
        written.extend(draft.question for draft, _ in pairs)
        return [draft if draft.answers != ("HRAS",) else None for draft, _ in pairs]

    written: list[str] = []
    passages = [*PASSAGES, Passage.make("Copy", "Mutations in the HRAS gene cause Costello syndrome.", id="copy")]
    settings = {"rewrite": as_it_is} if reworded else {}
    whole = found_in(tmp_path / "whole", Blind(passages), **settings)
    assert whole.dropped[REPEATED_SENTENCE] >= 1
    with pytest.raises(KeyboardInterrupt):
        found_in(tmp_path / "part", Blind(passages), progress=stop, **settings)
    written.clear()
    again = found_in(tmp_path / "part", Blind(passages), **settings)
    assert (again.candidates, again.dropped) == (whole.candidates, whole.dropped)
    assert len(written) == len(set(written))
    assert "Mutations in which gene cause Costello syndrome?" not in written


def test_candidates_of_another_index_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "part"
    found_in(path, Searched(PASSAGES))
    assert CandidateFile(path, MADE_FROM).candidates
    assert CandidateFile(path, {**MADE_FROM, "top_k": 6}).candidates == []
    with pytest.raises(InputError, match=r"cannot be written"):
        CandidateFile(tmp_path / "nowhere" / "part", MADE_FROM)


def test_a_top_k_below_one_is_refused(tmp_path: Path) -> None:
    file = CandidateFile(tmp_path / "part", MADE_FROM)
    with pytest.raises(InputError, match="--top_k 0: wanted at least 1"):
        find_candidates(Searched([]), CorpusStatistics(), file, top_k=0)


def test_an_index_without_passages_has_no_questions(tmp_path: Path) -> None:
    found = found_in(tmp_path / "part", Searched([]))
    assert (found.candidates, found.drafts) == ([], 0)


def test_a_writers_questions_pass_the_same_checks(tmp_path: Path) -> None:
    def rewrite(pairs: Sequence[tuple[Draft, Passage]]) -> list[Draft | None]:
        return [reworded(draft) for draft, _ in pairs]

    def reworded(draft: Draft) -> Draft | None:
        if draft.answers == ("HRAS",):
            return Draft(
                draft.kind,
                draft.family,
                "Costello syndrome: mutations of which gene cause it?",
                draft.answers,
                draft.sentence,
            )
        if draft.family == "cause":
            return Draft(draft.kind, draft.family, "Does cigarette smoking cause COPD?", draft.answers, draft.sentence)
        return None

    found = found_in(tmp_path / "part", Searched(PASSAGES), rewrite=rewrite)
    assert [each.question for each in found.candidates] == ["Costello syndrome: mutations of which gene cause it?"]
    assert found.dropped[NOT_WRITTEN] > 3
    assert found.dropped["the question gives the answer away"] >= 1


def test_the_file_is_json_lines_with_marks(tmp_path: Path) -> None:
    path = tmp_path / "part"
    found_in(path, Searched(PASSAGES))
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows[0] == MADE_FROM
    assert [row["done"] for row in rows if "done" in row] == [4, 8, 12, 16]
