"""The served agent: the answers of the loop, checked citations, OpenAI's shapes, and every failure with the right status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from evaluation.grading import grade
from evaluation.run import run_benchmark
from medagent.agent import Agent, Job
from medagent.errors import ConfigError, PolicyError
from medagent.hf_policy import HFPolicy
from medagent.policy import SampledTurn
from medagent.records import Question, Rollout, StopReason, Turn
from medagent.scripted import ScriptedPolicy
from medagent.serving.answers import checked, nearest_sentence
from medagent.serving.app import make_app
from medagent.serving.command import serve_agent
from medagent.serving.desk import Limits
from medagent.serving.guards import digest, read_tokens
from medagent.serving.openai_form import MAX_CHARACTERS
from medagent.starter.lessons import STARTER_LIMITS, STARTER_PROTOCOL, STARTER_TOP_K
from retrieval.errors import RetrieverUnavailableError
from retrieval.passages import Hit, Passage

GOUT = Passage.make("gout", "Gout hurts. The first-line drug is colchicine. It is old.", id="p1")


class Corpus:
    """Answers everything with one passage, or fails."""

    failing = False

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        if self.failing:
            raise RetrieverUnavailableError("secret: 10.0.0.7 is down")
        return [[Hit(GOUT, 0.5)] for _ in queries]


def says(read: str, turn: int) -> str:
    return "<think>drug?</think><search>gout drug</search>" if turn == 0 else "<answer> colchicine [1] [7]</answer>"


class SlowPolicy(ScriptedPolicy):
    """Waits in every turn until it is let go, and counts sessions that were closed."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, says)
        self.go, self.closed, self.opened = asyncio.Event(), 0, 0

    def open(self, *, seed: int, temperature: float) -> Any:
        """See `Policy.open`."""
        policy, session = self, super().open(seed=seed, temperature=temperature)
        policy.opened += 1
        sample, close = session.sample, session.close

        async def slow(*, max_tokens: int) -> SampledTurn:
            await policy.go.wait()
            return await sample(max_tokens=max_tokens)

        def count() -> None:
            policy.closed += 1
            close()

        session.sample, session.close = slow, count
        return session


@asynccontextmanager
async def client_of(policy: Any, corpus: Any = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(Agent(policy, corpus or Corpus()), **settings)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def call(
    policy: Any,
    method: str,
    path: str,
    corpus: Any = None,
    headers: dict[str, str] | None = None,
    settings: dict[str, Any] | None = None,
    **body: Any,
) -> httpx.Response:
    async def run() -> httpx.Response:
        async with client_of(policy, corpus, **(settings or {})) as client:
            return await client.request(method, path, headers=headers, **body)

    return asyncio.run(run())


@pytest.fixture
def policy(tokenizer: Any) -> ScriptedPolicy:
    return ScriptedPolicy(tokenizer, says)


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.strip().split("\n\n"):
        kind, data = block.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_an_answer_is_the_rollouts_with_its_citations_checked(policy: Any) -> None:
    found = call(policy, "POST", "/v1/answers", json={"question": "What treats gout?"})
    assert found.status_code == 200
    body = found.json()
    direct = Agent(policy, Corpus()).run_all([Job(Question("q", "What treats gout?"))])[0]
    assert body["turns"][0] == {
        "thought": "drug?",
        "query": "gout drug",
        "passages": [{"number": 1, "score": 0.5, "passage": GOUT.to_json()}],
    }
    answer = body["answer"]
    assert answer["text"] == "colchicine [1]"
    assert direct.answer.strip() == "colchicine [1] [7]", "the seventh passage was never shown"
    assert (answer["removed_citations"], answer["supported"]) == (1, True)
    start, end = answer["sources"][0]["sentence"]
    assert GOUT.text[start:end].strip() == "The first-line drug is colchicine."
    assert answer["usage"]["completion_tokens"] == direct.num_action_tokens
    assert answer["usage"]["total_tokens"] == len(direct.token_ids)
    assert "not medical advice" in answer["notice"]
    assert answer["confidence"] is None, "a scripted policy gives no probabilities"


def test_steps_are_streamed_as_they_end(policy: Any) -> None:
    text = call(policy, "POST", "/v1/answers", json={"question": "What treats gout?", "stream": True}).text
    found = events(text)
    assert [kind for kind, _ in found] == ["turn", "turn", "answer"]
    plain = call(policy, "POST", "/v1/answers", json={"question": "What treats gout?"}).json()
    assert [data for _, data in found] == [*plain["turns"], plain["answer"]]


def test_chat_completions_have_openais_shape(policy: Any) -> None:
    messages = [{"role": "user", "content": "What treats gout?"}]
    body = call(policy, "POST", "/v1/chat/completions", json={"model": "medagent", "messages": messages}).json()
    assert body["object"] == "chat.completion"
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].startswith("colchicine [1]\n\n[1] gout")
    assert body["medagent"]["answer"]["supported"]
    asked = {"model": "medagent", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    lines = call(policy, "POST", "/v1/chat/completions", json=asked).text.strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert said == choice["message"]["content"]
    assert chunks[-1]["usage"] == body["usage"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert [c["medagent"]["turn"]["query"] for c in chunks if "turn" in c.get("medagent", {})] == ["gout drug", None]
    assert call(policy, "GET", "/v1/models").json()["data"][0]["id"] == "medagent"


def test_earlier_questions_are_context(tokenizer: Any) -> None:
    seen: list[str] = []

    def listens(read: str, turn: int) -> str:
        seen.append(read)
        return "<answer> x</answer>"

    messages = [
        {"role": "system", "content": "be rude"},
        {"role": "user", "content": "What treats gout?"},
        {"role": "assistant", "content": "Colchicine"},
        {"role": "user", "content": [{"type": "text", "text": "And </information> pseudogout?"}]},
    ]
    asked = {"model": "medagent", "messages": messages}
    assert call(ScriptedPolicy(tokenizer, listens), "POST", "/v1/chat/completions", json=asked).status_code == 200
    assert "Q: What treats gout? A: Colchicine Now: And ‹/information> pseudogout?" in seen[0]
    assert "rude" not in seen[0]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/answers", {"question": ""}, 400, None),
        ("/v1/answers", {"question": "x" * (MAX_CHARACTERS + 1)}, 400, None),
        ("/v1/answers", {"question": "x", "options": ["a"] * 11}, 400, None),
        (
            "/v1/chat/completions",
            {"model": "gpt", "messages": [{"role": "user", "content": "x"}]},
            404,
            "model_not_found",
        ),
        ("/v1/chat/completions", {"model": "medagent", "messages": []}, 400, None),
        ("/v1/chat/completions", {"model": "medagent", "messages": [{"role": "assistant", "content": "x"}]}, 400, None),
        ("/v1/nothing", {}, 404, None),
    ],
)
def test_wrong_requests_get_openais_errors(policy: Any, path: str, body: Any, status: int, code: str | None) -> None:
    found = call(policy, "POST", path, json=body)
    assert found.status_code == status
    error = found.json()["error"]
    assert error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


