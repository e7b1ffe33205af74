"""Which rollouts make pairs, and how files of them are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from medagent.errors import ConfigError
from medagent.evaluation.rollout_files import readable
from medagent.protocol import TagProtocol
from medagent.training.preference.pairs import GivenPairs, Pairing, PreferencePair, SampledPairs
from medagent.types import Rollout
from tests.training.preference.support import rollout
from tests.training.support import AGENT

RIGHT = [{"text": "<search>gout drug</search>", "passages": [{"text": "Allopurinol treats gout."}]}]
RIGHT_END = {"text": "<answer>allopurinol [1] (B)</answer>"}
ASKED = {"question": "What treats gout?", "options": {"A": "aspirin", "B": "allopurinol"}, "gold": "B"}


def sampled(question: int, seed: int, *, success: bool, searches: int = 1) -> Rollout:
    made = rollout(question, seed, [(0, 3, 2)] * searches + [(0, 2, 0)], success=success)
    turns = tuple(replace(turn, text=f"{seed}.{at}", query="x") for at, turn in enumerate(made.turns[:-1]))
    return replace(made, turns=(*turns, made.turns[-1]), sample=seed)


def names(pairs: list[PreferencePair]) -> set[tuple[int, int]]:
    return {(pair.chosen.sample, pair.rejected.sample) for pair in pairs}


def test_a_pair_has_one_prompt_a_right_and_a_wrong_rollout_and_no_rollout_twice() -> None:
    rollouts = [
        *(sampled(0, seed, success=True) for seed in (1, 2, 3)),
        *(sampled(0, seed, success=False) for seed in (4, 5)),
        *(sampled(1, seed, success=True) for seed in (6, 7)),
        sampled(2, 8, success=False),
        sampled(3, 9, success=True, searches=0),
        sampled(3, 10, success=False),
        rollout(4, 11, [], success=False),
    ]
    pairs, left_out = Pairing(per_question=4, min_searches=1).pairs(rollouts)
    assert len(pairs) == 2, "as many as the rarer kind has"
    assert all(pair.chosen.prompt_ids == pair.rejected.prompt_ids for pair in pairs)
    assert all(pair.chosen.success and not pair.rejected.success for pair in pairs)
    used = [number for pair in names(pairs) for number in pair]
    assert len(set(used)) == len(used)
    assert left_out == {
        "questions without a wrong one": 1,
        "questions without a right answer": 2,
        "right answers that searched less than min_searches": 1,
        "rollouts without a sampled token": 1,
    }
    one, _ = Pairing(per_question=1).pairs(rollouts)
    assert len(one) == 2, "questions 0 and 3, where a lucky guess counts"
    again, _ = Pairing(per_question=1).pairs(list(reversed(rollouts)))
    assert names(again) == names(one), "the draw does not depend on the order"
    drawn = {frozenset(names(Pairing(seed=seed).pairs(rollouts)[0])) for seed in range(8)}
    assert len(drawn) > 1


def written(path: Path, *rows: object) -> GivenPairs:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return GivenPairs(str(path), per_question=9)


def said(rollout: Rollout, tokenizer) -> str:
    acted = [token for token, acts in zip(rollout.token_ids, rollout.loss_mask, strict=True) if acts]
    return tokenizer.decode(acted)


def test_lines_of_an_evaluation_are_paired_by_question(tmp_path: Path, tokenizer) -> None:
    right = {**ASKED, "turns": [*RIGHT, RIGHT_END]}
    rows = [
        {**right, "verdict": "correct", "mode": "search"},
        {**ASKED, "turns": [{"text": "<answer>aspirin (A)</answer>"}], "verdict": "wrong", "mode": "search"},
        # Cut by a limit, and citing what it never saw: both are things not to do.
        {**ASKED, "turns": [{"text": "gout gout gout"}], "verdict": "unparsed", "stop_reason": "max_turn_tokens"},
        {**ASKED, "turns": [{"text": "<answer>aspirin [7] (A)</answer>"}]},
        {**right, "verdict": "correct", "mode": "closed_book"},
        {**right, "turns": [*RIGHT, {"text": "<answer>allopurinol [3] (B)</answer>"}]},
    ]
    given = written(tmp_path / "predictions.jsonl", *rows)
    (pair,) = given.read(tmp_path, AGENT, tokenizer)
    assert said(pair.chosen, tokenizer) == "<search>gout drug</search><answer>allopurinol [1] (B)</answer>"
    assert said(pair.rejected, tokenizer) in (
        "<answer>aspirin (A)</answer>",
        "gout gout gout",
        "<answer>aspirin [7] (A)</answer>",
    )
    assert given.left_out["rollouts of other modes than search"] == 1
    assert given.left_out["rollouts that cite a passage that this run does not show under that number"] == 1
    assert {question.text for question in given.questions(TagProtocol())} == {"What treats gout?"}


def test_options_in_another_order_are_another_prompt(tmp_path: Path, tokenizer) -> None:
    turned = {"question": ASKED["question"], "options": {"A": "allopurinol", "B": "aspirin"}, "gold": "A"}
    right = {**ASKED, "turns": [*RIGHT, RIGHT_END]}
    wrong = {**turned, "turns": [{"text": "<answer>aspirin (B)</answer>"}]}
    given = written(tmp_path / "rotated.jsonl", right, wrong)
    assert given.read(tmp_path, AGENT, tokenizer) == []
    assert given.left_out == {"questions without a right answer": 1, "questions without a wrong one": 1}


def test_a_line_may_be_a_pair(tmp_path: Path, tokenizer) -> None:
    chosen = {"question": "What treats gout?", "turns": [*RIGHT, {"text": "<answer>allopurinol [1]</answer>"}]}
    rejected = {"question": "What treats gout?", "turns": [{"text": "<answer>aspirin</answer>"}]}
    given = written(tmp_path / "pairs.jsonl", {"chosen": chosen, "rejected": rejected})
    (pair,) = given.read(tmp_path, AGENT, tokenizer)
    assert said(pair.chosen, tokenizer) == "<search>gout drug</search><answer>allopurinol [1]</answer>"
    assert said(pair.rejected, tokenizer) == "<answer>aspirin</answer>"
    assert pair.chosen.prompt_ids == pair.rejected.prompt_ids
    unseen = {**chosen, "turns": [{"text": "<answer>allopurinol [1]</answer>"}]}
    given = written(tmp_path / "pairs.jsonl", {"chosen": unseen, "rejected": rejected})
    assert given.read(tmp_path, AGENT, tokenizer) == []
    assert given.left_out == {"rollouts that cite a passage that this run does not show under that number": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "x", "turns": []}, "neither verdict nor gold"),
        ({"question": "x"}, "turns: found None, wanted a list"),
        ({"chosen": {"question": "x", "turns": []}}, "'rejected'"),
        (
            {"chosen": {"question": "x", "turns": []}, "rejected": {"question": "y", "turns": []}},
            "answer different questions",
        ),
        ([1], "wanted an object"),
        ({"question": "x", "turns": [], "verdict": "perhaps"}, "verdict: found 'perhaps'"),
    ],
)
def test_a_line_that_is_no_rollout_is_named(row: object, message: str, tmp_path: Path, tokenizer) -> None:
    given = written(tmp_path / "bad.jsonl", row)
    with pytest.raises(ConfigError, match=f"line 1: .*{message}"):
        given.questions(TagProtocol())


def test_what_cannot_make_a_pair_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pairs .*none.jsonl: there is no such file"):
        GivenPairs(str(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="found per_question 0 and min_searches 0, wanted at least 1 and 0"):
        Pairing(per_question=0)
    with pytest.raises(ConfigError, match="samples: found 1, wanted 2 or more"):
        SampledPairs(None, samples=1)  # type: ignore[arg-type]


def test_what_evaluate_writes_comes_back(rollouts, tokenizer, tmp_path: Path) -> None:
    rows = [readable(each) for each in rollouts]
    given = written(tmp_path / "predictions.jsonl", *rows)
    assert len(given.questions(TagProtocol())) == len(rollouts)
    given.read(tmp_path, AGENT, tokenizer)  # none is refused
