"""A remote policy against a small endpoint that speaks the chat protocol, and misbehaves as real ones do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest

from medagent.agent import Agent, Job
from medagent.cli.main import main
from medagent.errors import PolicyError
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.policies import http_endpoint
from medagent.policies.chat_endpoint import RemotePolicy, _closed, byte_tokenizer
from medagent.protocol import TagProtocol
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.passages import Hit, Passage
from medagent.types import Limits, Question, Rollout, StopReason

QUESTION = Question("q", "Which drug lowers urate?", ("aspirin", "allopurinol"), "B")
RIGHT = {"choices": [{"message": {"content": "<answer>(B)"}, "finish_reason": "stop"}]}


def chat(*texts: str) -> list[tuple[int, dict[str, str], Any]]:
    """A reply for each text."""
    return [(200, {}, said(content=text)) for text in texts]


def said(finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish_reason}]}


class ReplayedEndpoint(ThreadingHTTPServer):
    """Answers each request with the next of `replies`, the last one again and again: (status, headers, body)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ReplayHandler)
        self.replies: list[tuple[int, dict[str, str], Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class ReplayHandler(BaseHTTPRequestHandler):
    server: ReplayedEndpoint

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers.get("Authorization"))
        replies = self.server.replies
        status, headers, body = replies.pop(0) if len(replies) > 1 else replies[0]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: object) -> None:
        """Be silent."""


@pytest.fixture
def endpoint() -> Iterator[ReplayedEndpoint]:
    server = ReplayedEndpoint()
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Finds:
    def search(self, queries, *, top_k):
        return [[Hit(Passage("p", "gout", "Allopurinol is for gout."), 1.0)] for _ in queries]


def asked(endpoint: ReplayedEndpoint, **settings: Any) -> Rollout:
    policy = RemotePolicy(endpoint.url, "m", **{"backoff_s": 0.001, **settings})
    (rollout,) = Agent(policy, NoRetriever(), TagProtocol(), Limits(2, 64, 2_000, 20_000)).run_all([Job(QUESTION)])
    return rollout


def test_what_says_when_to_ask_again_is_asked_then_however_often(endpoint) -> None:
    endpoint.replies = [(429, {"Retry-After": "0.01"}, {})] * 9 + [(200, {}, RIGHT)]
    assert asked(endpoint, retries=1).answer == "(B)"
    assert len(endpoint.requests) == 10


def test_the_wait_is_the_one_that_is_told(endpoint, slept) -> None:
    endpoint.replies = [(429, {"Retry-After": "40"}, {}), (529, {"Retry-After": "soon"}, {}), (200, {}, RIGHT)]
    assert asked(endpoint).answer == "(B)"
    assert slept == [40.0, 0.001]
    slept.clear()
    endpoint.replies = [(429, {"Retry-After": "700"}, {})]
    with pytest.raises(PolicyError, match="no answer after 2 attempts"):
        asked(endpoint, retries=1)
    assert slept == [700.0, 700.0, 0.001]  # no more than half an hour in all


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(http_endpoint.asyncio, "sleep", sleep)
    return waits


def test_a_date_to_ask_again_is_read_by_the_servers_clock(endpoint, slept) -> None:
    dates = {"Date": "Fri, 31 Dec 1999 23:59:20 GMT", "Retry-After": "Sat, 01 Jan 2000 00:00:00 GMT"}
    answer = httpx.Response(429, headers=dates)
    assert http_endpoint.retry_after_s(answer) == 40.0
    assert http_endpoint.retry_after_s(httpx.Response(429, headers={"Retry-After": "soon"})) is None
    assert http_endpoint.retry_after_s(httpx.Response(429, headers={"Retry-After": dates["Date"]})) == 0.0
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    endpoint.replies = [(429, {"Retry-After": soon}, {}), (200, {}, RIGHT)]
    assert asked(endpoint).answer == "(B)"
    assert 25 < slept[0] <= 30


def test_a_limit_without_a_time_is_asked_again_for_half_an_hour(endpoint, slept, capsys) -> None:
    endpoint.replies = [(429, {}, "requests per minute")]
    with pytest.raises(PolicyError, match="no answer after 2 attempts"):
        asked(endpoint, retries=1, backoff_s=1.0)
    assert slept[:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert sum(slept) == pytest.approx(1_800, abs=60)
    assert capsys.readouterr().err.count("limits requests (status 429") == 1


@pytest.mark.parametrize("said", ["insufficient_quota", "free-models-per-day", "Request too large: 9 tokens per min"])
def test_a_limit_that_no_minute_lifts_is_not_waited_for(endpoint, slept, said) -> None:
    endpoint.replies = [(429, {}, said)]
    with pytest.raises(PolicyError, match="no answer after 3 attempts"):
        asked(endpoint, retries=2)
    assert slept == [0.001, 0.002]


def test_what_asks_for_no_wait_is_not_asked_without_end(endpoint) -> None:
    endpoint.replies = [(429, {"Retry-After": "0"}, {})]
    with pytest.raises(PolicyError, match="no answer after 3 attempts"):
        asked(endpoint, retries=2)
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Provider returned error", "code": 502}},
        {"error": {"message": "overloaded", "code": "529"}},
        {"error": "upstream"},
        {"choices": [{"error": {"code": 503}, "finish_reason": "error", "message": {"content": ""}}]},
        {"choices": [{"error": {"code": 429}, "finish_reason": None, "message": {"content": None}}]},
        said("error", content="The answer is A if"),
    ],
)
def test_an_error_inside_a_success_is_asked_again(endpoint, body) -> None:
    endpoint.replies = [(200, {}, body), (200, {}, RIGHT)]
    assert asked(endpoint).answer == "(B)"
    assert len(endpoint.requests) == 2


