"""`medagent check`: what it finds in a configuration, and what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from medagent.cli.main import main
from medagent.errors import MedagentError
from medagent.evaluation.benchmarks import StarterBenchmark
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.search import HybridRetriever
from medagent.starter.index import build_starter_index
from medagent.training.trial import as_marked_tokens, check_command, gaps, mistakes
from medagent.types import Question, Rollout, StopReason, Turn
from tests.training.support import arguments

QUESTION = Question("q", "What treats gout?", ("colchicine", "insulin"), "A")
HIT = Hit(Passage(id="p", title="gout", text="Colchicine treats gout."), 1.0)
SEARCH = Turn((1,), (-1.0,), "<search>gout</search>", query="gout", hits=(HIT,))


def rollout(answer: str | None = "A", reward: float = 0.0, *, searches=SEARCH, stop=StopReason.ANSWERED) -> Rollout:
    said = Turn((2,), (-1.0,), "", answer=answer)
    return Rollout(QUESTION, (0,), (searches, said) if searches else (said,), stop, reward=reward)


def found(*rollouts: Rollout, retriever: object = None, questions=(), environment: object = None) -> list[str]:
    data = SimpleNamespace(environment=environment, retriever=retriever)
    return list(mistakes(rollouts, questions, data))


GOOD = (rollout("A", 1.0), rollout("B", 0.0))


def test_a_healthy_trial_has_no_mistake() -> None:
    assert found(*GOOD) == []


def test_an_agent_that_never_searches_is_named_unless_an_environment_leads() -> None:
    silent = [replace(each, turns=each.turns[1:]) for each in GOOD]
    (said,) = found(*silent)
    assert said.startswith("It never searches.")
    assert "medagent sft" in said
    assert found(*silent, environment=object()) == []
    assert found(GOOD[0], silent[1]) == [], "one that searches is enough"


def test_searches_that_find_nothing_are_named() -> None:
    empty = replace(SEARCH, hits=())
    (said,) = found(*(replace(each, turns=(empty, each.turns[1])) for each in GOOD))
    assert said.startswith("No search found a passage.")
    assert "medagent search" in said


@pytest.mark.parametrize("wrong", [1.0, 2.0])
def test_a_reward_that_ignores_the_answer_is_named(wrong: float) -> None:
    (said,) = found(rollout("A", 1.0), rollout("B", wrong))
    assert said.startswith(f"Wrong answers earned {wrong:.2f} in the mean, and right ones 1.00. Check that data.reward")


def test_rewards_that_are_all_equal_are_named() -> None:
    (said,) = found(rollout("B", 0.2), rollout("B", 0.2))
    assert said.startswith("Every rollout earned 0.2: nothing tells good from bad.")
    assert found(rollout("B", 0.2), rollout("B", 0.1)) == []


@pytest.mark.parametrize("stop", [each for each in StopReason if each.truncated])
def test_limits_that_cut_most_rollouts_are_named(stop: StopReason) -> None:
    cut = rollout(None, 0.0, stop=stop)
    (said,) = found(cut, cut, rollout("A", 1.0))
    assert said.startswith(f"2 of 3 rollouts were cut. Raise data.agent.limits.{stop.value},")
    assert found(cut, rollout("A", 1.0)) == [], "half of them is not most"


def test_limits_that_cut_most_of_those_that_searched_are_named() -> None:
    cut, blind = rollout(None, 0.0, stop=StopReason.MAX_TURNS), rollout("A", 1.0, searches=None)
    (said,) = found(cut, cut, blind, blind)
    assert said.startswith("2 of 2 rollouts that searched were cut.")


def test_evidence_that_is_not_in_the_index_is_named(world, retriever, tmp_path: Path) -> None:
    questions = StarterBenchmark("train", limit_per_kind=8).questions()
    assert found(*GOOD, retriever=retriever, questions=questions) == []
    for passages, count in (
        (world.passages(("test",)), len(questions)),
        (world.passages(("test",))[:3], len(questions)),
    ):
        folder = tmp_path / str(len(passages))
        build_starter_index(folder, passages)
        (said,) = found(*GOOD, retriever=HybridRetriever(str(folder)), questions=questions)
        assert said.startswith(f"The evidence of {count} of {count} questions is not in the index, such as of ")


def test_the_gaps_are_those_of_tokens_that_a_step_read() -> None:
    numbers = {"rollout_logprob": [-1.0, -2.0], "old_logprob": [-1.5, -2.0], "logprob": [-1.0, -4.0]}
    rows = [
        {"turns": [{"token_texts": ["a", "b"], "numbers": numbers}]},
        {"turns": [{"token_texts": ["c"], "numbers": {}}]},  # such as of a rollout without a loss
    ]
    assert list(gaps(rows, "rollout_logprob", "old_logprob")) == [(0.5, "a", -1.0, -1.5), (0.0, "b", -2.0, -2.0)]
    assert max(gaps(rows, "old_logprob", "logprob")) == (2.0, "b", -2.0, -4.0)


def test_marked_tokens_show_what_was_sampled_and_whole_characters(tokenizer) -> None:
    prompt, said, shown = (tuple(tokenizer.encode(each)) for each in ("gout?", "5 \u00b5g \U0001f9b6", "\u00e4"))
    assert (len(said), len(shown)) == (10, 2), "a character may be of several tokens"
    forced = Turn((prompt[0], *said), (0.0,) * 11, "", forced_prefix=1, observation_ids=shown)
    marked = as_marked_tokens(
        Rollout(QUESTION, prompt, (forced, Turn(said, (0.0,) * 10, "")), StopReason.ANSWERED), tokenizer
    )
    word = tokenizer.decode(prompt[:1])
    assert marked.endswith(
        "|?|"
        + word
        + "|\u00ab|5| ||\u00b5|g| ||||\U0001f9b6|\u00bb||\u00e4|\u00ab|5| ||\u00b5|g| ||||\U0001f9b6|\u00bb"
    )


@pytest.mark.slow
def test_a_trial_prints_what_happened_and_leaves_nothing(
    train_index: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    kept, config = tmp_path / "kept", tmp_path / "logger.yaml"
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(kept)}}
    config.write_text(json.dumps({"trainer": {"logger": logger}}))
    try:
        check_command([*arguments(tmp_path / "run", train_index, epochs=7), "--config", str(config)])
    except MedagentError as error:
        assert "the trial found" in str(error)  # noqa: PT017
    said = capsys.readouterr().out
    assert "8 rollouts:\n" in said
    assert said.count("of the outcome") == 8
    assert "One update moved the log-probs of sampled tokens by 0." in said
    for words in ("The first rollout, question starter:", "\u00ab|<", "differ most, before the update:", "Memory: "):
        assert words in said
    assert not (tmp_path / "run").exists()
    assert not kept.exists(), "a trial is in no logger of the configuration"
    assert list(tmp_path.glob("medagent-check-*")) == []


@pytest.mark.slow
def test_a_trial_whose_rate_is_far_too_high_ends_with_an_error(train_index: Path, tmp_path: Path, capsys) -> None:
    given = arguments(tmp_path / "run", train_index, epochs=7, **{"model.policy_lr": 0.2})
    assert main(["check", *given]) == 1
    assert "Lower model.policy_lr." in capsys.readouterr().err
