from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import studies.starter_base.build as module
from medagent.agent_spec import read_spec
from medagent.errors import ConfigError, MedagentError
from medagent.models.causal_lm import load_causal_lm
from studies.starter_base.batches import action_states, collate, loss_and_lookup
from studies.starter_base.build import LessonMaker, Stage, WarmStartConfig, warm_start
from studies.starter_base.lessons import STARTER_PROTOCOL, Habits

TINY = WarmStartConfig(vocab_size=700, hidden_size=32, num_layers=1, num_heads=2, intermediate_size=48, batch_size=8)


@pytest.mark.long
def test_an_interrupted_warm_start_goes_on_with_the_next_stage(tmp_path: Path, monkeypatch) -> None:
    full = module.curriculum

    def brief(tokenizer, config, forbidden):
        stages = full(tokenizer, config, forbidden)
        assert [stage.name for stage in stages] == ["pairs", "drills", "lessons", "polish", "habits"]
        assert [stage.gate for stage in stages] == [0.9, 0.9, None, None, None]
        one = Stage("pairs", stages[0].draw, stages[0].exam[:1], 2e-3, 50)
        return [one, replace(one, name="polish", decay=True)]

    def fails_at_polish(*args, **kwargs):
        if args[1].name == "polish":
            raise KeyboardInterrupt
        return run_stage(*args, **kwargs)

    run_stage = module.run_stage
    monkeypatch.setattr(module, "curriculum", brief)
    monkeypatch.setattr(module, "run_stage", fails_at_polish)
    lines: list[str] = []

    def start(folder: str, config: WarmStartConfig = TINY) -> dict[str, float]:
        return warm_start(tmp_path / folder, config, forbidden=frozenset(), report=lines.append)

    with pytest.raises(KeyboardInterrupt):
        start("one")
    assert [line.split()[0] for line in lines] == ["pairs"]
    first, _ = load_causal_lm(str(tmp_path / "one"))
    with pytest.raises(ConfigError, match="other settings"):
        start("one", replace(TINY, seed=1))
    monkeypatch.setattr(module, "run_stage", run_stage)
    figures = start("one")
    assert [line.split()[0] for line in lines] == ["pairs", "polish"]
    assert 0 <= figures["lookup_accuracy"] <= 1
    model, tokenizer = load_causal_lm(str(tmp_path / "one"))
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), first.parameters(), strict=True))
    assert read_spec(tmp_path / "one").protocol == STARTER_PROTOCOL
    assert len(tokenizer("<search>")["input_ids"]) == len(tokenizer(" (A)")["input_ids"]) == 1
    written = json.loads((tmp_path / "one" / "warm_start.json").read_text())
    assert written["config"]["hidden_size"] == 32
    assert written["stages_done"] == 2
    with pytest.raises(ConfigError, match="finished base"):
        start("one")


@pytest.mark.long  # trains a base
def test_a_skill_that_does_not_form_is_an_error(tmp_path: Path, monkeypatch) -> None:
    full = module.curriculum

    def hopeless(tokenizer, config, forbidden):
        return [replace(full(tokenizer, config, forbidden)[0], steps=50)]

    monkeypatch.setattr(module, "curriculum", hopeless)
    with pytest.raises(MedagentError, match=r"stage pairs: lookup accuracy .* after 50 steps, wanted 90%"):
        warm_start(tmp_path / "base", TINY, forbidden=frozenset(), report=lambda line: None)


def test_the_top_layer_at_action_positions_alone_gives_the_same_states_and_gradients(starter) -> None:
    model, tokenizer = starter
    maker = LessonMaker(tokenizer, seed=6, habits=Habits())
    batch = collate([maker.draw() for _ in range(8)], pad_id=int(tokenizer.pad_token_id))
    assert len({sum(row) for row in batch.action_mask_BT.tolist()}) > 1  # rows of different numbers of actions
    everywhere = model.model(input_ids=batch.token_ids_BT).last_hidden_state[:, :-1]
    states = {"all": everywhere[batch.action_mask_BT[:, 1:]], "actions": action_states(model, batch)}
    assert torch.allclose(states["actions"], states["all"], atol=1e-4)
    gradients = {
        name: torch.autograd.grad(found.square().sum(), list(model.model.parameters()))
        for name, found in states.items()
    }
    for found, wanted in zip(gradients["actions"], gradients["all"], strict=True):
        assert (found - wanted).norm() < 1e-4 * wanted.norm()


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


@pytest.mark.long
def test_the_packaged_base_learns_to_think_longer(tmp_path: Path, retriever) -> None:
    from medagent.agent import Agent, Job
    from medagent.evaluation.benchmarks import StarterBenchmark
    from medagent.policies.huggingface import HFPolicy
    from studies.starter_base.build import lengthen

    out = tmp_path / "longer"
    lengthen(out, thinking=16, forbidden=frozenset(), steps=50, report=lambda line: None)
    spec = read_spec(out)
    agent = Agent(HFPolicy(*load_causal_lm(str(out))), retriever, spec.protocol, spec.limits, top_k=spec.top_k)
    questions = StarterBenchmark("train", limit_per_kind=10).questions()
    turns = [
        turn for rollout in agent.run_all([Job(q, seed=i) for i, q in enumerate(questions)]) for turn in rollout.turns
    ]
    thoughts = [turn.text.partition("</think>")[0] for turn in turns]
    assert sum(text.startswith("<think>") for text in thoughts) > 0.8 * len(turns), (
        "the packaged base searches without a thought"
    )
    with pytest.raises(ConfigError, match="not empty"):
        lengthen(out, thinking=16, forbidden=frozenset())
    with pytest.raises(ConfigError, match="found 129"):
        lengthen(tmp_path / "none", thinking=129, forbidden=frozenset())


def test_a_size_that_heads_do_not_divide_is_refused() -> None:
    assert WarmStartConfig(hidden_size=96).hidden_size == 96
    with pytest.raises(ConfigError, match="found a hidden size of 100, wanted a multiple of 8"):
        WarmStartConfig(hidden_size=100)
