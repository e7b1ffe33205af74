"""Drugs and numbers in a text, and which of them another text lacks."""

from __future__ import annotations

import pytest

from medagent.unsupported import named_in


@pytest.mark.parametrize(
    ("text", "drugs"),
    [
        ("metoprolol", {"metoprolol"}),
        ("(B) Adrenaline [1]", {"epinephrine"}),
        ("Paracetamol or acetaminophen", {"acetaminophen"}),
        ("cefazolin, ceftriaxone and amoxicillin", {"cefazolin", "ceftriaxone", "amoxicillin"}),
        ("statins and opioids", set()),  # classes
        ("in April the protein somatostatin and cholesterol rose", set()),
        ("the maze of the cell, an oval antigen, a concept", set()),
        ("adalimumab (TNF)", {"adalimumab"}),
    ],
)
def test_drugs(text: str, drugs: set[str]) -> None:
    assert named_in(text).drugs == drugs


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("5 mg", {("5", "mg")}),
        ("0.50mg", {("0.5", "mg")}),
        (".5 mg", {("0.5", "mg")}),
        ("1,000 units", {("1000", "unit")}),
        ("400 micrograms", {("400", "ug")}),
        ("400 mcg", {("400", "ug")}),
        ("5-10 mg", {("5", "mg"), ("10", "mg")}),
        ("5 to 10 mg", {("5", "mg"), ("10", "mg")}),
        ("two weeks", {("2", "week")}),
        ("(A) [1] [12]", set()),
        ("1. rest\n2. water", set()),
        ("three times 40%", {("3", ""), ("40", "%")}),
        ("B12 and CD4", set()),
        ("1.2.3", set()),
    ],
)
def test_numbers(text: str, numbers: set[tuple[str, str]]) -> None:
    assert named_in(text).numbers == numbers


@pytest.mark.parametrize(
    ("said", "read", "drugs", "numbers"),
    [
        ("Give 5 mg of warfarin", "Warfarin is begun at 5 mg.", set(), set()),
        ("Give 50 mg of warfarin", "Warfarin is begun at 5 mg.", set(), {("50", "mg")}),
        ("Give 5 g of warfarin", "Warfarin is begun at 5 mg.", set(), {("5", "g")}),
        ("three doses", "3 doses are given", set(), set()),
        ("the number 5", "5 mg", set(), set()),
        ("salbutamol", "albuterol", set(), set()),
        ("lisinopril", "an ACE inhibitor", {"lisinopril"}, set()),
    ],
)
def test_what_the_other_lacks(said: str, read: str, drugs: set[str], numbers: set[tuple[str, str]]) -> None:
    beyond = named_in(said).beyond(named_in(read))
    assert (set(beyond.drugs), set(beyond.numbers)) == (drugs, numbers)
    assert beyond.doses == {each for each in numbers if each[1] in ("mg", "g")}
