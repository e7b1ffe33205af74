"""Questions, passages and scripted agents that the tests of evaluation share."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from medagent.agent import Agent
from medagent.cli.main import main
from medagent.evaluation.predictions import PredictionLog
from medagent.policies.chat_endpoint import byte_tokenizer
from medagent.policies.scripted import ScriptedPolicy
from medagent.protocol import TagProtocol, neutralise
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Limits, Question

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


def asked_plainly(agent: list[str], folder: Path) -> dict[str, str]:
    """What an agent of the command line says to two questions in three modes, asked plainly; by prediction."""
    index, out = folder / "index", folder / f"asked-{len(list(folder.glob('asked-*')))}"
    if not index.exists():
        (folder / "corpus.jsonl").write_text('{"id": "p", "title": "gout", "text": "Allopurinol lowers urate."}\n')
        assert main(["index", "build", str(folder / "corpus.jsonl"), "--out", str(index)]) == 0
    rows = [
        {"question": text, "options": ["aspirin", "zinc"], "answer": "B", "gold_passage_ids": ["p"]}
        for text in ("Which?", "What?")
    ]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["evaluate", "--benchmark", "jsonl", "--path", str(folder / "q.jsonl"), "--index", str(index), *agent]
    command += ["--prompting", "plain", "--concurrency", "1", "--limits", '{"max_turn_tokens": 24}', "--out", str(out)]
    assert main([*command, "--modes", "[closed_book,single_shot,gold]"]) == 0
    assert json.loads((out / "config.json").read_text())["ask"] == "plain"
    return {each.key: each.rollout.turns[-1].text for each in PredictionLog(out / "predictions.jsonl").read()}
