"""How a plan's dialogues are opened: the temperature it says, and a seed of its own for each question and sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from medagent.agent import Agent
from medagent.evaluation.modes import Mode
from medagent.evaluation.run import Plan, run_benchmark, run_plan
from medagent.protocol import TagProtocol
from tests.evaluation.support import PASSAGES, QUESTIONS, ROOMY, Finds
from tests.recording import RecordingPolicy

EVIDENCE = {passage.id: passage for passage in PASSAGES}


def watched() -> tuple[Agent, RecordingPolicy]:
    def script(read: str, turn: int) -> str:
        if read.endswith("<search>"):
            return "disease 1</search>"
        return "(A)</answer>" if read.endswith("<answer>") else "<answer>(A)</answer>"

    policy = RecordingPolicy(script)
    return Agent(policy, Finds(), TagProtocol(instructions=""), ROOMY), policy


def opened(folder: Path, plan: Plan, count: int = 6) -> list[tuple[tuple[str, str, int, int], int, float]]:
    """Key, seed and temperature of each dialogue of a plan, asked one after another."""
    agent, policy = watched()
    predictions = run_plan(
        agent, QUESTIONS[:count], plan, folder, identity={}, corpus=PASSAGES, evidence=EVIDENCE, concurrency=1
    )
    return [
        (prediction.key, dialogue.seed, dialogue.temperature)
        for prediction, dialogue in zip(predictions, policy.dialogues, strict=True)
    ]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_mode_asks_at_the_plans_temperature(tmp_path: Path, mode: Mode, temperature: float) -> None:
    found = opened(tmp_path, Plan((mode,), temperature=temperature))
    assert {warm for _, _, warm in found} == {temperature}
    assert len({seed for _, seed, _ in found}) == len(found) == 6


def test_samples_questions_and_seeds_all_draw_anew(tmp_path: Path) -> None:
    plan = Plan(samples=4, temperature=0.8)
    found = [opened(tmp_path / str(seed), replace(plan, seed=seed)) for seed in range(3)]
    assert [sorted({key[3] for key, _, _ in one}) for one in found] == [[0, 1, 2, 3]] * 3
    drawn = [seed for one in found for _, seed, _ in one]
    assert len(set(drawn)) == len(drawn) == 3 * 4 * 6
    assert opened(tmp_path / "again", plan) == found[0]


def test_a_seed_follows_from_question_and_sample_not_from_order_or_mode(tmp_path: Path) -> None:
    plan = Plan((Mode.SEARCH, Mode.GOLD), samples=2, temperature=0.8)
    both = opened(tmp_path / "both", plan)
    by_mode = {mode: {key[1:]: seed for key, seed, _ in both if key[0] == mode} for mode in ("search", "gold")}
    assert by_mode["search"] == by_mode["gold"]
    few = opened(tmp_path / "few", Plan(samples=2, temperature=0.8), count=3)
    assert {key[1:]: seed for key, seed, _ in few}.items() <= by_mode["search"].items()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_benchmark_is_run_as_it_says(temperature: float) -> None:
    drawn = []
    for seed in (0, 1):
        agent, policy = watched()
        run_benchmark(agent, QUESTIONS[:6], temperature=temperature, seed=seed)
        assert {dialogue.temperature for dialogue in policy.dialogues} == {temperature}
        drawn += [dialogue.seed for dialogue in policy.dialogues]
    assert len(set(drawn)) == len(drawn) == 12
