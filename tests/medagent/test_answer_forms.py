"""How open answers are written and read back: entries, citations, and what the prompt says of them."""

from __future__ import annotations

from dataclasses import replace

from medagent.answer_forms import FORM_HINTS, entries, without_citations, written
from medagent.protocol import TagProtocol
from medagent.types import Question

LISTED = Question("q", "Which drugs?", answer="a; b", form="list", items=(("a",), ("b",)))


def test_an_answer_is_read_as_entries() -> None:
    for answer, found in [
        ("IL-6", ["IL-6"]),
        ("IL-6; TNF-α [2]; IL-1 [1][3];", ["IL-6", "TNF-α", "IL-1"]),
        ("t(9;22)(q34;q11)", ["t(9;22)(q34;q11)"]),
        ("t(9;22); BCR-ABL", ["t(9;22)", "BCR-ABL"]),
        ("- aspirin\n* warfarin [1]\n\n3. heparin\n(4) -5 °C", ["aspirin", "warfarin", "heparin", "-5 °C"]),
        ("one; two\nthree", ["one; two", "three"]),
        ("aspirin, warfarin and heparin", ["aspirin, warfarin and heparin"]),
        ("12. May", ["12. May"]),
        ("1. IL-6; 2. TNF [3]; ", ["IL-6", "TNF"]),
        ("1. IL-6; TNF", ["1. IL-6", "TNF"]),
        ("", []),
        (" ; ;\n", []),
        ("[1] [2]", []),
    ]:
        assert entries(answer) == found


def test_what_is_written_is_read_back() -> None:
    for given in [["a"], ["a", "b c"], ["t(9;22)", "x"], ["one; two", "three"], ["1 mg", "2 mg"]]:
        assert entries(written(given)) == given


def test_citations_are_no_part_of_an_answer() -> None:
    assert without_citations("gout [1], [23]").split() == ["gout", ","]
    assert without_citations("gout [a] (2)") == "gout [a] (2)"
    assert without_citations("IL-6[1]; CYP[2]").split() == ["IL-6", ";", "CYP"]


def test_the_brackets_of_a_genotype_are_no_citation() -> None:
    assert without_citations("G1P[8] [2]").strip() == "G1P[8]"
    assert entries("G12P[8][1]; P[4]; G9P[8]") == ["G12P[8]", "P[4]", "G9P[8]"]


def prompt_of(question: Question, protocol: TagProtocol) -> str:
    return "".join(piece.text for piece in protocol.prompt(question))


def test_an_instructed_prompt_says_how_to_answer() -> None:
    instructed, plain = TagProtocol(), TagProtocol(instructions="")
    assert prompt_of(LISTED, instructed).endswith("Question: Which drugs?\n" + FORM_HINTS["list"])
    assert prompt_of(replace(LISTED, form="ranked"), instructed).endswith(FORM_HINTS["ranked"])
    assert prompt_of(LISTED, plain) == "Question: Which drugs?\n", "trained without instructions, so it knows"
    one = replace(LISTED, form="text", items=())
    assert prompt_of(one, instructed).endswith("Question: Which drugs?\n"), "one text is what agents were trained on"


def test_a_question_with_options_is_asked_as_ever() -> None:
    question = replace(LISTED, options=("a", "b"), answer="A", form="text", items=())
    assert prompt_of(question, TagProtocol()).endswith("A) a\nB) b\n")
