"""Open answers, compared: the words that count, exact match, F1, containment, abstentions, lists and ranks."""

from __future__ import annotations

import random

import pytest

from medagent.evaluation.grading.citations import claim_of
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.grading.open_answers import (
    ListScore,
    abstains,
    answer_tokens,
    contains,
    first_answer,
    list_score,
    rank_of_right,
    same,
    token_f1,
)
from medagent.evaluation.open_measures import squad_tokens
from medagent.types import Question, Rollout, StopReason, Turn


def test_two_spellings_of_one_answer_are_the_same() -> None:
    for one, other in (
        *(("The left ventricle.", "left ventricle"), ("PD-1", "PD1"), ("PD\u20111", "PD-1")),  # a non-breaking hyphen
        *(("TNF-α", "TNF-alpha"), ("β-blockers", "Beta-blockers")),
        *(("5 mg", "5mg"), ("5 µg", "5 μg"), ("5 µg", "5ug")),  # the micro sign and the Greek letter
        *(("1,000 IU", "1000 IU"), ("5 %", "5%"), (".5 mg", "0.5 mg")),
        *(("ﬁbrosis", "fibrosis"), ("cafe\u0301", "café"), ("IL\u200b-6", "IL-6"), ("“gout”", "gout")),
        *(("½", "1/2"), ("1½ tablets", "1 1/2 tablets"), ("10³", "10^3"), ("10⁻³", "10^-3")),
        *(("≥5%", ">= 5 %"), ("< 5 cm", "<5 cm")),
    ):
        assert answer_tokens(one) == answer_tokens(other), one
        assert same(one, ["nothing", other])


def test_what_differs_in_medicine_differs() -> None:
    for one, other in (
        *(("2.5 mg", "25 mg"), ("2,5 mg", "25 mg"), (".5 mg", "5 mg"), ("-5", "5"), ("½", "12")),
        *(("Rh+", "Rh-"), ("CD4+", "CD4"), ("type 1", "type 2"), ("PD-1", "PD-L1")),
        *(("hepatitis A", "hepatitis"), ("hepatitis A virus", "hepatitis virus")),
        *(("3-5 days", "35 days"), ("120/80", "12080"), ("10³", "103"), ("10^3", "103")),
        *((">5 cm", "<5 cm"), ("≥5%", "≤5%"), ("≥5%", "5%"), (">=5", ">5")),
        *(("", ""), ("the", "the"), ("...", "...")),
    ):
        assert not same(one, [other]), one


@pytest.mark.parametrize(
    ("answer", "gold", "f1", "held"),
    [
        ("Next-generation sequencing", "next generation sequencing", 1, True),
        ("next generation sequencing", "Next-generation sequencing", 1, True),
        ("β-blockers", "beta blockers", 1, True),
        ("beta-blockers", "betablockers", 1, True),
        ("T-cell non-Hodgkin lymphoma", "T cell non-Hodgkin's lymphoma", 3 / 4, False),  # t, cell, nonhodgkin, -s
        ("a long-acting beta blocker", "long-acting beta-blocker", 1, True),
        ("oral beta-blockers", "beta blockers", 4 / 5, True),
        ("well-differentiated", "well differentiated tumour", 4 / 5, False),
        ("non-small-cell lung cancer", "non-small cell lung cancer", 1, True),
        ("pre-T-cell", "pre T-cell", 1, True),
        ("T-cell lymphoma (T cell type)", "T-cell lymphoma", 4 / 7, False),
        ("non-Hodgkin lymphoma", "non-Hodgkin", 2 / 3, True),  # both have the hyphen: one word, as before
        ("anti-tumor", "tumor", 0, False),
        ("non-gout", "gout", 0, False),
        ("co-trimoxazole", "trimoxazole", 0, False),
        ("PD-1", "PD 1", 0, False),  # of letters alone
        ("anti-CD-20", "CD 20", 0, False),
    ],
)
def test_a_hyphen_between_letters_is_a_space_where_the_other_has_one(answer, gold, f1, held) -> None:
    assert token_f1(answer, ["nothing", gold]) == pytest.approx(f1)
    assert contains(answer, [gold], most_extra_words=1) == held
    assert same(answer, [gold]) == same(gold, [answer]) == (f1 == 1)


def test_a_hyphen_read_as_a_space_takes_nothing_away() -> None:
    assert contains("T-cell lymphoma (T cell type)", ["T-cell lymphoma"], most_extra_words=5)
    assert same("a" * 20_000 + "-b", ["a" * 20_000 + " b"]), "and in a moment"


def test_plain_words_are_squads_own() -> None:
    draw = random.Random(0)
    letters = "abcxyzABC   -'()!?\"an the"
    for _ in range(500):
        text = "".join(draw.choice(letters) for _ in range(draw.randrange(30)))
        text = text.replace("-", "x-x").replace(" a ", " ").strip()  # a hyphen inside a word; no lone article a
        ours = [word for word in answer_tokens(text) if word != "a"]
        assert ours == squad_tokens(text), text


def test_token_f1_by_hand() -> None:
    assert token_f1("hereditary hemochromatosis", ["Hemochromatosis"]) == pytest.approx(2 / 3)  # p 1/2, r 1
    assert token_f1("left left ventricle", ["left ventricle"]) == pytest.approx(4 / 5)  # p 2/3, r 1: a multiset
    assert token_f1("ventricle", ["left atrium", "the left ventricle"]) == pytest.approx(2 / 3)  # the best of two
    assert token_f1("gout", ["lupus"]) == token_f1("", ["gout"]) == token_f1("gout", []) == token_f1("", [""]) == 0
    assert token_f1("5mg of zinc", ["5 mg zinc"]) == pytest.approx(6 / 7)  # 3 of 4 words, 3 of 3


