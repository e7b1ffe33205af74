from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from threading import Event

import pytest
import torch

from medagent.agent import Agent, Job
from medagent.agent_folder import open_agent
from medagent.errors import PolicyError
from medagent.policies import batch
from medagent.policies.huggingface import HFPolicy, HFSession
from medagent.policy import SampledTurn
from medagent.protocol import TagProtocol
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL
from tests.medagent.policies.support import one_turn


@pytest.fixture(scope="module")
def jobs(world):
    return [Job(question, seed=i) for i, question in enumerate(world.questions("train", limit_per_kind=12))]


def make_agent(starter, retriever, **kwargs) -> Agent:
    return Agent(HFPolicy(*starter, **kwargs), retriever, STARTER_PROTOCOL, STARTER_LIMITS, top_k=2)


def forward_logprobs(model, rollout) -> torch.Tensor:
    ids = torch.tensor([rollout.token_ids])
    with torch.no_grad():
        scores = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return torch.cat([torch.zeros(1), scores.gather(1, ids[0, 1:, None])[:, 0]])


def test_cached_sampling_equals_one_whole_forward_pass(starter, retriever, jobs) -> None:
    forced = [Job(job.question, seed=job.seed, force_search=True) for job in jobs]
    rollouts = make_agent(starter, retriever).run_all(jobs + forced)
    assert max(len(rollout.turns) for rollout in rollouts) >= 2
    for rollout in rollouts:
        mask = torch.tensor(rollout.loss_mask)
        gap = forward_logprobs(starter[0], rollout) - torch.tensor(rollout.rollout_logprobs)
        assert gap[mask].abs().max() < 1e-4


def test_a_sample_depends_on_its_seed_alone(starter, retriever, jobs) -> None:
    together = make_agent(starter, retriever).run_all(jobs)
    alone = [make_agent(starter, retriever).run_all([job])[0] for job in jobs[:6]]
    joining = make_agent(starter, retriever, lockstep=False).run_all(jobs)
    for a, b in zip(together, alone, strict=False):
        assert a.token_ids == b.token_ids
    assert [r.token_ids for r in together] == [r.token_ids for r in joining]
    other = make_agent(starter, retriever).run_all([Job(job.question, seed=job.seed + 1000) for job in jobs])
    assert [r.token_ids for r in other] != [r.token_ids for r in together]


