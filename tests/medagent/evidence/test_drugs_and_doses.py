"""Drugs and numbers in a text, and which of them another text lacks."""

from __future__ import annotations

from medagent.evidence.drugs_and_doses import named_in


def test_drugs() -> None:
    for text, drugs in [
        ("metoprolol", {"metoprolol"}),
        ("(B) Adrenaline [1]", {"epinephrine"}),
        ("Paracetamol or acetaminophen", {"acetaminophen"}),
        ("cefazolin, ceftriaxone and amoxicillin", {"cefazolin", "ceftriaxone", "amoxicillin"}),
        ("statins and opioids", set()),  # classes
        ("in April the protein somatostatin and cholesterol rose", set()),
        ("the maze of the cell, an oval antigen, a concept", set()),
        ("adalimumab (TNF)", {"adalimumab"}),
        ("ghrelin, allantoin, obestatin and a benzodiazepine", set()),
        ("penicillins", {"penicillin"}),
        ("aciclovir", {"acyclovir"}),
    ]:
        assert named_in(text).drugs == drugs


COMMON = (
    "carvedilol labetalol sotalol insulin chlorthalidone indapamide amikacin cetirizine olaparib palbociclib topotecan "
    "bendamustine exenatide acarbose repaglinide dopamine aztreonam colistin tamsulosin sacubitril oxcarbazepine "
    "chlordiazepoxide fluphenazine thioridazine paliperidone lurasidone fluvoxamine desvenlafaxine doxepin clavulanate "
    "cephalexin penicillamine estradiol testosterone nizatidine cortisone bedaquiline"
).split()


def test_common_generics_are_known() -> None:
    for name in COMMON:
        assert named_in(f"Start {name} now.").drugs == {name}


def test_numbers() -> None:
    for text, numbers in [
        ("5 mg", {("5", "mg")}),
        ("0.50mg", {("0.5", "mg")}),
        (".5 mg", {("0.5", "mg")}),
        ("1,000 units", {("1000", "unit")}),
        ("400 micrograms", {("0.4", "mg")}),
        ("400 mcg", {("0.4", "mg")}),
        ("5-10 mg", {("5", "mg"), ("10", "mg")}),
        ("5 to 10 mg", {("5", "mg"), ("10", "mg")}),
        ("two weeks", {("2", "week")}),
        ("(A) [1] [12]", set()),
        ("1. rest\n2. water", set()),
        ("three times 40%", {("3", ""), ("40", "%")}),
        ("B12 and CD4", set()),
        ("1.2.3", set()),
        ("an 81-mg tablet", {("81", "mg")}),
        ("a 24-hour infusion", {("24", "hour")}),
        ("0,5 mg", {("0.5", "mg")}),
        ("10 000 units", {("10000", "unit")}),
        ("50 U", {("50", "unit")}),
        ("hemoglobin 7 g/dL", {("7", "g/dl")}),
        ("5 mg/kg", {("5", "mg")}),
        ("120/80 mmHg", {("120", "mmhg"), ("80", "mmhg")}),
        ("[1, 2]", set()),
        ("one of the first-line drugs", set()),
    ]:
        assert named_in(text).numbers == numbers


def test_what_the_other_lacks() -> None:
    for said, read, drugs, numbers in [
        ("Give 5 mg of warfarin", "Warfarin is begun at 5 mg.", set(), set()),
        ("Give 50 mg of warfarin", "Warfarin is begun at 5 mg.", set(), {("50", "mg")}),
        ("Give 5 g of warfarin", "Warfarin is begun at 5 mg.", set(), {("5000", "mg")}),
        ("1 g", "1000 mg", set(), set()),
        ("0.5 mg", "500 mcg", set(), set()),
        ("0,5 mg", "5 mg daily", set(), {("0.5", "mg")}),
        ("50 U", "50 patients", set(), {("50", "unit")}),
        ("aspirin 81 mg for 10 days", "an 81-mg tablet of aspirin, a 10-day course", set(), set()),
        ("three doses", "3 doses are given", set(), set()),
        ("the number 5", "5 mg", set(), set()),
        ("salbutamol", "albuterol", set(), set()),
        ("lisinopril", "an ACE inhibitor", {"lisinopril"}, set()),
    ]:
        beyond = named_in(said).beyond(named_in(read))
        assert (set(beyond.drugs), set(beyond.numbers)) == (drugs, numbers)
        assert beyond.doses == numbers
