"""`--prompting likelihood`: the figures equal those of a plain pass over prompt and option."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from medagent.agent import Job
from medagent.cli.main import main
from medagent.evaluation.likelihood import LikelihoodAgent, LikelihoodProtocol
from medagent.evaluation.predictions import PredictionLog
from medagent.models.causal_lm import load_causal_lm
from medagent.policies.huggingface import HFPolicy
from medagent.retrieval.controls import NoRetriever
from medagent.types import Limits, Question

QUESTION = Question("q", "What treats gout?", ("zinc", "colchicine", "iron"), "B")
EXAMPLE = Question("e", "What treats scurvy?", ("gout", "vitamin C"), "B")


@pytest.mark.parametrize("by", ["letters", "texts"])
@pytest.mark.parametrize("examples", [(), (EXAMPLE,)])
def test_the_likeliest_option_is_the_answer(tiny_base: str, by: str, examples: tuple[Question, ...]) -> None:
    model, tokenizer = load_causal_lm(tiny_base)
    protocol = LikelihoodProtocol(by=by, examples=examples)  # type: ignore[arg-type]
    agent = LikelihoodAgent(HFPolicy(model, tokenizer), NoRetriever(), protocol, Limits(1, 8, 8, 4_000))
    (rollout,) = agent.run_all([Job(QUESTION, temperature=0.0)])
    prompt = ""
    for example in (*examples, QUESTION):
        prompt += f"Question: {example.text}\n"
        if by == "letters":
            prompt += "".join(f"{letter}. {o}\n" for letter, o in zip("ABC", example.options, strict=False))
        said = "B" if by == "letters" else "vitamin C"
        prompt += "Answer:" + (f" {said}\n\n" if example is EXAMPLE else "")
    assert tokenizer.decode(rollout.prompt_ids) == prompt
    scores = []
    for letter, option in zip("ABC", QUESTION.options, strict=True):
        text = f" {letter}" if by == "letters" else f" {option}"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*rollout.prompt_ids, *ids]])).logits[0].log_softmax(-1)
        places = range(len(rollout.prompt_ids) - 1, len(rollout.prompt_ids) + len(ids) - 1)
        total = sum(float(logits[place, token]) for place, token in zip(places, ids, strict=True))
        scores.append(total if by == "letters" else total / len(text.encode()))
    best = max(range(3), key=scores.__getitem__)
    assert rollout.answer == "ABC"[best]
    wanted = scores[best] - math.log(sum(map(math.exp, scores))) if by == "letters" else 0.0
    assert rollout.turns[-1].logprobs[0] == pytest.approx(wanted, abs=1e-4)


def test_the_command_reports_choices_and_their_confidence(tiny_base: str, tmp_path: Path, capsys) -> None:
    row = {"question": "Which?", "options": ["zinc", "iron"], "answer": "B"}
    (tmp_path / "q.jsonl").write_text("".join(json.dumps({**row, "question": f"Which {n}?"}) + "\n" for n in range(4)))
    (tmp_path / "shots.jsonl").write_text(
        "".join(json.dumps({**row, "question": f"Why {n}?"}) + "\n" for n in range(3))
    )
    command = ["evaluate", "--agent", f"hf:{tiny_base}", "--benchmark", "jsonl", "--path", str(tmp_path / "q.jsonl")]
    command += ["--modes", "closed_book", "--out", str(tmp_path / "out"), "--prompting", "likelihood"]
    shots = ["--shots", "2", "--shots_path", str(tmp_path / "shots.jsonl")]
    assert main([*command, *shots]) == 0
    assert "asked for the likeliest letter" in " ".join(capsys.readouterr().out.split())
    found = PredictionLog(tmp_path / "out" / "predictions.jsonl").read()
    assert {prediction.rollout.answer for prediction in found} <= {"A", "B"}
    assert all(0.5 <= (prediction.confidence or 0) <= 1 for prediction in found)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert json.dumps(report).count('"shots": 2') == 1

    for wrong, message in (
        (["--shots", "9", "--shots_path", str(tmp_path / "shots.jsonl")], "found 3 questions with options"),
        (["--shots", "1", "--shots_path", str(tmp_path / "q.jsonl")], "is asked as well"),
        (["--shots", "1"], "wanted both"),
    ):
        assert main([*command, *wrong]) == 1
        assert message in " ".join(capsys.readouterr().err.split())
    assert main([*command[:-1], "plain", *shots]) == 1
    assert "--shots: found it with --prompting plain" in " ".join(capsys.readouterr().err.split())
