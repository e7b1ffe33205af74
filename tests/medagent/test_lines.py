"""The agent names sentences by number, and the program prints them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from transformers import AutoTokenizer

from medagent.agent import Agent, GivenSearch, Job
from medagent.any_model import AnyModelLinesProtocol, PlainLinesProtocol, named_numbers, numbered_lines
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.rollout_files import readable, rollout_from
from medagent.evidence.kinds import EvidenceKind
from medagent.evidence.verdict import judge
from medagent.models.base_models import model_path
from medagent.policies.scripted import ScriptedPolicy
from medagent.protocol import TurnProtocol
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Limits, Question, Rollout, StopReason

GOUT = Passage.make("Gout", "Gout is caused by urate crystals. The first-line drug is allopurinol. It is given daily.")
SCURVY = Passage.make("Scurvy", "Scurvy is a lack of one vitamin. It is treated with ascorbic acid. See there.")
QUESTION = Question("q", "Which drug treats gout?", answer="allopurinol")
TOKENIZER = AutoTokenizer.from_pretrained(model_path("starter"))
LIMITS = Limits(max_turns=4, max_turn_tokens=64, max_observation_tokens=300, max_total_tokens=2_000)


class Both:
    """Finds both passages, whatever the query."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        return [[Hit(GOUT, 2.0), Hit(SCURVY, 1.0)] for _ in queries]


def rolled_out(protocol: TurnProtocol, *turns: str, question: Question = QUESTION, given: bool = False) -> Rollout:
    policy = ScriptedPolicy(TOKENIZER, lambda text, number: turns[number])
    agent = Agent(policy, Both(), protocol, LIMITS, top_k=2)
    job = Job(question, given=GivenSearch("gout") if given else None)
    return agent.run_all([job])[0]


def test_the_program_writes_the_named_sentences_with_their_citations() -> None:
    found = rolled_out(AnyModelLinesProtocol(), "<search>gout</search>", "[2] [5]")
    assert found.answer == "The first-line drug is allopurinol. [1]\nIt is treated with ascorbic acid. See there. [2]"
    assert found.turns[-1].text == "[2] [5]"
    assert grade(found).cited == (1, 2)


def test_each_sentence_is_shown_with_its_number_and_a_short_one_belongs_to_the_one_before() -> None:
    assert [line.shown_text for line in numbered_lines([GOUT, SCURVY])][2:] == [
        "It is given daily.",
        "Scurvy: Scurvy is a lack of one vitamin.",
        "It is treated with ascorbic acid. See there.",
    ]
    found = rolled_out(AnyModelLinesProtocol(), "<search>gout</search>", "[2]")
    shown = TOKENIZER.decode(found.turns[0].observation_ids)
    assert "[2] The first-line drug is allopurinol.\n" in shown


def test_numbers_go_on_over_the_searches_of_a_dialogue() -> None:
    found = rolled_out(AnyModelLinesProtocol(), "<search>gout</search>", "<search>more</search>", "[7]")
    assert "[7] The first-line drug is allopurinol." in TOKENIZER.decode(found.turns[1].observation_ids)
    assert found.answer == "The first-line drug is allopurinol. [3]"


@pytest.mark.parametrize("said", ["none", "[17]", "0", "allopurinol", "5-10.5 mg", "1.5"])
def test_an_answer_that_names_no_sentence_shown_is_none(said: str) -> None:
    found = rolled_out(AnyModelLinesProtocol(), "<search>gout</search>", said)
    assert (found.answer, found.stop_reason) == (None, StopReason.MALFORMED)


def test_an_untrained_model_may_say_that_none_answers() -> None:
    found = rolled_out(PlainLinesProtocol(), "Nothing fits.\nAnswer: none", given=True)
    assert (found.answer, grade(found).verdict) == ("none", Verdict.ABSTAINED)
    assert judge(found).kind not in (EvidenceKind.STATED, EvidenceKind.PARTLY)


def test_what_the_agent_writes_beside_numbers_is_not_printed() -> None:
    found = rolled_out(AnyModelLinesProtocol(), "<search>gout</search>", "Take 500 mg, see [2] and [2].")
    assert found.answer == "The first-line drug is allopurinol. [1]"


def test_the_letter_follows_where_the_sentences_name_one_option() -> None:
    options = Question("q", "Which drug treats gout?", ("colchicine", "Allopurinol"), answer="B")
    for said, letter in (("[2]", "(B)"), ("[1]", "")):
        found = rolled_out(AnyModelLinesProtocol(), "<search>gout</search>", said, question=options)
        assert (found.answer or "").endswith(letter or "crystals. [1]")
        assert grade(found).correct is bool(letter)


def test_an_untrained_model_is_given_numbered_sentences_and_names_some() -> None:
    found = rolled_out(PlainLinesProtocol(), "It is in the second.\nAnswer: [2]", given=True)
    assert found.answer == "The first-line drug is allopurinol. [1]"


@pytest.mark.parametrize(("said", "right"), [("[2]", True), ("[2] [1]", True), ("[1]", False)])
def test_sentences_are_right_where_one_holds_a_right_answer(said: str, right: bool) -> None:
    found = rolled_out(AnyModelLinesProtocol(), "<search>gout</search>", said)
    assert (grade(found).verdict is Verdict.CORRECT) is right
    assert grade(rollout_from(readable(found))) == grade(found)


def test_sentences_answer_a_list_where_they_hold_every_entry() -> None:
    both = Question("q", "Drugs?", form="list", items=(("allopurinol",), ("ascorbic acid", "vitamin C")))
    for said, right in (("[2] [5]", True), ("[2]", False)):
        found = rolled_out(AnyModelLinesProtocol(), "<search>gout</search>", said, question=both)
        assert grade(found).correct is right


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("3, 7", [3, 7]),
        ("3,7", [3, 7]),
        ("[3][7]", [3, 7]),
        ("**[3; 7]**", [3, 7]),
        ("- 3\n- 7", [3, 7]),
        ("3. 7.", [3, 7]),
        ("[3-5]", [3, 4, 5]),
        ("Sentences 3 and 7 answer it.", [3, 7]),
        ("Line numbers: 3 to 5", [3, 4, 5]),
        ("The first-line drug is given at 2 g [7].", [7]),
        ("Give 2 g, or 500 mg, first-line 3 times.", []),
        ("None of the sentences answers it.", []),
        ("[1000]", []),
    ],
)
def test_numbers_of_sentences_are_read_in_every_form_that_models_write_and_doses_are_not(
    said: str, numbers: list[int]
) -> None:
    assert named_numbers(said) == numbers
