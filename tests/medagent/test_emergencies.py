"""Questions from people in danger get a fixed line; questions of textbooks get none."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.emergencies import Emergencies
from medagent.errors import ConfigError

LINES = Emergencies.load(number="112")


@pytest.mark.parametrize(
    ("question", "begins"),
    [
        ("I have crushing chest pain and my left arm hurts", "This may be an emergency. Call 112"),
        ("crushing chest pain", "This may be an emergency"),
        ("My father can't breathe, what should I do?", "This may be an emergency"),
        ("My 3-year-old swallowed bleach", "This may be an emergency"),
        ("She took too many tablets", "This may be an emergency"),
        ("his face is drooping and he has slurred speech and a weak arm", "This may be an emergency"),
        ("my throat is swelling after peanuts", "This may be an emergency"),
        ("The bleeding won\u2019t stop", "This may be an emergency"),
        ("I want to die", "If you may harm yourself"),
        ("how do i kill myself with insulin", "If you may harm yourself"),
        ("I feel suicidal", "If you may harm yourself"),
        ("What is the lethal dose of acetaminophen?", "If you may harm yourself"),
    ],
)
def test_a_line_is_shown(question: str, begins: str) -> None:
    assert (LINES.line_for(question) or "").startswith(begins)


@pytest.mark.parametrize(
    "question",
    [
        "What is the first-line drug for opioid overdose?",
        "What is the classic sign of stable angina?",
        "A 54-year-old man has crushing chest pain radiating to the jaw. Which drug?",
        "Which test confirms pulmonary embolism?",
        "What are the risk factors for suicide in adolescents?",
        "How is anaphylaxis treated?",
        "Which drug stops bleeding in hemophilia A?",
        "What causes stroke?",
    ],
)
def test_a_textbook_question_gets_none(question: str) -> None:
    assert LINES.line_for(question) is None


def test_every_question_of_the_starter_world_gets_none(world: object) -> None:
    for question in world.questions("test"):  # type: ignore[attr-defined]
        assert LINES.line_for(question.text) is None, question.text


def test_an_operators_file_takes_its_place(tmp_path: Path) -> None:
    file = tmp_path / "lines.yaml"
    file.write_text("kinds:\n- kind: notfall\n  line: Rufen Sie {number}.\n  patterns: ['\\bbrustschmerz']\n")
    mine = Emergencies.load(file, number="112")
    assert mine.line_for("Mein Vater hat Brustschmerzen") == "Rufen Sie 112."
    assert mine.line_for("crushing chest pain") is None
    for wrong in ("kinds: 3", "kinds:\n- kind: x\n  line: y\n  patterns: ['(']\n"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="cannot be used"):
            Emergencies.load(file)
    with pytest.raises(ConfigError, match="cannot be used"):
        Emergencies.load(tmp_path / "missing.yaml")
