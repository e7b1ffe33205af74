"""`--prompting likelihood`: the figures equal those of a plain pass over prompt and option."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from medagent.agent import Job
from medagent.cli.main import main
from medagent.errors import PolicyError
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.likelihood import LikelihoodAgent, LikelihoodProtocol
from medagent.evaluation.metrics import summarize
from medagent.evaluation.predictions import PredictionLog
from medagent.models.causal_lm import load_causal_lm
from medagent.policies.huggingface import HFPolicy
from medagent.retrieval.controls import NoRetriever
from medagent.types import Limits, Question, Rollout, StopReason

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

    (tmp_path / "same.jsonl").write_text(json.dumps({**row, "question": "\uff37hich  1 "}) + "\n")
    for wrong, message in (
        (["--shots", "9", "--shots_path", str(tmp_path / "shots.jsonl")], "found 3 questions with options"),
        (["--shots", "1", "--shots_path", str(tmp_path / "q.jsonl")], "is asked as well"),
        (["--shots", "1", "--shots_path", str(tmp_path / "same.jsonl")], "is asked as well"),
        (["--shots", "1"], "wanted both"),
    ):
        assert main([*command, *wrong]) == 1
        assert message in " ".join(capsys.readouterr().err.split())
    assert main([*command[:-1], "plain", *shots]) == 1
    assert "--shots: found it with --prompting plain" in " ".join(capsys.readouterr().err.split())


def asked(tiny_base: str, question: Question, *, limit: int = 4_000, by: str = "letters", **changed: int) -> Rollout:
    """The rollout of one question. `changed` are settings of the model's configuration."""
    model, tokenizer = load_causal_lm(tiny_base)
    for name, value in changed.items():
        setattr(model.config, name, value)
    protocol = LikelihoodProtocol(by=by)  # type: ignore[arg-type]
    (rollout,) = LikelihoodAgent(HFPolicy(model, tokenizer), NoRetriever(), protocol, Limits(1, 8, 8, limit)).run_all(
        [Job(question, temperature=0.0)]
    )
    return rollout


@pytest.mark.parametrize("by", ["letters", "texts"])
def test_a_prompt_beyond_the_models_positions_or_the_limit_is_not_scored(tiny_base: str, by: str) -> None:
    long = replace(QUESTION, text="urate " * 400)
    for rollout in (
        asked(tiny_base, long, by=by, max_position_embeddings=512),
        asked(tiny_base, long, by=by, limit=300),
    ):
        assert (rollout.turns, rollout.stop_reason) == ((), StopReason.MAX_TOTAL_TOKENS)
        assert summarize([rollout]).too_long == summarize([rollout]).no_answer == 1
    assert asked(tiny_base, long, by=by, max_position_embeddings=8_000).answer in tuple("ABC")


def test_a_prompt_fits_with_its_longest_option_or_not_at_all(tiny_base: str) -> None:
    prompt = len(asked(tiny_base, QUESTION).prompt_ids)
    letter = len(load_causal_lm(tiny_base)[1](" A", add_special_tokens=False)["input_ids"])
    assert asked(tiny_base, QUESTION, limit=prompt + letter).answer
    assert asked(tiny_base, QUESTION, limit=prompt + letter - 1).answer is None
    assert asked(tiny_base, QUESTION, limit=prompt + letter, max_position_embeddings=prompt).answer is None


@pytest.mark.parametrize("by", ["letters", "texts"])
def test_equal_likelihoods_are_a_tie_and_name_no_letter(tiny_base: str, by: str, monkeypatch) -> None:
    even = replace(QUESTION, options=("zinc", "iron", "iron"))
    monkeypatch.setattr(HFPolicy, "option_logprobs", lambda *_: torch.tensor([-9.0, -5.0, -5.0], dtype=torch.float64))
    rollout = asked(tiny_base, even, by=by)
    assert rollout.answer == "B or C"
    result = grade(rollout)
    assert (result.verdict, result.letter, result.lenient_correct) == (Verdict.MULTIPLE, None, False)
    monkeypatch.setattr(HFPolicy, "option_logprobs", lambda *_: torch.tensor([-1.0, math.nan, -5.0]))
    with pytest.raises(PolicyError, match="not numbers"):
        asked(tiny_base, even, by=by)


def test_a_model_that_finds_every_letter_as_likely_ties(tiny_base: str) -> None:
    model, tokenizer = load_causal_lm(tiny_base)
    torch.nn.init.zeros_(model.get_output_embeddings().weight)
    agent = LikelihoodAgent(HFPolicy(model, tokenizer), NoRetriever(), LikelihoodProtocol(), Limits(1, 8, 8, 4_000))
    (rollout,) = agent.run_all([Job(QUESTION, temperature=0.0)])
    assert rollout.answer == "A or B or C"


def test_the_command_says_how_many_prompts_do_not_fit(tiny_base: str, tmp_path: Path, capsys) -> None:
    rows = [{"question": text, "options": ["zinc", "iron"], "answer": "B"} for text in ("Which?", "urate " * 10_000)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["evaluate", "--agent", f"hf:{tiny_base}", "--benchmark", "jsonl", "--path", str(tmp_path / "q.jsonl")]
    command += ["--modes", "closed_book", "--out", str(tmp_path / "out"), "--prompting", "likelihood"]
    for _ in range(2):  # also from the answers of an earlier run
        assert main(command) == 0
        assert "1 of 2 prompts do not fit into" in " ".join(capsys.readouterr().out.split())
    assert "prompts that do not fit) | 1 (1) |" in (tmp_path / "out" / "report.md").read_text()