def test_an_error_inside_a_success_that_does_not_pass_is_said(endpoint) -> None:
    endpoint.replies = [(200, {}, {"error": {"message": "no such model", "code": 404}})]
    with pytest.raises(PolicyError, match="no such model"):
        asked(endpoint)
    assert len(endpoint.requests) == 1


def test_a_refused_parameter_is_left_out_from_then_on(endpoint, capsys) -> None:
    def unsupported(name: str) -> tuple[int, dict[str, str], Any]:
        return 400, {}, {"error": {"message": f"Unsupported parameter: '{name}' is not supported.", "param": name}}

    endpoint.replies = [unsupported("max_tokens"), unsupported("temperature"), unsupported("stop"), (200, {}, RIGHT)]
    assert asked(endpoint, parameters={"reasoning_effort": "low"}).answer == "(B)"
    first, *_, last = endpoint.requests
    assert {"max_tokens", "temperature", "stop", "seed", "reasoning_effort"} <= first.keys()
    assert last.keys() == {"model", "messages", "max_completion_tokens", "seed", "reasoning_effort"}
    assert last["max_completion_tokens"] == first["max_tokens"]
    told = capsys.readouterr().err
    assert "m takes no max_tokens; max_completion_tokens is sent" in told
    assert "m takes no temperature; it is left out" in told
    endpoint.replies = [unsupported("seed"), unsupported("seed")]
    with pytest.raises(PolicyError, match="Unsupported parameter: 'seed'"):
        asked(endpoint)


def test_requests_at_once_all_learn_what_one_of_them_learns_first(endpoint) -> None:
    refusal = {"error": {"message": "Unsupported value: 'temperature' does not support 0."}}
    endpoint.replies = [(400, {}, refusal)] * 3 + [(200, {}, RIGHT)]
    policy = RemotePolicy(endpoint.url, "m", backoff_s=0.001)
    agent = Agent(policy, NoRetriever(), TagProtocol(), Limits(2, 64, 2_000, 20_000))
    rollouts = agent.run_all([Job(QUESTION, sample=sample) for sample in range(3)])
    assert [rollout.answer for rollout in rollouts] == ["(B)"] * 3


@pytest.mark.parametrize(
    "reply",
    [
        (200, {}, {"error": {"code": 403, "message": "input flagged by moderation"}}),
        (400, {}, {"error": {"code": "invalid_prompt", "message": "flagged as violating the usage policy"}}),
        (400, {}, {"error": {"code": "content_filter", "message": "The response was filtered"}}),
        (200, {}, said("content_filter", content="")),
        (200, {}, said("content_filter", content="<answer>(B)</answer>")),
    ],
)
def test_a_filter_is_this_questions_error(endpoint, reply) -> None:
    endpoint.replies = [reply]
    rollout = asked(endpoint)
    assert (rollout.stop_reason, rollout.error) == (StopReason.REFUSED, "refused by the endpoint's content filter")
    result = grade(rollout)
    assert (result.verdict, result.refused, result.lenient_correct) == (Verdict.ERROR, False, False)


def test_a_models_own_refusal_is_read(endpoint) -> None:
    endpoint.replies = [(200, {}, said(content=None, refusal="I'm sorry, but I can't help with that."))]
    assert grade(asked(endpoint)).refused


@pytest.mark.parametrize(
    "reply",
    [
        (400, {}, {"error": {"code": "context_length_exceeded", "message": "maximum context"}}),
        (200, {}, {"error": {"code": 400, "message": "maximum context length exceeded"}}),
        (200, {}, {"choices": [{"message": {"role": "assistant"}, "finish_reason": "length"}]}),
    ],
)
def test_a_text_that_is_too_long_is_cut_off_and_not_refused(endpoint, reply) -> None:
    endpoint.replies = [reply]
    rollout = asked(endpoint)
    assert rollout.stop_reason.truncated
    assert grade(rollout).verdict is Verdict.NO_ANSWER


