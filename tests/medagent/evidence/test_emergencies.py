"""Questions from people in danger get a fixed line; questions of textbooks get none."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.errors import ConfigError
from medagent.evidence.emergencies import Emergencies

LINES = Emergencies.load(number="112")


def test_a_line_is_shown() -> None:
    for question, begins in [
        ("I have crushing chest pain and my left arm hurts", "This may be an emergency. Call 112"),
        ("crushing chest pain", "This may be an emergency"),
        ("My father can't breathe, what should I do?", "This may be an emergency"),
        ("My 3-year-old swallowed bleach", "This may be an emergency"),
        ("She took too many tablets", "This may be an emergency"),
        ("his face is drooping and he has slurred speech and a weak arm", "This may be an emergency"),
        ("my throat is swelling after peanuts", "This may be an emergency"),
        ("The bleeding won\u2019t stop", "This may be an emergency"),
        ("a 3 year old swallowed bleach what should I do", "This may be an emergency"),
        ("A 2-year-old is choking, help", "This may be an emergency"),
        ("A 6 month old baby is turning blue", "This may be an emergency"),
        ("A 45-year-old man, my father, collapsed and is not breathing", "This may be an emergency"),
        ("I took 30 paracetamol", "This may be an emergency"),
        ("My daughter took 20 tylenol tablets an hour ago what do I do", "This may be an emergency"),
        ("I've taken an overdose", "This may be an emergency"),
        ("took a whole bottle of advil", "This may be an emergency"),
        ("I'm having trouble breathing", "This may be an emergency"),
        ("my grandmother suddenly cannot speak", "This may be an emergency"),
        ("baby choking what to do", "This may be an emergency"),
        ("pregnant and heavy bleeding", "This may be an emergency"),
        ("my 2 month old has a fever of 39 and is lethargic", "This may be an emergency"),
        ("I think my dad had a heart attack", "This may be an emergency"),
        ("my wife can't move her left arm", "This may be an emergency"),
        ("I feel like ending it all", "If you may harm yourself"),
        ("I wish I was dead", "If you may harm yourself"),
        ("wanna die", "If you may harm yourself"),
        ("dont wanna live", "If you may harm yourself"),
        ("how to commit suicide", "If you may harm yourself"),
        ("painless ways to die", "If you may harm yourself"),
        ("how many tylenol to overdose", "If you may harm yourself"),
        ("life isn't worth living", "If you may harm yourself"),
        ("My friend says he wants to die", "If you may harm yourself"),
        ("I cut my wrist and it is bleeding", "If you may harm yourself"),
        ("I want to die", "If you may harm yourself"),
        ("how do i kill myself with insulin", "If you may harm yourself"),
        ("I feel suicidal", "If you may harm yourself"),
        ("What is the lethal dose of acetaminophen?", "If you may harm yourself"),
    ]:
        assert (LINES.line_for(question) or "").startswith(begins)


def test_a_textbook_question_gets_none() -> None:
    for question in [
        "What is the first-line drug for opioid overdose?",
        "What is the classic sign of stable angina?",
        "A 54-year-old man has crushing chest pain radiating to the jaw. Which drug?",
        "Which test confirms pulmonary embolism?",
        "What are the risk factors for suicide in adolescents?",
        "How is anaphylaxis treated?",
        "Which drug stops bleeding in hemophilia A?",
        "What causes stroke?",
        "What are the causes of vomiting blood?",
        "What causes sudden chest tightness?",
        "What is the most likely diagnosis in a man with severe chest pain radiating to the back?",
        "Which patients are unresponsive to methotrexate?",
        "Why do blood vessels everywhere constrict?",
        "What is the LD50, the lethal dose of paracetamol in rats?",
    ]:
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