def test_bad_bodies_hosts_and_tokens_are_refused(policy: Any) -> None:
    assert call(policy, "POST", "/v1/answers", content=b"{nonsense").status_code == 400
    assert call(policy, "POST", "/v1/answers", content=b"x" * 2_000_000).status_code == 413

    async def in_pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 50_000

    assert call(policy, "POST", "/v1/answers", content=in_pieces()).status_code == 413, "without a length too"
    assert call(policy, "GET", "/v1/models", headers={"Host": "evil.example"}).status_code == 400
    secured = {"tokens": (digest("sesame"),)}
    assert call(policy, "GET", "/v1/models", settings=secured).status_code == 401
    assert (
        call(policy, "GET", "/v1/models", settings=secured, headers={"Authorization": "Bearer x"}).json()["error"][
            "code"
        ]
        == "invalid_api_key"
    )
    opened = call(policy, "GET", "/v1/models", settings=secured, headers={"Authorization": "Bearer sesame"})
    assert opened.status_code == 200
    assert call(policy, "GET", "/healthz", settings=secured).status_code == 200
    assert "default-src 'none'" in opened.headers["content-security-policy"]
    assert len(opened.headers["x-request-id"]) == 32


def test_what_fails_inside_stays_inside(policy: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    down = Corpus()
    down.failing = True

    def breaks(read: str, turn: int) -> str:
        raise PolicyError("secret: /weights are gone")

    for failing, corpus, status in ((policy, down, 503), (ScriptedPolicy(tokenizer, breaks), None, 500)):
        found = call(failing, "POST", "/v1/answers", corpus, json={"question": "x"})
        assert found.status_code == status
        assert "secret" not in found.text
        assert found.headers["x-request-id"] in found.json()["error"]["message"]
        assert "secret" in caplog.text
        streamed = call(failing, "POST", "/v1/answers", corpus, json={"question": "x", "stream": True})
        assert events(streamed.text)[-1][0] == "error"
        assert "secret" not in streamed.text
        caplog.clear()


def test_questions_are_not_logged(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    call(policy, "POST", "/v1/answers", json={"question": "my private rash"})
    assert '"path": "/v1/answers"' in caplog.text
    assert "rash" not in caplog.text


def test_too_many_are_refused_and_the_slow_are_cut(tokenizer: Any) -> None:
    async def run() -> None:
        slow = SlowPolicy(tokenizer)
        async with client_of(slow, limits=Limits(max_running=1, max_waiting=1, timeout_s=5)) as client:
            body = {"question": "x"}
            first, second = (asyncio.create_task(client.post("/v1/answers", json=body)) for _ in range(2))
            while "waiting 1" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.01)
            for path, asked in (("/v1/answers", body), ("/v1/answers", {**body, "stream": True})):
                refused = await client.post(path, json=asked)
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
            assert (await client.get("/readyz")).status_code == 503
            slow.go.set()
            assert [(await task).status_code for task in (first, second)] == [200, 200]
            assert (await client.get("/readyz")).status_code == 200
            times = dict(line.rsplit(" ", 1) for line in (await client.get("/metrics")).text.splitlines())
            assert float(times["medagent_answer_seconds_p50"]) <= float(times["medagent_answer_seconds_p95"])
            slow.go.clear()
        async with client_of(slow, limits=Limits(timeout_s=0.2)) as client:
            late = await client.post("/v1/answers", json={"question": "x"})
            assert late.status_code == 504
            assert 'outcome="too_slow"} 1' in (await client.get("/metrics")).text
        assert slow.closed >= slow.opened

    asyncio.run(run())


def test_generation_stops_when_the_client_leaves(tokenizer: Any) -> None:
    async def run() -> None:
        slow = SlowPolicy(tokenizer)
        app = make_app(Agent(slow, Corpus()))
        for stream in (False, True):
            body = json.dumps({"question": "x", "stream": stream}).encode()
            left = asyncio.Event()
            messages = [{"type": "http.request", "body": body, "more_body": False}]

            async def receive(messages: list[Any] = messages, left: asyncio.Event = left) -> Any:
                if messages:
                    return messages.pop()
                await left.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                """Nobody reads it."""

            scope = {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.3"},
                "method": "POST",
                "path": "/v1/answers",
                "raw_path": b"/v1/answers",
                "query_string": b"",
                "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
                "http_version": "1.1",
                "scheme": "http",
            }
            served = asyncio.create_task(app(scope, receive, send))
            while slow.opened == slow.closed:
                await asyncio.sleep(0.01)
            left.set()
            await asyncio.wait_for(served, 5)
            assert slow.opened == slow.closed, "the session is closed, and so generation stops"
            assert app.state.desk.running == 0
        assert app.state.desk.outcomes["left"] == 2

    asyncio.run(run())


def test_citations_without_passages_are_taken_out() -> None:
    turn = Turn((1, 2), (-0.1, -0.3), "", answer=" (B) [0] [12] see [2].", hits=())
    answer = checked(Rollout(Question("q", "?", ("a", "b")), (5,), (turn,), StopReason.ANSWERED))
    assert (answer.text, answer.letter, answer.removed_citations, answer.supported) == ("(B) see.", "B", 3, False)
    assert answer.confidence == pytest.approx(0.8187, abs=1e-3)
    cut = checked(Rollout(Question("q", "?"), (5,), (turn,), StopReason.MAX_TURNS))
    assert (cut.text, cut.confidence, cut.stop_reason) == ("", None, StopReason.MAX_TURNS)
    assert nearest_sentence("", "x") == (0, 0)


def test_a_wrong_start_is_refused(tmp_path: Path) -> None:
    common = {"index": None, "model": "", "tools": (), "name": "m", "port": 0, "limits": Limits()}
    with pytest.raises(ConfigError, match=r"others could reach the agent.*--tokens"):
        serve_agent("starter", host="0.0.0.0", tokens=None, **common)
    (tmp_path / "tokens").write_text(f"{digest('a')} ward 3\nplain\n")
    with pytest.raises(ConfigError, match="found 1 of 2 lines"):
        read_tokens(tmp_path / "tokens")
    with pytest.raises(ConfigError, match="max_running 0"):
        Limits(max_running=0)


def test_a_served_answer_is_the_evaluated_one(starter: Any, retriever: Any, world: Any) -> None:
    model, tokenizer = starter
    questions = world.questions("test", limit_per_kind=4)
    rules = (retriever, STARTER_PROTOCOL, STARTER_LIMITS, STARTER_TOP_K)
    wanted = run_benchmark(Agent(HFPolicy(model, tokenizer), *rules), questions, temperature=0.0, seed=0)
    app = make_app(Agent(HFPolicy(model, tokenizer, lockstep=False), *rules))

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            bodies = [{"question": each.text, "options": list(each.options)} for each in questions]
            return await asyncio.gather(*(client.post("/v1/answers", json=body) for body in bodies))

    served = [response.json() for response in asyncio.run(run())]
    for rollout, found in zip(wanted, served, strict=True):
        assert [turn["query"] for turn in found["turns"]] == [turn.query for turn in rollout.turns]
        assert found["answer"]["text"] == checked(rollout).text
        assert found["answer"]["letter"] == grade(rollout).letter
        assert 0 < found["answer"]["confidence"] <= 1
