"""Study mode: what is right comes from the file, and its evidence from the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medagent.errors import ConfigError
from medagent.serving.page import QuizItem, read_rows
from tests.medagent.serving.support import GOUT, call

ITEMS = [
    QuizItem(question="What treats gout?", options=["insulin", "colchicine"], answer="B"),
    QuizItem(question="What treats measles?", options=["rest", "colchicine"], answer="A"),
]


def test_questions_come_without_answers_and_tries_are_judged(policy: Any) -> None:
    settings = {"quiz": ITEMS}
    listed = call(policy, "GET", "/v1/quiz", settings=settings).json()["questions"]
    assert listed[0] == {"id": 0, "question": "What treats gout?", "options": ["insulin", "colchicine"]}
    wrong = call(policy, "POST", "/v1/quiz/0", settings=settings, json={"choice": "A"}).json()
    assert (wrong["right"], wrong["answer"], wrong["text"]) == (False, "B", "colchicine")
    start, end = wrong["evidence"][0]["sentence"]
    assert GOUT.text[start:end].strip() == "The first-line drug is colchicine."
    right = call(policy, "POST", "/v1/quiz/1", settings=settings, json={"choice": "A"}).json()
    assert (right["right"], right["evidence"]) == (True, []), "no passage has the words of the right option"
    for number, body, status in ((2, {"choice": "A"}, 404), (0, {"choice": "Z"}, 400), (0, {}, 400)):
        assert call(policy, "POST", f"/v1/quiz/{number}", settings=settings, json=body).status_code == status
    assert call(policy, "GET", "/v1/quiz").status_code == 404
    assert call(policy, "GET", "/v1/agent", settings=settings).json()["quiz"]


def test_a_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "quiz.jsonl"
    file.write_text("".join(item.model_dump_json() + "\n" for item in ITEMS))
    assert read_rows(QuizItem, file) == ITEMS
    for wrong in ('{"question": "x", "options": ["a", "b"], "answer": "C"}', '{"question": "x"}', "no JSON"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_rows(QuizItem, file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rows(QuizItem, tmp_path / "missing")
