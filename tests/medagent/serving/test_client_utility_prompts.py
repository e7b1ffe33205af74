"""Titles, summaries and the like that chat programs ask for, in the many words they use."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from medagent.serving.client_utility_prompts import utility_answer, without_talk
from tests.medagent.serving.support import chat

ASKED = {"role": "user", "content": "What treats gout?"}
TITLE = {"title": "What treats gout"}
HISTORY = "USER: What treats gout?\nASSISTANT: colchicine"


def test_titles_are_known_in_many_words(policy: Any) -> None:
    for messages in [
        [("user", "Please generate a title of four words summarizing our conversation, without quotation marks.")],
        [("user", f"Give this conversation a name.\nKeep it short, ten characters at most.\n\n{HISTORY}")],
        [("user", f"Analyze this conversation and provide:\n1. The language\n2. A concise title\n\n{HISTORY}")],
        [("user", "Now reply with a title for the chat that is 3 words long.")],
        [("system", "Summarize the user's conversation into a title within 10 words."), ("user", HISTORY)],
        [("system", "Generate a short title that captures this conversation.\n- Only the title"), ("user", HISTORY)],
        [
            (
                "system",
                "- write a short title based on the first message a user begins a conversation with\n- 80 characters",
            ),
            ("user", "What treats gout?"),
        ],
        [("system", "Summarize the first message into a title of 5 words or less."), ("user", "What treats gout?")],
        [("developer", "Write a title for this conversation in 5 words."), ("user", "What treats gout?")],
        [("system", '5-word-or-less title for the conversation.\n\n||>User:\n"What treats gout?"\n||>Title:')],
    ]:
        asked = [{"role": role, "content": text} for role, text in messages]
        before = (
            [] if len(asked) > 1 or "USER" in asked[0]["content"] else [ASKED, {"role": "assistant", "content": "x"}]
        )
        body = chat(policy, [*before, *asked]).json()
        assert "medagent" not in body, "the agent was asked"
        assert body["choices"][0]["message"]["content"] == "What treats gout"


def test_other_utility_prompts_have_their_shape(policy: Any) -> None:
    def said(*messages: tuple[str, str]) -> str:
        asked = [{"role": role, "content": text} for role, text in messages]
        body, streamed = chat(policy, asked).json(), chat(policy, asked, stream=True).text.split("\n\n")
        assert "medagent" not in body
        text = body["choices"][0]["message"]["content"]
        assert json.loads(streamed[1].removeprefix("data: "))["choices"][0]["delta"]["content"] == text
        return text

    task = "### Task:\n"
    for prompt, shape in [
        ("You are an autocompletion system. <type>Search Query</type>", {"text": ""}),
        (f"Write a prompt for an image.\n{HISTORY}", {"prompt": "What treats gout"}),
        (f'Generate a concise title of the chat history.\nJSON format: {{ "title": "" }}\n{HISTORY}', TITLE),
        ("Generate 1-3 broad tags categorizing the themes of the chat.", {"tags": ["Medicine"]}),
        ("Suggest 3-5 relevant follow-up questions of the user.", {"follow_ups": []}),
    ]:
        assert json.loads(said(("user", f"{task}{prompt}"))) == shape
    assert said(("user", "Show the speaker's mood through a fitting emoji. Message: gout")) == "\N{SPEECH BALLOON}"
    condense = (
        "Rephrase it to be a standalone question.\nHuman: What causes gout?\nFollow Up Input: And how is it treated?"
    )
    assert said(("user", condense)) == "How is gout treated?"
    summary = (
        (ASKED["role"], ASKED["content"]),
        ("assistant", "x"),
        ("system", "Summarize the discussion in 200 words."),
    )
    assert said(*summary) == "The user asked: What treats gout?"


def test_a_utility_stream_counts_its_usage(policy: Any) -> None:
    asked = [{"role": "user", "content": f"Generate a title for this chat.\n{HISTORY}"}]
    lines = chat(policy, asked, stream=True, stream_options={"include_usage": True}).text.strip().split("\n\n")
    assert json.loads(lines[-2].removeprefix("data: "))["usage"]["total_tokens"] == 0


def test_a_question_under_a_system_message_on_titles_is_answered(policy: Any) -> None:
    for system in (
        "You are a doctor. Write a title for each conversation in 5 words, then answer.",
        "Be brief. Also suggest a title for the conversation in 5 words.",
        "Answer in at most 50 words.",
    ):
        assert "medagent" in chat(policy, [{"role": "system", "content": system}, ASKED]).json(), system


def test_a_question_about_titles_is_a_question(policy: Any) -> None:
    for text in (
        "What is the title compound that treats gout?",
        "Give me the name of the drug for gout and tell me if it is safe",
        "[task] what treats gout?",
        "Provide a differential with a title line, then a short discussion: what treats gout?",
        "Write the title of the condition, from this conversation: which one has a hot toe?",
        "### Task:\nGenerate a title for this chat. My father can't breathe.",
        "#" * 100,
    ):
        assert "medagent" in chat(policy, [{"role": "user", "content": text}]).json(), text[:40]


def test_an_emergency_in_the_quoted_talk_is_no_second_emergency(policy: Any) -> None:
    talk = "USER: I took 40 paracetamol tablets, what now?\nASSISTANT: Call now. Do you want to die?"
    title = "### Task:\nGenerate a title of the chat history.\n"
    for quoted in (f"<chat_history>\n{talk}\n</chat_history>", "USER: I took 40 paracetamol tablets, what now?"):
        assert "medagent" not in chat(policy, [{"role": "user", "content": title + quoted}]).json()
    danger = chat(policy, [{"role": "user", "content": f"{title}I took 40 paracetamol tablets, what now?"}]).json()
    assert danger["medagent"]["answer"]["urgent"]


@pytest.mark.parametrize("unit", ["\n", " ", "user: ", "user:\n", "<chat_history>", "follow up question: ", "zorb "])
@pytest.mark.parametrize("head", ["", "user: a", "Generate a title for this conversation. ", "standalone question "])
def test_long_prompts_of_any_kind_are_read_in_linear_time(head: str, unit: str) -> None:
    prompt = f"{head}{unit * (200_000 // len(unit))}b"
    began = time.process_time()
    utility_answer(prompt, prompt, [])
    without_talk(prompt)
    assert time.process_time() - began < 2
