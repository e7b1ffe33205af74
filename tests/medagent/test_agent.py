from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from medagent.agent import Agent, Job
from medagent.pieces import Block
from medagent.policies.scripted import ScriptedPolicy
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.errors import NoIndexError
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Limits, Question, StopReason, rollout_seed

QUESTION = Question("q", "What treats gout?", ("aspirin", "allopurinol"), "B")


class Shelf:
    """A retriever that returns one numbered passage a query and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        self.batches.append(list(queries))
        return [[Hit(Passage(f"p-{query}", query, f"about {query}."), 1.0)][:top_k] for query in queries]


def make_agent(tokenizer, script, *, limits: Limits = Limits(), shelf: Shelf | None = None) -> Agent:
    return Agent(ScriptedPolicy(tokenizer, script), shelf or Shelf(), TagProtocol(instructions=""), limits, top_k=1)


def search_then_answer(text: str, turn: int) -> str:
    return f"<search>step {turn}</search>" if turn < 2 else "<think>so</think><answer>allopurinol (B) [2]</answer>"


def test_a_dialogue_is_one_sequence_with_a_mask(tokenizer) -> None:
    rollout = make_agent(tokenizer, search_then_answer).run_all([Job(QUESTION)])[0]
    assert rollout.stop_reason is StopReason.ANSWERED
    assert rollout.answer == "allopurinol (B) [2]"
    assert [turn.query for turn in rollout.turns] == ["step 0", "step 1", None]
    assert [hit.passage.id for hit in rollout.hits] == ["p-step 0", "p-step 1"]
    ids, mask, turns = rollout.token_ids, rollout.loss_mask, rollout.turn_ids
    assert len(ids) == len(mask) == len(turns) == len(rollout.rollout_logprobs)
    spoken = tokenizer.decode([token for token, action in zip(ids, mask, strict=True) if action])
    assert (
        spoken == "<search>step 0</search><search>step 1</search><think>so</think><answer>allopurinol (B) [2]</answer>"
    )
    assert [turn for turn, action in zip(turns, mask, strict=True) if action] == sorted(t for t in turns if t >= 0)
    assert {turn for turn, action in zip(turns, mask, strict=True) if not action} == {-1}
    assert "about step 1 [2]." in tokenizer.decode(ids)
    assert rollout.num_searches == 2
    assert rollout.num_action_tokens == sum(mask)


def test_concurrent_searches_are_batched(tokenizer) -> None:
    shelf = Shelf()
    agent = make_agent(tokenizer, search_then_answer, shelf=shelf)
    agent.run_all([Job(QUESTION, seed=seed) for seed in range(20)])
    assert sum(map(len, shelf.batches)) == 40
    assert len(shelf.batches) < 10


def test_batches_keep_the_order_of_jobs(tokenizer) -> None:
    agent = make_agent(tokenizer, lambda text, turn: "<answer>(A)</answer>")
    jobs = [Job(Question(str(i), f"number {i}"), seed=i) for i in range(7)]
    rollouts = agent.run_all(jobs, max_open=3)
    assert [rollout.question.id for rollout in rollouts] == [str(i) for i in range(7)]


def test_a_stream_opens_the_next_dialogue_as_soon_as_one_ends(tokenizer) -> None:
    opened: list[int] = []

    def script(text: str, turn: int) -> str:  # question 0 searches twice, the others answer at once
        return "<search>more</search>" if "number 0" in text and turn < 2 else "<answer>(A)</answer>"

    agent = make_agent(tokenizer, script)
    open_session = agent.policy.open
    running = 0

    def counted(*, seed: int, temperature: float, blocks: tuple[Block, ...]):
        nonlocal running
        running += 1
        opened.append(running)
        return open_session(seed=seed, temperature=temperature, blocks=blocks)

    agent.policy.open = counted  # type: ignore[method-assign]
    ended: list[str] = []

    def done(job: Job, rollout) -> None:
        nonlocal running
        running -= 1
        assert job.question is rollout.question
        ended.append(job.question.id)

    agent.stream([Job(Question(str(i), f"number {i}"), seed=i) for i in range(6)], max_open=2, on_done=done)
    assert sorted(ended) == [str(i) for i in range(6)]
    assert max(opened) == 2
    assert ended.index("0") > 1, "others begin and end while the slow one goes on"


def test_the_first_failure_ends_a_stream(tokenizer) -> None:
    agent = make_agent(tokenizer, search_then_answer)
    agent.retriever = NoRetriever()
    with pytest.raises(NoIndexError, match="--index"):
        agent.stream([Job(QUESTION, seed=i) for i in range(3)], max_open=2, on_done=lambda job, rollout: None)


def test_run_reports_turns_as_they_end(tokenizer) -> None:
    seen = []
    agent = make_agent(tokenizer, search_then_answer)
    rollout = asyncio.run(agent.run(Job(QUESTION), on_turn=seen.append))
    assert tuple(seen) == rollout.turns


def test_seeds_depend_on_every_part() -> None:
    base = {"iteration": 1, "question_id": "q", "sample": 0}
    seeds = {rollout_seed(0, **base), rollout_seed(1, **base), rollout_seed(0, **{**base, "iteration": 2})}
    seeds |= {rollout_seed(0, **{**base, "question_id": "r"}), rollout_seed(0, **{**base, "sample": 1})}
    assert len(seeds) == 5
    assert rollout_seed(0, **base) == rollout_seed(0, **base)
