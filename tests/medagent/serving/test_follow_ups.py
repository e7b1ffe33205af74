"""A follow-up is put as a question that a person would ask; where nobody can tell it, the service asks back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from medagent.policies.scripted import ScriptedPolicy
from medagent.serving.rewriting import asks_back, standing_alone
from tests.medagent.serving.support import CHAT, call, events
from tests.medagent.support import byte_level

CASES: list[Any] = yaml.safe_load(Path(__file__).with_name("follow_ups.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("first", "following", "right"), CASES)
def test_a_follow_up_is_completed_or_asked_back(first: str, following: str, right: dict[str, str]) -> None:
    put = standing_alone([first, following])
    asked = asks_back([first, following], put)
    if "whole" in right:
        assert (put, asked) == (right["whole"], "")
    else:
        assert right["asks"] in asked


def test_what_is_asked_back_is_a_reply_in_every_form_and_asks_no_model() -> None:
    read: list[str] = []
    policy = ScriptedPolicy(byte_level(), lambda seen, turn: read.append(seen) or "")
    body = {"question": "why?", "earlier": ["What causes gout?"]}
    answer = call(policy, "POST", "/v1/answers", json=body).json()["answer"]
    assert (answer["verdict"]["kind"], answer["supported"], answer["sources"]) == ("asks_back", False, [])
    assert answer["text"] == "Please ask the whole question: it is unclear what \u201cwhy?\u201d asks about gout."
    streamed = events(call(policy, "POST", "/v1/answers", json={**body, "stream": True}).text)
    assert [name for name, _ in streamed] == ["id", "answer"]
    said = [{"role": "user", "content": text} for text in ("What causes gout?", "why?")]
    chat = call(policy, "POST", CHAT, json={"model": "medagent", "messages": said}).json()
    assert "unclear what" in chat["choices"][0]["message"]["content"]
    assert not read
    danger = {"question": "I have chest pain. What else?", "earlier": ["What causes gout?"]}
    assert call(policy, "POST", "/v1/answers", json=danger).json()["answer"]["urgent"]