def test_an_answer_contains_a_right_one_and_no_choice_of_several() -> None:
    for answer in (
        *("hereditary hemochromatosis", "It is Hemochromatosis (type 1).", "hemochromatosis"),
        "one two three four five hemochromatosis",
    ):
        assert contains(answer, ["Hemochromatosis"], most_extra_words=5), answer
    for answer in (
        *("", "prehemochromatosis", "one two three four five six hemochromatosis"),  # not whole words; too many
        *("hemochromatosis or gout", "hemochromatosis; gout", "gout/hemochromatosis", "gout\nhemochromatosis"),
        *(
            "gout, lupus, hemochromatosis",
            "gout and hemochromatosis",
            "hemochromatosis & gout",
            "gout | hemochromatosis",
        ),
        *("hemochromatosis is ruled out", "absence of hemochromatosis", "not hemochromatosis"),
        *("It isn't hemochromatosis", "It isn’t hemochromatosis"),
    ):
        assert not contains(answer, ["Hemochromatosis"], most_extra_words=5), answer


def test_a_right_answer_keeps_its_own_signs() -> None:
    gold = "Na+/K+ ATPase, or the sodium pump"
    assert contains(gold, [gold], most_extra_words=0)
    assert contains(f"mainly {gold}", [gold], most_extra_words=1)
    assert contains("no change", ["no change"], most_extra_words=0)
    assert not contains("gout", [""], most_extra_words=5), "nothing is held by everything"


def test_an_abstention_is_told() -> None:
    for answer in ("not found", "I don’t know. [1]", "Unknown", "no evidence was found", "n/a"):
        assert abstains(answer), answer
    for answer in ("no", "gout", "renal insufficiency", "sarcoma, not otherwise specified", "", "not found " * 20):
        assert not abstains(answer), answer


ITEMS = (("casirivimab", "REGN10933"), ("imdevimab",), ("IL-6", "interleukin 6"))


def test_a_list_is_scored_by_its_entries() -> None:
    for answer, score in (
        ("imdevimab; Interleukin 6; REGN10933", (1, 1, 1)),
        ("imdevimab", (1, 1 / 3, 1 / 2)),
        ("imdevimab; gout", (1 / 2, 1 / 3, 2 / 5)),
        ("casirivimab; REGN10933", (1 / 2, 1 / 3, 2 / 5)),  # two synonyms of one item: the second is wrong
        ("imdevimab; imdevimab", (1 / 2, 1 / 3, 2 / 5)),
        ("imdevimab, casirivimab", (0, 0, 0)),  # commas separate nothing
        ("", (0, 0, 0)),
    ):
        found = list_score(answer, ITEMS)
        assert (found.precision, found.recall, found.f1) == pytest.approx(score), answer
    assert list_score("a", ()) == ListScore(0.0, 0.0, 0.0)


def test_the_rank_of_the_first_right_answer_of_five() -> None:
    ranks = {
        "gout": 1,
        "lupus; gout [1]": 2,
        "a; b; c; d; gout": 5,
        "a; b; c; d; e; gout": None,
        "lupus": None,
        "": None,
    }
    ranks["podagra; or; gout"] = 1  # a right answer that holds the separator
    for answer, rank in ranks.items():
        assert rank_of_right(answer, ["gout", "podagra; or; gout"]) == rank, answer


def verdict_of(question: Question, answer: str | None) -> tuple[Verdict, bool]:
    stop = StopReason.MALFORMED if answer is None else StopReason.ANSWERED
    result = grade(Rollout(question, (1,), (Turn((2,), (0.0,), "", answer=answer),), stop))
    return result.verdict, result.lenient_correct


def test_the_verdicts_of_open_answers() -> None:
    text = Question("q", "?", answer="gout", aliases=("podagra",))
    assert verdict_of(text, "Podagra [1].") == (Verdict.CORRECT, True)
    assert verdict_of(text, "gout; lupus") == (Verdict.WRONG, False)
    assert verdict_of(text, "not found") == (Verdict.ABSTAINED, False)
    assert verdict_of(text, "[2]") == (Verdict.UNPARSED, False)
    assert verdict_of(text, None) == (Verdict.NO_ANSWER, False)
    assert verdict_of(Question("q", "?", answer="None"), "none") == (Verdict.CORRECT, True), "right before all else"
    assert verdict_of(Question("q", "?", answer="yes"), "Yes.") == (Verdict.CORRECT, True)
    ranked = Question("q", "?", answer="gout", form="ranked")
    assert verdict_of(ranked, "gout; lupus") == (Verdict.CORRECT, True)
    assert verdict_of(ranked, "lupus; gout") == (Verdict.WRONG, True)
    listed = Question("q", "?", answer="a; b", items=(("a",), ("b",)), form="list")
    assert verdict_of(listed, "b; a") == (Verdict.CORRECT, True)
    assert verdict_of(listed, "a") == (Verdict.WRONG, False)
    assert verdict_of(listed, "a; b; c") == (Verdict.WRONG, False)


def test_an_answer_stands_by_its_first_entry_where_it_is_ranked() -> None:
    ranked, text = Question("q", "?", answer="x", form="ranked"), Question("q", "?", answer="x")
    assert first_answer(ranked, "lupus [1]; gout") == claim_of(ranked, None, "lupus [1]; gout") == "lupus"
    assert first_answer(text, "lupus [1]; gout").split() == ["lupus", ";", "gout"]
    assert first_answer(ranked, " ; ") == ""
