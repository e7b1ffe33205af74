"""Which dialogues are imitated: right ones, with a search, and of each question the shortest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from medagent.agent import Agent
from medagent.errors import ConfigError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.predictions import Prediction, PredictionLog
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.passages import Hit, Passage
from medagent.training.agent_data import AgentSettings
from medagent.training.sft import dialogues
from medagent.training.sft.dialogues import RejectionSampled
from medagent.types import Limits, Question, Rollout, StopReason, Turn
from tests.recording import RecordingPolicy

SEARCH = Turn(
    (1,), (-0.1,), "<search>gout</search>", query="gout", hits=(Hit(Passage("p", "gout", "Allopurinol."), 1.0),)
)
REPLIES = {
    Verdict.CORRECT: "allopurinol (B) [1]",
    Verdict.WRONG: "aspirin (A) [1]",
    Verdict.MULTIPLE: "(A) (B)",
    Verdict.ABSTAINED: "none of the above",
    Verdict.UNPARSED: "hm",
}


def dialogue(name: str, sample: int, verdict: Verdict, searches: int = 1) -> Rollout:
    question = Question(name, f"What treats {name}?", ("aspirin", "allopurinol"), "B")
    if verdict is Verdict.ERROR:
        return Rollout(question, (9,), (SEARCH,) * searches, StopReason.ERROR, sample=sample, error="status 500")
    if verdict is Verdict.NO_ANSWER:
        return Rollout(question, (9,), (SEARCH,) * searches, StopReason.MAX_TURNS, sample=sample)
    reply = REPLIES[verdict]
    turns = (*(SEARCH,) * searches, Turn((3,), (-0.1,), f"<answer>{reply}</answer>", answer=reply))
    made = Rollout(question, (9,), turns, StopReason.ANSWERED, sample=sample)
    assert grade(made).verdict is verdict
    return made


def kept(folder: Path, rollouts: list[Rollout], **settings: int) -> list[tuple[str, int]]:
    log = PredictionLog(folder / "predictions.jsonl")
    for rollout in rollouts:
        log.append(Prediction("search", 0, rollout, None))
    source = RejectionSampled(StarterBenchmark("train", limit_per_kind=1), "starter", **settings)
    return [(rollout.question.id, rollout.sample) for rollout in source.read(folder, TagProtocol())]


def test_only_right_answers_are_imitated(tmp_path: Path) -> None:
    every = [dialogue(f"q{n}", sample, verdict) for n, verdict in enumerate(Verdict) for sample in range(2)]
    right = list(Verdict).index(Verdict.CORRECT)
    assert kept(tmp_path, every, keep=5) == [(f"q{right}", 0), (f"q{right}", 1)]


@pytest.mark.parametrize(("settings", "samples"), [({}, [2]), ({"keep": 2}, [2, 3]), ({"keep": 9}, [1, 2, 3])])
def test_of_a_question_the_shortest_right_answers_count(tmp_path: Path, settings: dict, samples: list[int]) -> None:
    several = [
        dialogue("a", 0, Verdict.WRONG),
        dialogue("a", 1, Verdict.CORRECT, 3),
        dialogue("a", 2, Verdict.CORRECT, 1),
        dialogue("a", 3, Verdict.CORRECT, 2),
        dialogue("a", 4, Verdict.CORRECT, 0),
    ]
    assert kept(tmp_path, several, **settings) == [("a", sample) for sample in samples]


def test_a_lucky_guess_is_no_demonstration_unless_asked_for(tmp_path: Path) -> None:
    several = [dialogue("a", searches, Verdict.CORRECT, searches) for searches in range(4)]
    for least in range(4):
        folder = tmp_path / str(least)
        folder.mkdir()
        assert kept(folder, several, min_searches=least, keep=9) == [("a", sample) for sample in range(least, 4)]


def unshown(rollout: Rollout) -> Rollout:
    return replace(rollout, turns=tuple(replace(turn, hits=()) for turn in rollout.turns))


def test_a_share_of_the_dialogues_ends_in_silence(tmp_path: Path) -> None:
    log = PredictionLog(tmp_path / "predictions.jsonl")
    for number in range(6):
        log.append(Prediction("search", 0, dialogue(f"q{number}", 0, Verdict.CORRECT), None))
    for number in range(6):
        for sample in range(2):  # right by luck, wrong, without a search
            verdict = Verdict.CORRECT if number % 2 else Verdict.WRONG
            log.append(Prediction("without_evidence", 0, unshown(dialogue(f"q{number}", sample, verdict)), None))
    for number in range(6, 9):  # shown the answer after all
        log.append(Prediction("without_evidence", 0, dialogue(f"q{number}", 0, Verdict.WRONG), None))
    log.append(Prediction("without_evidence", 0, dialogue("q9", 0, Verdict.WRONG, 0), None))
    source = RejectionSampled(StarterBenchmark("train", limit_per_kind=1), "starter", abstentions=0.4)
    rollouts = source.read(tmp_path, TagProtocol())
    silent = [rollout for rollout in rollouts if grade(rollout).verdict is Verdict.ABSTAINED]
    assert (len(rollouts), len(silent)) == (10, 4)
    assert len({rollout.question.id for rollout in silent} - {"q6", "q7", "q8"}) == 4
    assert all(rollout.num_searches == 1 and rollout.answer == "not found" for rollout in silent)
    assert [grade(rollout).verdict for rollout in rollouts].count(Verdict.CORRECT) == 6
    with pytest.raises(ConfigError, match="abstentions: found 1.0, wanted a share"):
        RejectionSampled(StarterBenchmark("train", limit_per_kind=1), "starter", abstentions=1.0)


@pytest.mark.parametrize("name", ["starter", "https://chat.example/v1"])
def test_the_teacher_plays_by_this_runs_rules(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat endpoint counts bytes, so of its own limits all but the number of turns stay."""
    own, retriever = Limits(9, 4_000, 5_000, 60_000), NoRetriever()
    policy = RecordingPolicy(lambda read, turn: "<answer>(A)</answer>")
    opened: dict[str, Any] = {}
    asked: dict[str, Any] = {}

    def open_agent(name: str, **settings: Any) -> SimpleNamespace:
        opened.update(name=name, **settings)
        return SimpleNamespace(policy=policy, limits=own)

    def run_plan(agent: Agent, questions: object, plan: Any, folder: Path, **settings: Any) -> None:
        asked.update(agent=agent, plan=plan)

    monkeypatch.setattr(dialogues, "open_agent", open_agent)
    monkeypatch.setattr(dialogues, "run_plan", run_plan)
    settings = AgentSettings(TagProtocol(instructions="ask"), Limits(3, 50, 60, 700), top_k=2)
    source = RejectionSampled(
        StarterBenchmark("train", limit_per_kind=1), name, model="m", samples=5, temperature=0.7, seed=11
    )
    source.make(settings, retriever, tmp_path, policy.tokenizer)
    agent, plan = asked["agent"], asked["plan"]
    assert agent.limits == (settings.limits if name == "starter" else replace(own, max_turns=3))
    assert (agent.policy, agent.retriever) == (policy, retriever)
    assert (agent.protocol, agent.top_k) == (settings.protocol, 2)
    assert (opened["name"], opened["model"], opened["retriever"]) == (name, "m", retriever)
    assert (plan.samples, plan.temperature, plan.seed) == (5, 0.7, 11)


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": 1},
        {"limits": Limits(max_turns=2)},
        {"limits": Limits(max_observation_tokens=99)},
        {"protocol": TagProtocol(instructions="Be brief.")},
    ],
)
def test_what_was_sampled_under_other_rules_is_not_taken(
    change, retriever, tokenizer, tmp_path: Path, monkeypatch
) -> None:
    said: list[dict[str, object]] = []
    monkeypatch.setattr(dialogues, "run_plan", lambda *_, identity, **__: said.append(identity))
    sampled = RejectionSampled(StarterBenchmark("train", limit_per_kind=1), "starter")
    for settings in (AgentSettings(), AgentSettings(), AgentSettings(**change)):
        sampled.make(settings, retriever, tmp_path, tokenizer)
    first, again, other = (json.dumps(each, sort_keys=True, default=str) for each in said)
    assert first == again
    assert first != other, "run_plan refuses a folder of another identity"
