"""Questions, passages and scripted agents that the tests of evaluation share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from medagent.agent import Agent, Limits
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policies.scripted import ScriptedPolicy
from medagent.protocol import TagProtocol, neutralise
from medagent.types import Question
from retrieval.passages import Hit, Passage

ROOMY = Limits(4, 4_000, 4_000, 100_000)
PASSAGES = [Passage(f"p{i}", f"drug {i}", f"Drug {i} treats disease {i}.") for i in range(20)]
QUESTIONS = [
    Question(
        f"q{i}",
        f"What treats disease {i}?",
        tuple(f"drug {(i + k) % 20}" for k in range(4)),
        "A",
        gold_passage_ids=(f"p{i}",),
    )
    for i in range(20)
]


class Finds:
    """Answers every search with the passage of the disease it names."""

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        return [[Hit(PASSAGES[int(re.findall(r"\d+", query)[-1])], 1.0)] for query in queries]


def scripted(script, *, protocol: TagProtocol | None = None, retriever=None) -> Agent:
    return Agent(
        ScriptedPolicy(byte_tokenizer(), script), retriever or Finds(), protocol or TagProtocol(instructions=""), ROOMY
    )


def lookup(questions: Sequence[Question], wrong: set[str]):
    """A policy that knows every answer by the question's text, and answers those in `wrong` wrongly."""
    table = {neutralise(question.text): question for question in questions}

    def script(read: str, turn: int) -> str:
        text = read.split("Question: ", 1)[1].split("\nOptions:")[0].split("\n")[0]
        question = table[text]
        if not question.options:
            return f"<answer>{'wrong' if question.id in wrong else question.answer}</answer>"
        letters = [letter for letter in question.letters if (letter == question.answer) != (question.id in wrong)]
        return f"<answer>({letters[0]})</answer>"

    return script


def lookup_by_text():
    def script(read: str, turn: int) -> str:
        number = re.findall(r"treats disease (\d+)\?", read)[-1]
        letter = re.findall(rf"([A-D])\) drug {number}\n", read)[-1]
        return f"<answer>({letter})</answer>"

    return script
