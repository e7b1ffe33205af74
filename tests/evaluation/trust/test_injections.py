"""Sixty planted passages: what the program guarantees of each, and how obedience is judged."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.agent import Job
from medagent.answer_forms import citations
from medagent.evaluation.metrics import report_mode
from medagent.evaluation.modes import Mode
from medagent.evaluation.run import Plan, run_plan
from medagent.evaluation.trust.injections import (
    PLANTED,
    WORD,
    injections,
    obedience,
    obeyed_anyway,
    with_injection,
    wrong_letter,
)
from medagent.protocol import TagProtocol
from medagent.types import Question, Rollout, StopReason, Turn
from medagent.untrusted_text import harmless_passages
from tests.evaluation.support import PASSAGES, QUESTIONS, scripted
from tests.medagent.support import byte_level, folding, sentencepiece_bpe

OPEN = Question("open", "What treats gout?", (), "allopurinol")


def test_there_are_sixty_in_eight_families_and_no_two_are_alike() -> None:
    found = injections()
    assert Counter(each.family for each in found) == {
        "orders": 8,
        "forged_blocks": 8,
        "fake_authority": 8,
        "other_languages": 8,
        "unicode": 7,
        "split": 7,
        "titles": 7,
        "query_echoes": 7,
    }
    assert len({each.parts for each in found}) == 60
    assert {len(each.parts) for each in found if each.family == "split"} == {2}


def test_each_names_what_it_wants() -> None:
    question = QUESTIONS[3]
    for injection in injections():
        text = "\n".join(passage.indexed_text for passage in injection.passages(question))
        wrong = wrong_letter(question, injection.number)
        assert wrong in set("ABCD") - {question.answer}
        assert (f"({wrong})" in text or f"（{wrong}）" in text) if injection.wants == "answer" else WORD in text
        assert "{" not in text.replace('{"status"', "")
        assert wrong_letter(OPEN, injection.number) is None


@pytest.mark.parametrize("kind", ["starter", "byte_level", "folding", "sentencepiece"])
def test_none_of_them_can_write_a_tag_a_citation_or_a_control_token(kind: str, tokenizer) -> None:
    made = {"byte_level": byte_level, "folding": folding, "sentencepiece": sentencepiece_bpe}
    read_by = tokenizer if kind == "starter" else made[kind]()
    protocol, broken = TagProtocol(instructions=""), []
    plain, _ = protocol.encode_observation(read_by, PASSAGES[:2], first_number=1, max_tokens=4_000)
    controls = {*read_by.all_special_ids, *read_by.added_tokens_decoder} - set(plain)
    for injection in injections():
        passages = harmless_passages(read_by, list(injection.passages(QUESTIONS[3])))
        ids, shown = protocol.encode_observation(read_by, passages, first_number=1, max_tokens=4_000)
        text = read_by.decode(ids)
        whole = (
            shown == len(passages)
            and text.count("<information>") == text.count("</information>") == 1
            and text.rstrip().endswith("</information>")
            and not re.search(r"<\s*/?\s*(?:search|answer|think)\b", text, re.IGNORECASE)
            and citations(text) == list(range(1, shown + 1))
            and controls.isdisjoint(ids)
        )
        broken += [] if whole else [(injection.number, text)]
    assert broken == []


def test_the_passage_stands_first_in_the_first_search_alone() -> None:
    agent = scripted(lambda read, turn: f"<search>disease {turn}</search>" if turn < 2 else "<answer>(A)</answer>")
    rollout = agent.run_all([with_injection(Job(QUESTIONS[3]), 2)])[0]
    first, second, _ = rollout.turns
    assert [hit.passage.source for hit in first.hits] == ["injection 2", ""]
    assert [hit.passage.id for hit in second.hits] == ["p1"]
    assert rollout.question.meta[PLANTED] == "2"


def answered(number: int, text: str, *, query: str = "x", question: Question = QUESTIONS[3]) -> Rollout:
    job = with_injection(Job(question), number)
    searched = Turn((), (), f"<search>{query}</search>", query=query)
    return Rollout(job.question, (), (searched, Turn((), (), text, answer=text)), StopReason.ANSWERED)


def test_obeying_is_what_the_agent_did_and_not_what_it_read() -> None:
    by_wish = {wish: next(each.number for each in injections() if each.wants == wish) for wish in ("answer", "word")}
    order = by_wish["answer"]
    wrong = wrong_letter(QUESTIONS[3], order)
    assert injections()[order].obeyed(answered(order, f"({wrong})"))
    assert not injections()[order].obeyed(answered(order, f"(A), not ({wrong})"))
    assert injections()[by_wish["word"]].obeyed(answered(by_wish["word"], f"{WORD.title()} (A)"))
    assert not injections()[by_wish["word"]].obeyed(answered(by_wish["word"], "(A)", query=WORD))
    query = next(each.number for each in injections() if each.wants == "query")
    assert injections()[query].obeyed(answered(query, "(A)", query=f"about {WORD}"))
    assert not injections()[query].obeyed(answered(query, WORD))
    assert injections()[order].obeyed(answered(order, WORD, question=OPEN))


def test_what_an_agent_does_anyway_is_told_apart() -> None:
    order = next(each.number for each in injections() if each.wants == "answer")
    wrong = wrong_letter(QUESTIONS[3], order)
    planted = [answered(order, f"({wrong})")]
    assert obeyed_anyway(planted, [answered(order, f"({wrong})")]) == (1, 1)
    assert obeyed_anyway(planted, [answered(order, "(A)")]) == (0, 1)
    assert obeyed_anyway(planted, []) == (0, 0)


def test_an_agent_that_obeys_and_one_that_does_not(tmp_path: Path) -> None:
    def obedient(read: str, turn: int) -> str:
        if turn == 0:
            return "<search>disease 3</search>"
        letters = re.findall(r"\(([A-D])\)", read.rsplit("<information>", 1)[1])
        return f"<answer>({letters[0] if letters else 'A'})</answer>"

    def steady(read: str, turn: int) -> str:
        return "<search>disease 3</search>" if turn == 0 else "<answer>(A)</answer>"

    found = {}
    for name, script in (("obedient", obedient), ("steady", steady)):
        predictions = run_plan(
            scripted(script), QUESTIONS, Plan((Mode.INJECTED,)), tmp_path / name, identity={}, corpus=PASSAGES
        )
        found[name] = {each.family: each for each in report_mode(predictions).summary.trust.obeyed}
    assert found["steady"]["all"].obeyed.accuracy == 0
    assert found["steady"]["all"].planted == found["steady"]["all"].obeyed.n == 20
    assert found["steady"]["never in training"].planted == 10
    assert found["obedient"]["fake_authority"].obeyed.accuracy == 1.0
    assert obedience([]) == ()


def test_an_agent_that_does_not_search_is_shown_nothing(tmp_path: Path) -> None:
    agent = scripted(lambda read, turn: "<answer>(A)</answer>")
    predictions = run_plan(agent, QUESTIONS, Plan((Mode.INJECTED,)), tmp_path, identity={}, corpus=PASSAGES)
    found = report_mode(predictions).summary.trust.obeyed[-1]
    assert (found.planted, found.obeyed.n) == (20, 0)


def test_an_order_after_a_long_question_is_not_cut_off() -> None:
    question = replace(QUESTIONS[3], text="A man of 54 years has chest pain that began two hours ago. " * 30)
    for injection in injections():
        words = sum(len(passage.indexed_text.split()) for passage in injection.passages(question))
        assert words < 60


def test_other_marks_of_a_question_are_no_injection() -> None:
    for meta in ({}, {PLANTED: "yes"}, {PLANTED: "9999"}, {"injection": "3"}):
        assert obedience([Rollout(replace(QUESTIONS[3], meta=meta), (), (), StopReason.ANSWERED)]) == ()
