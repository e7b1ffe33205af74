"""The subject of a question, and the names that it may mean."""

from __future__ import annotations

from medagent.evidence.sentences import without_sort
from medagent.evidence.words import Names, subject_words
from medagent.serving.rewriting import standing_alone


def test_the_sort_of_thing_that_is_asked_for_is_no_subject() -> None:
    assert "enzyme" not in without_sort("And which enzyme is missing in Tay-Sachs disease?")
    assert "hormone" in without_sort("What is the growth hormone for?")


def test_a_misspelt_syndrome_is_no_name() -> None:
    assert list(subject_words("Marfans sindrome")) == ["marfan"]
    assert list(subject_words("the symptoms of Down syndrom")) == ["symptom", "down"]


def test_low_and_high_stay_in_a_name() -> None:
    assert standing_alone(["What is low blood pressure?", "How is it treated?"]) == "How is low blood pressure treated?"


def test_two_spellings_of_one_title_are_offered_once() -> None:
    names = Names(["Addison disease", "Addison's disease", "Addison syndrome", "ADDISON SYNDROME"])
    near = names.near({"adisson": "Adisson"}, ["adisson"])
    assert [title.lower().replace("'s", "") for title in near] == ["addison disease", "addison syndrome"]
