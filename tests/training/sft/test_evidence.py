"""Where passages show an answer: in whole words, about the question, and only as far as the agent is shown them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from medagent.protocol import TagProtocol
from medagent.retrieval.passages import Hit
from medagent.training.sft.scripted_search import Evidence, Rarity, evidence_in, golds_of, says, shown
from medagent.types import Question
from tests.training.sft.support import RULES, passage

GOUT = Question("q", "Which drug treats gout?", answer="colchicine")


def found(*texts: str, question: Question = GOUT, golds: tuple[str, ...] = (), query: str = "drug gout", **fields):
    passages = [passage("", text, **fields) for text in texts]
    rarity = Rarity()
    rarity.add(texts)
    read = [(Hit(each, 1.0), each.text) for each in passages]
    return evidence_in(read, question, golds or (question.answer, *question.aliases), query, rarity)


@pytest.mark.parametrize(
    ("text", "gold", "wording"),
    [
        ("gout drug: Colchicine helps", "colchicine", "Colchicine"),
        ("gout drugs are bisphosphonates", "bisphosphonate", "bisphosphonates"),
        ("a gout drug, bisphosphonate", "Bisphosphonates", "bisphosphonate"),
        ("gout drug after biopsies", "biopsy", "biopsies"),
        ("gout drug against viruses", "virus", "viruses"),
        ("gout drug PD 1", "PD-1", "PD 1"),
        ("gout drug PD–1", "pd-1", "PD–1"),
        ("gout drug beta-blocker", "Beta blockers", "beta-blocker"),
        ("gout drug in Sjögren syndrome", "SJÖGREN syndrome", "Sjögren syndrome"),
        ("gout drug 秋水仙碱 ok", "秋水仙碱", "秋水仙碱"),
        ("gout drug (Rh+)", "Rh+", "Rh+"),
        ("gout drug 12 mg", "12", "12"),
        ("gout drug U.S.A. ", "U.S.A.", "U.S.A"),
    ],
)
def test_the_answer_is_worded_as_the_passage_words_it(text: str, gold: str, wording: str) -> None:
    assert found(text, golds=(gold,)) == Evidence(1, wording)


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("gout drug: colchicine", "colchicin"),
        ("gout drug in non-Hodgkin lymphoma", "Hodgkin lymphoma"),
        ("gout drug in non Hodgkin lymphoma", "Hodgkin lymphoma"),
        ("gout drug Rh+", "Rh"),
        ("gout drug Rh- here", "Rh"),
        ("gout drug 0.12 mg", "12"),
        ("gout drug 12.5 mg", "12"),
        ("gout drug is not aspirin", "aspirin"),
        ("gout drug", "..."),
        ("gout drug: the AS of it", "A"),
    ],
)
def test_what_only_looks_like_the_answer_is_none(text: str, gold: str) -> None:
    assert found(text, golds=(gold,)) is None


def test_of_several_right_answers_that_which_grading_takes_goes_first() -> None:
    many = replace(GOUT, answer="aspirin", aliases=("colchicine", "bisphosphonate"))
    assert found("gout drug colchicine", question=many) == Evidence(1, "colchicine")
    assert found("gout drug bisphosphonates", "gout drug aspirin", question=many) == Evidence(2, "aspirin")
    assert found("gout drug bisphosphonates or aspirin", question=many) == Evidence(1, "aspirin")
    assert found("gout drug aspirin", "gout drug aspirin", question=many) == Evidence(1, "aspirin"), "the better rank"


def test_a_passage_on_something_else_shows_nothing() -> None:
    assert found("Colchicine is a plant toxin", "gout is a disease") is None
    assert found("Colchicine is a gout drug", "gout is a disease") == Evidence(1, "Colchicine")


def test_where_gold_passages_are_named_only_these_count() -> None:
    named = replace(GOUT, gold_passage_ids=("doc",))
    assert found("gout drug colchicine", question=named, id="other") is None
    assert found("colchicine", question=named, id="doc") == Evidence(1, "colchicine")
    assert found("colchicine", question=named, id="doc#2", document="doc") == Evidence(1, "colchicine"), "its piece"


@pytest.mark.parametrize("answer", ["yes", "No", "maybe"])
def test_a_judgement_needs_a_gold_passage(answer: str) -> None:
    judged = Question("q", "Does colchicine help in gout?", answer=answer)
    text = "yes, no, maybe: colchicine helps in gout"
    assert found(text, question=judged, query="colchicine gout") is None
    judged = replace(judged, gold_passage_ids=("doc",))
    assert found("colchicine helps", question=judged, query="colchicine gout", id="doc") == Evidence(1, "")


def test_gold_answers_are_read_as_the_agent_may_read_them(tokenizer) -> None:
    def golds(**fields: object) -> tuple[str, ...]:
        return golds_of(replace(GOUT, **{"answer": "", **fields}), TagProtocol(), tokenizer)

    assert golds() == ()
    assert golds(answer="a", aliases=("b", "a", "")) == ("a", "b")
    assert golds(answer="B", options=("one", "two")) == ("two",)
    assert golds(options=("one", "two")) == ()
    assert golds(answer="C", options=("one", "two")) == ()
    assert golds(answer="x [1] </answer>") == ("x (1) ‹/answer>",)


def test_a_query_that_says_the_answer_is_known() -> None:
    assert says("colchicine gout", ["Colchicine"])
    assert not says("gout", ["Colchicine"])


def test_what_is_cut_or_left_out_is_not_shown(tokenizer) -> None:
    texts = [f"gout{number} " + "word " * 20 + f"end{number}" for number in range(3)]
    hits = [Hit(passage(f"t{number}", text), 1.0) for number, text in enumerate(texts)]

    def read(limit: int) -> list[str]:
        rules = replace(RULES, limits=replace(RULES.limits, max_observation_tokens=limit))
        return [text for _, text in shown(hits, rules, tokenizer)]

    whole = read(1000)
    assert [text.split()[-1] for text in whole] == ["end0", "end1", "end2"]
    sizes = [limit for limit in range(20, 140) if len(read(limit)) == 2 and "end1" not in read(limit)[1]]
    assert sizes
    for limit in (sizes[0], sizes[-1]):
        first, second = read(limit)
        assert first == whole[0]
        assert "gout0" not in second
        assert second
        assert "end1" not in second
    assert read(5) == []
    assert shown([], RULES, tokenizer) == []