def test_evaluation_refills_its_batch_and_no_delay_changes_it(starter, retriever, jobs, monkeypatch) -> None:
    original = batch.hidden_states
    shapes: list[tuple[int, ...]] = []

    def noting(model, **inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return original(model, **inputs)

    class Slow:
        def __init__(self, seed: int) -> None:
            self._delays = random.Random(seed)

        def search(self, queries, *, top_k, **kwargs):
            time.sleep(self._delays.uniform(0.0, 0.03))
            return retriever.search(queries, top_k=top_k, **kwargs)

    def asked(agent: Agent) -> tuple[dict[int, tuple[int, ...]], list[tuple[int, ...]]]:
        shapes.clear()
        found = {}
        agent.stream(jobs, max_open=8, on_done=lambda job, rollout: found.update({job.seed: rollout.token_ids}))
        return found, list(shapes)

    monkeypatch.setattr(batch, "hidden_states", noting)
    runs = [asked(open_agent("starter", index=None, lockstep=True, retriever=Slow(seed))) for seed in range(3)]
    assert runs[0] == runs[1] == runs[2]
    sampling = [rows for rows, width in runs[0][1] if width == 1]
    assert sum(sampling) / len(sampling) > 5  # of at most 8; 4.0 if each batch waits for its longest turn
    assert runs[0][0] == {job.seed: make_agent(starter, retriever).run_all([job])[0].token_ids for job in jobs}


def test_each_row_of_a_batch_is_sampled_at_its_own_temperature(starter, retriever, jobs) -> None:
    mixed = [replace(job, temperature=at) for job, at in zip(jobs, (0.0, 1.5, 0.0, 0.7, 1.5, 1.5), strict=False)]
    together = make_agent(starter, retriever).run_all(mixed)
    alone = [make_agent(starter, retriever).run_all([job])[0] for job in mixed]
    assert [rollout.token_ids for rollout in together] == [rollout.token_ids for rollout in alone]
    greedy = make_agent(starter, retriever).run_all([replace(job, temperature=0.0) for job in mixed])
    assert [a.token_ids == b.token_ids for a, b in zip(together, greedy, strict=True)].count(False) >= 2


def test_each_token_of_the_context_is_read_once(starter, retriever, jobs, monkeypatch) -> None:
    original = batch.hidden_states

    def counting(model, **inputs):
        widths.append(inputs["input_ids"].shape[1])
        return original(model, **inputs)

    widths: list[int] = []
    agent = make_agent(starter, retriever)
    monkeypatch.setattr(batch, "hidden_states", counting)
    rollout = agent.run_all([Job(jobs[0].question, seed=1, force_search=True)])[0]
    # Every token but the very last is read exactly once.
    unread = 1 if rollout.turns[-1].answer is not None or not rollout.turns[-1].observation_ids else 0
    assert sum(widths) == len(rollout.token_ids) - unread


def test_a_row_that_joins_does_not_widen_those_that_run(starter, jobs, monkeypatch) -> None:
    original, shapes, waits = batch.hidden_states, [], Event()

    def recording(model, **inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        if len(shapes) == 3:  # or a busy machine could end the first turn before the second is asked for
            assert waits.wait(timeout=60)
        return original(model, **inputs)

    policy = HFPolicy(*starter, lockstep=False)
    monkeypatch.setattr(batch, "hidden_states", recording)
    prompts = [STARTER_PROTOCOL.encode_prompt(policy.tokenizer, job.question) for job in jobs[:2]]

    async def run() -> None:
        first, second = (policy.open(seed=seed, temperature=1.0, blocks=TagProtocol().blocks) for seed in range(2))
        first.append(prompts[0])
        second.append(prompts[1])
        running = asyncio.create_task(first.sample(max_tokens=48))
        while len(shapes) < 3:
            await asyncio.sleep(0)
        joining = asyncio.create_task(second.sample(max_tokens=8))
        await asyncio.sleep(0)
        waits.set()
        await asyncio.gather(running, joining)

    asyncio.run(run())
    assert (1, len(prompts[1])) in shapes, "it read its prompt apart"
    assert (2, 1) in shapes, "and then they went on together"
    assert not [shape for shape in shapes if shape[0] == 2 and shape[1] > 1]


def test_a_row_that_cannot_be_read_fails_alone(starter, jobs, monkeypatch) -> None:
    original, seen = batch.hidden_states, []

    def failing(model, **inputs):
        seen.append(inputs["input_ids"].shape[1])
        if len(seen) > 1 and seen[-1] > 1:
            raise MemoryError("too long")
        return original(model, **inputs)

    policy = HFPolicy(*starter, lockstep=False)
    monkeypatch.setattr(batch, "hidden_states", failing)

    async def run() -> None:
        first, second = (policy.open(seed=seed, temperature=1.0, blocks=TagProtocol().blocks) for seed in range(2))
        for session, job in zip((first, second), jobs, strict=False):
            session.append(STARTER_PROTOCOL.encode_prompt(policy.tokenizer, job.question))
        running = asyncio.create_task(first.sample(max_tokens=48))
        while len(seen) < 3:
            await asyncio.sleep(0)
        with pytest.raises(MemoryError):
            await second.sample(max_tokens=8)
        assert (await running).token_ids
        first.close()
        second.close()

    asyncio.run(run())


def test_sampling_follows_the_distribution(starter) -> None:
    """Frequencies of the first token over many seeds match its probabilities (chi-square, 99.9%)."""
    policy = HFPolicy(*starter)
    prompt = policy.tokenizer("Question: What causes gout?\n", add_special_tokens=False)["input_ids"]

    async def draw(count: int) -> list[int]:
        sessions = [policy.open(seed=seed, temperature=1.5, blocks=TagProtocol().blocks) for seed in range(count)]
        for session in sessions:
            session.append(list(prompt))
        turns = await asyncio.gather(*(session.sample(max_tokens=1) for session in sessions))
        for session in sessions:
            session.close()
        return [turn.token_ids[0] for turn in turns]

    tokens = torch.tensor(asyncio.run(draw(1500)))
    with torch.no_grad():
        p = (starter[0](input_ids=torch.tensor([prompt])).logits[0, -1] / 1.5).softmax(-1)
    top = p.topk(5).indices
    expected = torch.cat([p[top], (1 - p[top].sum()).reshape(1)]) * len(tokens)
    observed = torch.tensor([float((tokens == token).sum()) for token in top])
    observed = torch.cat([observed, (len(tokens) - observed.sum()).reshape(1)])
    keep = expected > 1
    assert ((observed - expected).square() / expected)[keep].sum() < 22.5


def test_weights_cannot_change_under_an_open_session(starter) -> None:
    policy = HFPolicy(*starter)
    session = policy.open(seed=0, temperature=1.0, blocks=TagProtocol().blocks)
    with pytest.raises(PolicyError, match="open"):
        policy.load_weights([])
    session.close()
    with pytest.raises(PolicyError, match="not a parameter"):
        policy.load_weights([("nonsense", torch.zeros(1))])


def test_a_failure_reaches_every_caller(starter, retriever, jobs, monkeypatch) -> None:
    def broken(model, **inputs):
        raise RuntimeError("out of memory")

    agent = make_agent(starter, retriever)
    monkeypatch.setattr(batch, "hidden_states", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        agent.run_all(jobs)
    monkeypatch.undo()
    assert agent.run_all(jobs[:1])[0].turns


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_dialogue_closed_while_it_samples_does_not_disturb_the_others(starter, jobs, lockstep: bool) -> None:
    policy = HFPolicy(*starter, lockstep=lockstep)
    prompts = [STARTER_PROTOCOL.encode_prompt(policy.tokenizer, job.question) for job in jobs[:6]]

    async def go(cancel: bool) -> list[tuple[int, ...]]:
        sessions = [policy.open(seed=i, temperature=1.0, blocks=TagProtocol().blocks) for i in range(6)]
        for session, prompt in zip(sessions, prompts, strict=True):
            session.append(list(prompt))

        async def sampled(session: HFSession) -> SampledTurn:
            try:
                return await session.sample(max_tokens=40)
            finally:
                session.close()

        tasks = [asyncio.create_task(sampled(session)) for session in sessions]
        await asyncio.sleep(0.005)
        if cancel:
            for number in (0, 3):
                tasks[number].cancel()
        kept = [task for number, task in enumerate(tasks) if not (cancel and number in (0, 3))]
        turns = await asyncio.wait_for(asyncio.gather(*kept), timeout=60)
        return [turn.token_ids for turn in turns]

    whole = asyncio.run(go(cancel=False))
    assert asyncio.run(go(cancel=True)) == [whole[i] for i in (1, 2, 4, 5)]


def test_a_waiting_dialogue_that_closes_does_not_hold_up_the_rest(starter, jobs) -> None:
    policy = HFPolicy(*starter)
    prompt = STARTER_PROTOCOL.encode_prompt(policy.tokenizer, jobs[0].question)

    async def go() -> bool:
        waiting, idle, other = (policy.open(seed=i, temperature=1.0, blocks=TagProtocol().blocks) for i in range(3))
        for session in (waiting, idle, other):
            session.append(list(prompt))
        first = asyncio.create_task(waiting.sample(max_tokens=3))
        second = asyncio.create_task(other.sample(max_tokens=3))
        await asyncio.sleep(0.01)  # both wait for the idle one
        assert not second.done()
        first.cancel()
        waiting.close()
        idle.close()
        turn = await asyncio.wait_for(second, timeout=60)
        other.close()
        return len(turn.token_ids) <= 3

    assert asyncio.run(go())


def test_sampling_from_an_empty_context_is_refused(starter) -> None:
    with pytest.raises(PolicyError, match="append the prompt"):
        one_turn(HFPolicy(*starter), [])
