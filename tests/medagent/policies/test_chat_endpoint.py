"""A remote policy against a small endpoint that speaks the chat protocol, and misbehaves on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from medagent.agent import Agent, Job
from medagent.errors import PolicyError
from medagent.policies.chat_endpoint import RemotePolicy, _closed, byte_tokenizer
from medagent.protocol import TagProtocol
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Limits, Question, StopReason

QUESTION = Question("q", "What treats gout?", ("aspirin", "allopurinol"), "B")


class Endpoint(ThreadingHTTPServer):
    """Answers each request with the next of `replies`: (status, text, finish reason)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies: list[tuple[int, str, str]] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers.get("Authorization"))
        status, text, reason = self.server.replies.pop(0)
        body = (
            json.dumps({"choices": [{"message": {"content": text}, "finish_reason": reason}]})
            if status == 200
            else text
        )
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: object) -> None:
        """Be silent."""


class Finds:
    def search(self, queries, *, top_k):
        return [[Hit(Passage("p", "gout", "Allopurinol is for gout."), 1.0)] for _ in queries]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def agent(endpoint: Endpoint, **settings: Any) -> Agent:
    policy = RemotePolicy(endpoint.url, "m", api_key="secret", backoff_s=0.01, **settings)
    return Agent(policy, Finds(), TagProtocol(), Limits(4, 64, 2_000, 20_000))


def test_bytes_go_in_and_out_unchanged() -> None:
    tokenizer = byte_tokenizer()
    for text in ("plain", "Ménière’s 10⁹/L\n\n  tab\t", "<search>x</search>"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_a_dialogue_over_the_chat_protocol(endpoint: Endpoint) -> None:
    endpoint.replies = [(200, "<think>hm</think><search>gout drug", "stop"), (200, "<answer>(B) [1]", "stop")]
    (rollout,) = agent(endpoint).run_all([Job(QUESTION, seed=7, temperature=0.0)])
    assert (rollout.stop_reason, rollout.answer, rollout.num_searches) == (StopReason.ANSWERED, "(B) [1]", 1)
    first, second = endpoint.requests
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == "<think>hm</think><search>gout drug</search>"
    assert "Allopurinol is for gout [1]." in second["messages"][2]["content"]
    assert first["stop"] == ["</search>", "</answer>"]
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("m", 64, 0.0)
    assert set(endpoint.keys) == {"Bearer secret"}


@pytest.mark.parametrize(
    ("text", "reason", "stop"),
    [
        ("I would say allopurinol.", "stop", StopReason.MALFORMED),
        ("<answer>(B", "length", StopReason.MAX_TURN_TOKENS),
        ("<answer>(B)</answer>", "stop", StopReason.ANSWERED),
    ],
)
def test_how_a_turn_ends(endpoint: Endpoint, text: str, reason: str, stop: StopReason) -> None:
    endpoint.replies = [(200, text, reason)]
    (rollout,) = agent(endpoint).run_all([Job(QUESTION)])
    assert rollout.stop_reason is stop


def test_temporary_failures_are_retried(endpoint: Endpoint) -> None:
    endpoint.replies = [(503, "busy", ""), (429, "slow down", ""), (200, "<answer>(B)", "stop")]
    (rollout,) = agent(endpoint).run_all([Job(QUESTION)])
    assert rollout.answer == "(B)"
    assert len(endpoint.requests) == 3


def test_lasting_failures_are_explained(endpoint: Endpoint) -> None:
    endpoint.replies = [(503, "busy", "")] * 2
    with pytest.raises(PolicyError, match=r"no answer after 2 attempts \(status 503: busy"):
        agent(endpoint, retries=1).run_all([Job(QUESTION)])
    endpoint.replies = [(401, "who are you?", "")]
    with pytest.raises(PolicyError, match="status 401: who are you"):
        agent(endpoint).run_all([Job(QUESTION)])
    gone = RemotePolicy("http://127.0.0.1:9/v1", "m", retries=1, backoff_s=0.01)
    with pytest.raises(PolicyError, match="ConnectError"):
        Agent(gone, Finds()).run_all([Job(QUESTION)])


def test_a_chat_endpoint_cannot_have_its_turn_opened(endpoint: Endpoint) -> None:
    with pytest.raises(PolicyError, match="forced_search"):
        agent(endpoint).run_all([Job(QUESTION, force_search=True)])


def test_one_refused_question_is_recorded_and_the_run_goes_on(endpoint: Endpoint) -> None:
    endpoint.replies = [
        (400, "The response was filtered by our content management policy", ""),
        (200, "<answer>(B)", "stop"),
    ]
    refused, answered = agent(endpoint).run_all([Job(QUESTION)], max_open=1) + agent(endpoint).run_all([Job(QUESTION)])
    assert (refused.stop_reason, refused.answer) == (StopReason.REFUSED, None)
    assert answered.stop_reason is StopReason.ANSWERED


def test_the_tag_opened_last_is_the_one_that_is_closed(endpoint: Endpoint) -> None:
    endpoint.replies = [(200, "<think>I could use <search> but no</think><answer>(B)", "stop")]
    (rollout,) = agent(endpoint).run_all([Job(QUESTION)])
    assert rollout.answer == "(B)"


def test_endpoints_without_a_chat_completion_are_explained(endpoint: Endpoint) -> None:
    endpoint.replies = [(200, "", "")]
    endpoint.RequestHandlerClass = Strange  # type: ignore[assignment]
    with pytest.raises(PolicyError, match="wanted a chat completion"):
        agent(endpoint).run_all([Job(QUESTION)])
    with pytest.raises(PolicyError, match="Check the address"):
        Agent(RemotePolicy("http://localhost:notaport/v1", "m"), Finds()).run_all([Job(QUESTION)])


class Strange(Handler):
    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"choices": ["x"]}')


@pytest.mark.parametrize("said", ["<answer>(A)", "<answer>(A)<", "<answer>(A)</answer", "<answer>(A)</answer>"])
def test_an_end_tag_that_the_endpoint_cut_is_completed_once(said: str) -> None:
    assert _closed(said, TagProtocol().blocks) == "<answer>(A)</answer>"
    assert _closed(f"<search>x</search> {said}", TagProtocol().blocks) == "<search>x</search> <answer>(A)</answer>"