def test_thoughts_that_come_apart_are_no_answer(endpoint) -> None:
    endpoint.replies = [(200, {}, said(content="<answer>(B)", reasoning_content="Is it (A)?"))]
    assert asked(endpoint).answer == "(B)"
    parts = [{"type": "thinking", "thinking": ["A?"]}, {"type": "text", "text": "<answer>(B)"}]
    endpoint.replies = [(200, {}, said(content=parts))]
    assert asked(endpoint).answer == "(B)"
    endpoint.replies = [(200, {}, said("length", content="", reasoning_content="The answer is (B), but"))]
    rollout = asked(endpoint)
    assert rollout.stop_reason.truncated
    assert grade(rollout).lenient_letter is None


def test_parameters_are_given_on_the_command_line(endpoint, tmp_path) -> None:
    endpoint.replies = [(200, {}, RIGHT)]
    (tmp_path / "q.jsonl").write_text('{"question": "Which drug?", "options": ["aspirin", "zinc"], "answer": "B"}\n')
    command = ["evaluate", "--agent", endpoint.url, "--model", "m", "--benchmark", "jsonl", "--modes", "closed_book"]
    command += ["--path", str(tmp_path / "q.jsonl"), "--out", str(tmp_path / "out")]
    assert main([*command, "--parameters", '{"reasoning_effort": "low"}']) == 0
    assert endpoint.requests[0]["reasoning_effort"] == "low"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["parameters"] == {"reasoning_effort": "low"}


def agent(endpoint: ReplayedEndpoint, **settings: Any) -> Agent:
    policy = RemotePolicy(endpoint.url, "m", api_key="secret", backoff_s=0.01, **settings)
    return Agent(policy, Finds(), TagProtocol(), Limits(4, 64, 2_000, 20_000))


def test_bytes_go_in_and_out_unchanged() -> None:
    tokenizer = byte_tokenizer()
    for text in ("plain", "Ménière’s 10⁹/L\n\n  tab\t", "<search>x</search>"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_a_dialogue_over_the_chat_protocol(endpoint: ReplayedEndpoint) -> None:
    endpoint.replies = chat("<think>hm</think><search>gout drug", "<answer>(B) [1]")
    (rollout,) = agent(endpoint).run_all([Job(QUESTION, seed=7, temperature=0.0)])
    assert (rollout.stop_reason, rollout.answer, rollout.num_searches) == (StopReason.ANSWERED, "(B) [1]", 1)
    first, second = endpoint.requests
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == "<think>hm</think><search>gout drug</search>"
    assert "Allopurinol is for gout [1]." in second["messages"][2]["content"]
    assert first["stop"] == ["</search>", "</answer>"]
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("m", 64, 0.0)
    assert set(endpoint.keys) == {"Bearer secret"}


def test_lasting_failures_are_explained(endpoint: ReplayedEndpoint) -> None:
    endpoint.replies = [(503, {}, "busy")]
    with pytest.raises(PolicyError, match=r"no answer after 2 attempts \(status 503: .busy"):
        agent(endpoint, retries=1).run_all([Job(QUESTION)])
    endpoint.replies = [(401, {}, "who are you?")]
    with pytest.raises(PolicyError, match="status 401: .who are you"):
        agent(endpoint).run_all([Job(QUESTION)])
    gone = RemotePolicy("http://127.0.0.1:9/v1", "m", retries=1, backoff_s=0.01)
    with pytest.raises(PolicyError, match="ConnectError"):
        Agent(gone, Finds()).run_all([Job(QUESTION)])


def test_a_chat_endpoint_cannot_have_its_turn_opened(endpoint: ReplayedEndpoint) -> None:
    with pytest.raises(PolicyError, match="forced_search"):
        agent(endpoint).run_all([Job(QUESTION, force_search=True)])


def test_the_tag_opened_last_is_the_one_that_is_closed(endpoint: ReplayedEndpoint) -> None:
    endpoint.replies = chat("<think>I could use <search> but no</think><answer>(B)")
    (rollout,) = agent(endpoint).run_all([Job(QUESTION)])
    assert rollout.answer == "(B)"


def test_endpoints_without_a_chat_completion_are_explained(endpoint: ReplayedEndpoint) -> None:
    endpoint.replies = [(200, {}, {"choices": ["x"]})]
    with pytest.raises(PolicyError, match=r"no answer after 2 attempts \(status 502 inside a 200: ..choices"):
        agent(endpoint, retries=1).run_all([Job(QUESTION)])
    endpoint.replies = [(200, {}, {"choices": [{"text": "x"}]})]
    with pytest.raises(PolicyError, match="wanted a chat completion"):
        agent(endpoint).run_all([Job(QUESTION)])
    with pytest.raises(PolicyError, match="Check the address"):
        Agent(RemotePolicy("http://localhost:notaport/v1", "m"), Finds()).run_all([Job(QUESTION)])


@pytest.mark.parametrize("text", ["<answer>(A)", "<answer>(A)<", "<answer>(A)</answer", "<answer>(A)</answer>"])
def test_an_end_tag_that_the_endpoint_cut_is_completed_once(text: str) -> None:
    assert _closed(text, TagProtocol().blocks) == "<answer>(A)</answer>"
    assert _closed(f"<search>x</search> {text}", TagProtocol().blocks) == "<search>x</search> <answer>(A)</answer>"
