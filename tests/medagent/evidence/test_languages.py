"""Which questions are not in English."""

from __future__ import annotations

import pytest

from medagent.evidence.words import is_other_language

OTHER = """
Was ist das Mittel der ersten Wahl bei Gicht?
Was verursacht Skorbut?
Behandlung von Gicht
\u00bfCu\u00e1l es el f\u00e1rmaco de primera l\u00ednea para la gota?
Quel est le m\u00e9dicament de premi\u00e8re intention pour la goutte ?
Cosa causa la gotta?
Qual \u00e9 o tratamento da gota?
Wat is de behandeling van jicht?
Jakie leki na dn\u0119 moczanow\u0105?
\u041a\u0430\u043a \u043b\u0435\u0447\u0438\u0442\u044c \u043f\u043e\u0434\u0430\u0433\u0440\u0443?
\u0645\u0627 \u0647\u0648 \u0627\u0644\u062f\u0648\u0627\u0621\u061f
\u75db\u98ce\u7684\u4e00\u7ebf\u836f\u7269\u662f\u4ec0\u4e48\uff1f"""
ENGLISH = """
What is gout?
gout drug
HIV
Was gout the cause?
de Quervain tenosynovitis treatment
Le Fort fracture
Cri du chat
What causes M\u00e9ni\u00e8re disease?
Which TNF-\u03b1 inhibitors treat Crohn's disease?"""


@pytest.mark.parametrize("question", OTHER.strip().split("\n"))
def test_another_language_is_known_by_its_script_and_common_words(question: str) -> None:
    assert is_other_language(question)


@pytest.mark.parametrize("question", ENGLISH.strip().split("\n"))
def test_names_of_other_languages_leave_a_question_english(question: str) -> None:
    assert not is_other_language(question)
