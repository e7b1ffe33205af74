"""Many askers: places, waiting, timeouts, leaving."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from medagent.agent import Agent, Job
from medagent.evidence.check import EvidenceCheck
from medagent.policies.scripted import ScriptedPolicy
from medagent.serving.admission import Admission, OverloadedError
from medagent.serving.app import make_app
from medagent.serving.background import Probe
from medagent.serving.middleware import digest
from medagent.serving.responses import kept_alive
from medagent.serving.settings import AdmissionLimits
from medagent.types import Question
from tests.medagent.serving.support import Corpus, Stepwise, client_of, holds, says, served, soon

EVERY = EvidenceCheck(shown="all")
JOB = Job(Question("q", "x"))


def test_excess_questions_are_refused_and_slow_answers_time_out(tokenizer: Any) -> None:
    async def run() -> None:
        slow, body = Stepwise(tokenizer), {"question": "x"}
        async with client_of(slow, limits=AdmissionLimits(max_running=1, max_waiting=1, timeout_s=5)) as client:
            first, second = (asyncio.create_task(client.post("/v1/answers", json=body)) for _ in range(2))
            while "waiting 1" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.01)
            for asked in (body, {**body, "stream": True}):
                refused = await client.post("/v1/answers", json=asked)
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
            assert (await client.get("/readyz")).status_code == 503
            slow.allow(4)
            assert [(await task).status_code for task in (first, second)] == [200, 200]
            assert (await client.get("/readyz")).status_code == 200
            times = dict(line.rsplit(" ", 1) for line in (await client.get("/metrics")).text.splitlines())
            assert float(times["medagent_answer_seconds_p50"]) <= float(times["medagent_answer_seconds_p95"])
        async with client_of(slow, limits=AdmissionLimits(timeout_s=0.2)) as client:
            assert (await client.post("/v1/answers", json=body)).status_code == 504
            assert 'outcome="too_slow"} 1' in (await client.get("/metrics")).text
        assert slow.open_now == 0

    asyncio.run(run())


def test_one_token_does_not_take_every_place(tokenizer: Any) -> None:
    async def run() -> None:
        slow = Stepwise(tokenizer)
        tokens, limits = (digest("greedy"), digest("modest")), AdmissionLimits(max_per_key=2)
        async with client_of(slow, limits=limits, tokens=tokens) as client:

            def ask(token: str) -> asyncio.Task[httpx.Response]:
                headers = {"Authorization": f"Bearer {token}"}
                return asyncio.create_task(client.post("/v1/answers", json={"question": "x"}, headers=headers))

            begun = [ask("greedy"), ask("greedy"), ask("modest")]
            await holds(lambda: slow.opened == 3)
            refused = await ask("greedy")
            assert refused.status_code == 429
            assert "of this token" in refused.json()["error"]["message"]
            slow.allow(8)
            assert [(await each).status_code for each in begun] == [200, 200, 200]
            assert (await ask("greedy")).status_code == 200, "answered questions do not count"

    asyncio.run(run())


def test_readiness_tells_of_a_corpus_that_cannot_be_searched(tokenizer: Any) -> None:
    async def run() -> None:
        corpus, searched = Corpus(), list[str]()

        async def search() -> Any:
            searched.append("gout")
            return corpus.search(["gout"], top_k=1)

        searchable = Probe("the corpus cannot be searched", search, every_s=0.05)
        assert [await searchable(), await searchable()] == [True, True]
        assert len(searched) == 1, "many probes are one search"
        for failing in (True, False, True):
            corpus.failing = failing
            await asyncio.sleep(0.06)
            assert await searchable() is not failing
        async with client_of(ScriptedPolicy(tokenizer, says), corpus) as client:
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()) == (503, {"status": "the corpus cannot be searched"})
            assert (await client.get("/healthz")).status_code == 200

    asyncio.run(run())


def test_generation_stops_when_the_client_leaves(tokenizer: Any) -> None:
    policy = Stepwise(tokenizer)
    app = make_app(Agent(policy, Corpus()))
    with served(app) as url:
        for number, stream in enumerate((False, True), start=1):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}/v1/answers", json={"question": "x", "stream": stream}, timeout=1.5)
            soon(lambda number=number: app.state.admission.outcomes["left"] == number)
            assert (policy.opened, policy.open_now) == (number, 0), "the session is closed, and so generation stops"


def test_running_answers_end_with_the_agent_they_began_with(tokenizer: Any) -> None:
    class Leaving(Stepwise):
        disconnected = False

        async def disconnect(self) -> None:
            self.disconnected = True

    async def run() -> None:
        old, new = Leaving(tokenizer), ScriptedPolicy(tokenizer, lambda read, turn: "<answer> new</answer>")
        admission = Admission(Agent(old, Corpus()), check=EVERY)
        before = admission.start(JOB).task
        await holds(lambda: old.opened > 0)
        await admission.replace(Agent(new, Corpus()))
        assert (await admission.start(JOB).task).text == "new"
        assert not old.disconnected
        old.allow(2)
        assert (await before).text == "colchicine [1]"
        assert old.disconnected
        assert "medagent_agents_replaced_total 1" in admission.prometheus()

    asyncio.run(run())


def test_waiting_clients_learn_their_place_and_get_keep_alives(tokenizer: Any) -> None:
    async def run() -> None:
        slow = Stepwise(tokenizer)
        admission = Admission(Agent(slow, Corpus()), AdmissionLimits(max_running=1))
        first = admission.start(JOB).task
        await holds(lambda: slow.opened > 0)
        events = []

        async def listen() -> None:
            async for event in admission.start(JOB).events():
                events.append((event.kind, event.data))

        second = asyncio.create_task(listen())
        await holds(lambda: bool(events))
        assert events == [("waiting", {"ahead": 0})]
        slow.allow(4)
        await asyncio.gather(first, second)
        assert [kind for kind, _ in events] == ["waiting", "turn", "turn", "answer"]

    asyncio.run(run())

    async def pieces() -> AsyncGenerator[str]:
        yield "a"
        await asyncio.sleep(0.25)
        yield "b"

    async def collect() -> list[str]:
        return [piece async for piece in kept_alive(pieces(), silence_s=0.1)]

    assert asyncio.run(collect()) == ["a", ": working\n\n", ": working\n\n", "b"]


def test_a_service_that_ends_lets_answers_end_first(tokenizer: Any) -> None:
    policy = Stepwise(tokenizer)
    app = make_app(Agent(policy, Corpus()))
    found: list[httpx.Response] = []

    def ask(url: str) -> None:
        found.append(httpx.post(f"{url}/v1/answers", json={"question": "x"}, timeout=20))

    with served(app) as url:
        asking = threading.Thread(target=ask, args=(url,))
        asking.start()
        soon(lambda: policy.open_now == 1)
        ending = threading.Timer(0.3, policy.allow, args=(2,))  # after the service was told to end
        ending.start()
    asking.join(10)
    assert found[0].status_code == 200
    assert policy.open_now == 0


def test_a_burst_beyond_the_places_is_refused_and_waiters_go_in_order(tokenizer: Any) -> None:
    async def run() -> None:
        slow = Stepwise(tokenizer)
        admission = Admission(Agent(slow, Corpus()), AdmissionLimits(max_running=1, max_waiting=2))
        ended: list[int] = []

        async def ask(number: int) -> None:
            await admission.start(JOB).task
            ended.append(number)

        asked = [asyncio.create_task(ask(number)) for number in range(10)]
        await asyncio.sleep(0)
        assert (admission.running, admission.waiting) == (1, 2), "though none of them has got anywhere"
        await holds(lambda: slow.opened > 0)
        slow.allow(6)
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert ended == [0, 1, 2]
        assert [type(each) for each in found[3:]] == [OverloadedError] * 7
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(run())


def test_a_place_given_to_a_client_that_left_passes_to_the_next(tokenizer: Any) -> None:
    async def run() -> None:
        slow = Stepwise(tokenizer)
        admission = Admission(Agent(slow, Corpus()), AdmissionLimits(max_running=1), EVERY)
        first, leaving, last = (admission.start(JOB) for _ in range(3))
        never = admission.start(JOB)
        never.task.cancel()  # before its first step
        await holds(lambda: slow.opened > 0)
        first.task.cancel()
        while admission.waiting == 2:  # until the place has been given on ...
            await asyncio.sleep(0)
        leaving.task.cancel()  # ... and before it is taken
        slow.allow(2)
        assert (await asyncio.wait_for(last.task, 5)).text == "colchicine [1]"
        assert (admission.running, admission.waiting) == (0, 0)
        assert admission.outcomes == {"left": 3, "answered": 1}

    asyncio.run(run())
