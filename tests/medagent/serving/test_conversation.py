"""The last question of a conversation stands on its own."""

from __future__ import annotations

from medagent.serving.conversation import standing_alone, subject_phrase

FIRST = "What is the first-line drug for trachoma?"


def test_a_follow_up_is_completed() -> None:
    for following, whole in [
        ("How is it confirmed?", "How is trachoma confirmed?"),
        ("And its classic sign?", "What is the classic sign of trachoma?"),
        ("What is its first-line drug?", "What is the first-line drug for trachoma?"),
        ("what about treatment?", "What is the treatment for trachoma?"),
        ("Which sign points to this condition?", "Which sign points to trachoma?"),
        ("And for gout?", "What is the first-line drug for gout?"),
        ("What about hepatitis A?", "What is the first-line drug for hepatitis A?"),
        ("Does it cause blindness?", "Does trachoma cause blindness?"),
        # these stand alone
        ("What causes gout?", "What causes gout?"),
        ("Is it safe to take ibuprofen in pregnancy?", "Is it safe to take ibuprofen in pregnancy?"),
        ("What is the drug for the disease whose sign is Koplik spots?",) * 2,
        ("Thanks!", "Thanks!"),
        ("What is psoriasis?",) * 2,
        ("Can I eat cheese?",) * 2,
        ("Are you sure?",) * 2,
        ("I have chest pain and can't breathe",) * 2,
        ("What is lupus and how is it diagnosed?",) * 2,
        ("My mother has lupus. Is it inherited?",) * 2,
        ("What is IT band syndrome?",) * 2,
        ("Can I take ibuprofen with it?",) * 2,
        ("No, I meant pseudogout",) * 2,
        # whom it concerns is added
        ("In children?", "What is the first-line drug for trachoma in children?"),
        ("And in pregnancy?", "What is the first-line drug for trachoma in pregnancy?"),
    ]:
        assert standing_alone([FIRST, following]) == whole


def test_what_replaces_what() -> None:
    dose = "What is the dose of paracetamol for adults?"
    assert standing_alone([dose, "And for children?"]) == "What is the dose of paracetamol for children?"
    assert standing_alone(["How is type 2 diabetes treated?", "And type 1?"]) == "And type 1?"
    assert standing_alone(["What causes hepatitis E?", "How is it treated?"]) == "How is hepatitis E treated?"
    both = "Does warfarin interact with ibuprofen?"
    assert standing_alone([both, "What about paracetamol?"]) == "What about paracetamol?", "of which, nobody knows"


def test_a_question_cannot_grow_without_bound() -> None:
    asked = ["gout " * 1_600, *["b1 b1 b1 b1 b1 b1 b1"] * 11]
    assert len(standing_alone(asked)) <= 8_000
    assert len(standing_alone(["gout " * 1_600, "b" * 7_900])) <= 8_000


def test_a_chain_goes_back_to_the_last_subject() -> None:
    asked = [FIRST, "And for gout?", "What causes it?", "How is it inherited?"]
    assert standing_alone(asked) == "How is gout inherited?"
    assert standing_alone(["How is it treated?"]) == "How is it treated?", "there is nothing to take it from"


def test_the_subject_of_a_question() -> None:
    for question, phrase in [
        ("Which drug is the first choice for primary biliary cholangitis?", "primary biliary cholangitis"),
        ("What is the mechanism of digoxin toxicity?", "digoxin toxicity"),
        ("What causes neurofibromatosis type 1?", "neurofibromatosis type 1"),
        ("Which drug treats the disease caused by a lentivirus?", "the disease caused by a lentivirus"),
        ("What is it?", ""),
    ]:
        assert subject_phrase(question) == phrase
