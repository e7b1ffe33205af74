from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import training.warm_start as module
from medagent.causal_lm import load_causal_lm
from medagent.saved import read_spec
from medagent.starter.lessons import STARTER_PROTOCOL, Habits
from training.warm_start import LessonMaker, Stage, WarmStartConfig, collate, loss_and_lookup, warm_start

TINY = WarmStartConfig(vocab_size=700, hidden_size=32, num_layers=1, num_heads=2, intermediate_size=48, batch_size=8)


@pytest.mark.slow
def test_a_base_is_made_saved_and_taken_up_again(tmp_path: Path, monkeypatch) -> None:
    full = module.curriculum

    def brief(tokenizer, config, forbidden):
        stages = full(tokenizer, config, forbidden)
        assert [stage.name for stage in stages] == ["pairs", "drills", "lessons", "habits", "lessons", "habits"]
        return [Stage("pairs", stages[0].draw, stages[0].exam[:1], 2e-3, 50, decay=True)] * 2

    monkeypatch.setattr(module, "curriculum", brief)
    lines: list[str] = []
    figures = warm_start(tmp_path / "one", TINY, forbidden=frozenset(), report=lines.append)
    assert len(lines) == 2
    assert 0 <= figures["lookup_accuracy"] <= 1
    assert read_spec(tmp_path / "one").protocol == STARTER_PROTOCOL
    model, tokenizer = load_causal_lm(str(tmp_path / "one"))
    assert len(tokenizer("<search>")["input_ids"]) == len(tokenizer(" (A)")["input_ids"]) == 1
    config = json.loads((tmp_path / "one" / "warm_start.json").read_text())["config"]
    assert config["hidden_size"] == 32
    warm_start(tmp_path / "two", TINY, forbidden=frozenset(), report=lines.append, resume_from=(tmp_path / "one", 1))
    assert len(lines) == 3
    other, _ = load_causal_lm(str(tmp_path / "two"))
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_loss_counts_action_tokens_alone(starter) -> None:
    model, tokenizer = starter
    maker = LessonMaker(tokenizer, seed=5, habits=Habits(first_search=1.0, second_search=1.0, open_question=0.0))
    lessons = [maker.draw() for _ in range(6)]
    batch = collate(lessons, pad_id=int(tokenizer.pad_token_id))
    with torch.no_grad():
        loss, right, total = loss_and_lookup(model, batch)
        scores = model(input_ids=batch.token_ids_BT).logits.log_softmax(-1)
    losses = [
        -scores[row, position - 1, token].item()
        for row, lesson in enumerate(lessons)
        for position, (token, action) in enumerate(zip(lesson.token_ids, lesson.action_mask, strict=True))
        if action
    ]
    assert loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert total == sum(len(lesson.lookup) for lesson in lessons)
    assert 0 <= right <= total
