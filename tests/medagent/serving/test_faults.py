"""Every failure has the right status, says nothing of the inside, and the service goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from medagent.agent import Agent
from medagent.api import question_of
from medagent.errors import InputError, PolicyError
from medagent.policies.scripted import ScriptedPolicy
from medagent.serving.app import make_app
from medagent.serving.middleware import digest
from medagent.serving.openai_form import escaped
from tests.medagent.serving.support import CHAT, Corpus, call, chat, events


def test_wrong_requests_get_openais_errors(policy: Any) -> None:
    for path, body, status, code in [
        ("/v1/answers", {"question": ""}, 400, None),
        ("/v1/answers", {"question": "x" * 8_001}, 400, None),
        ("/v1/answers", {"question": "gout? " * 1000}, 400, "context_length_exceeded"),
        ("/v1/answers", {"question": "x", "options": ["a"] * 11}, 400, None),
        (CHAT, {"model": "gpt", "messages": [{"role": "user", "content": "x"}]}, 404, "model_not_found"),
        (CHAT, {"model": "medagent", "messages": []}, 400, None),
        (CHAT, {"model": "medagent", "messages": [{"role": "assistant", "content": "x"}]}, 400, None),
        (CHAT, {"model": "medagent", "messages": [{"role": "user", "content": "x" * 8_001}]}, 400, None),
        ("/v1/nothing", {}, 404, None),
    ]:
        found = call(policy, "POST", path, json=body)
        assert found.status_code == status
        error = found.json()["error"]
        assert error["message"]
        assert (error["type"], error["code"]) == ("invalid_request_error", code)


def test_bad_bodies_hosts_and_tokens_are_refused(policy: Any) -> None:
    assert call(policy, "POST", "/v1/answers", content=b"{nonsense").status_code == 400
    assert call(policy, "POST", "/v1/answers", content=b"x" * 10_000_000).status_code == 413

    async def in_pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 50_000

    assert call(policy, "POST", "/v1/answers", content=in_pieces()).status_code == 413, "without a length too"
    assert call(policy, "GET", "/v1/models", headers={"Host": "evil.example"}).status_code == 400
    secured = {"tokens": (digest("sesame"),)}
    assert call(policy, "GET", "/v1/models", settings=secured).status_code == 401
    unknown = call(policy, "GET", "/v1/models", settings=secured, headers={"Authorization": "Bearer x"}).json()
    assert unknown["error"]["code"] == "invalid_api_key"
    opened = call(policy, "GET", "/v1/models", settings=secured, headers={"Authorization": "Bearer sesame"})
    assert opened.status_code == 200
    assert call(policy, "GET", "/healthz", settings=secured).status_code == 200
    assert "default-src 'none'" in opened.headers["content-security-policy"]
    assert len(opened.headers["x-request-id"]) == 32


def test_internal_errors_are_not_disclosed(policy: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    down = Corpus()
    down.failing = True

    def breaks(read: str, turn: int) -> str:
        raise PolicyError("secret: /weights are gone")

    def runs_out(read: str, turn: int) -> str:
        raise MemoryError("secret: 139 GiB")

    broken = [(ScriptedPolicy(tokenizer, script), None, 500) for script in (breaks, runs_out)]
    for failing, corpus, status in [(policy, down, 503), *broken]:
        found = call(failing, "POST", "/v1/answers", corpus, json={"question": "x"})
        assert found.status_code == status
        assert "secret" not in found.text
        assert "Traceback" not in found.text
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


def test_paths_outside_the_page_are_not_served(policy: Any) -> None:
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page//etc/passwd", "/..%2f..%2fetc"):
        found = call(policy, "GET", path)
        assert found.status_code == 404
        assert found.json()["error"]["type"] == "invalid_request_error"
        assert call(policy, "GET", "/page/main.js").headers["content-type"].startswith("text/javascript")


def test_requests_from_other_origins_are_refused(policy: Any) -> None:
    asked = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    preflight = call(policy, "OPTIONS", "/v1/answers", headers=asked)
    assert preflight.status_code == 405
    plain = {"Origin": "https://elsewhere.example", "Content-Type": "text/plain"}
    simple = call(policy, "POST", "/v1/answers", headers=plain, content=b'{"question": "x"}')
    assert simple.status_code == 400, "what needs no preflight is no JSON"
    untyped = call(policy, "POST", "/v1/answers", headers={"Origin": plain["Origin"]}, content=b'{"question": "x"}')
    assert untyped.status_code == 400
    for answer in (preflight, simple, untyped):
        assert not [name for name in answer.headers if name.startswith("access-control")]


BLANK = ("\u200b", "\u2800", "\u3164", "\u00ad", "\u200f", "\x01\x02", "\ufeff \u2060")


def test_what_cannot_be_seen_is_no_question(policy: Any) -> None:
    for text in BLANK:
        assert chat(policy, [{"role": "user", "content": text}]).status_code == 400
        for body in ({"question": text}, {"question": "What treats gout?", "options": ["aspirin", text]}):
            assert call(policy, "POST", "/v1/answers", json=body).status_code == 400
        with pytest.raises(InputError, match="empty"):
            question_of(text)


def test_a_body_that_is_no_request_is_told_so(policy: Any) -> None:
    for body, content_type, told in [
        (b"", "application/json", "the body is not a JSON object. Send one."),
        (b"null", "application/json", "the body is not a JSON object. Send one."),
        (b"[1]", "application/json", "the body is not a JSON object. Send one."),
        (b'{"question": ', "application/json", "the body is not valid JSON, from character 13 on."),
        (b"{'question': 'x'}", "application/json", "the body is not valid JSON, from character 1 on."),
        (b"\x1f\x8b\x08\x00\xff", "application/json", "the body cannot be read. Send JSON in UTF-8, not compressed."),
        ('{"question": "Morbus M\u00e9ni\u00e8re"}'.encode("latin-1"), "application/json", "the body cannot be read."),
        (b'{"question": "x"}', "text/plain", "the body is not a JSON object (its content type is text/plain). Send"),
    ]:
        found = call(policy, "POST", "/v1/answers", content=body, headers={"Content-Type": content_type})
        error = found.json()["error"]
        assert (found.status_code, error["param"]) == (400, None)
        assert error["message"].startswith(told)


def test_null_means_absent_and_a_long_conversation_goes_on(policy: Any) -> None:
    earlier = ["What causes gout?"] * 40 + ["x" * 9_000, "\u200b"]
    body = {"question": "How is it treated?", "earlier": earlier, "temperature": None, "stream": None, "seed": -5}
    assert call(policy, "POST", "/v1/answers", json=body).json()["answer"]["asked_as"] == "How is gout treated?"


def test_names_of_models_may_have_slashes(policy: Any) -> None:
    settings = {"name": "org/med"}
    assert call(policy, "GET", "/v1/models/org/med", settings=settings).json()["id"] == "org/med"
    for other in ("medagent%20", "org/other", "a" * 150):
        assert call(policy, "GET", f"/v1/models/{other}", settings=settings).status_code == 404


def test_open_paths_are_open_below_a_path_too(policy: Any) -> None:
    async def below(path: str, **headers: str) -> int:
        app = make_app(Agent(policy, Corpus()), tokens=[digest("secret")])
        transport = httpx.ASGITransport(app=app, root_path="/medagent")
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get(f"/medagent{path}", headers=headers)).status_code

    for path in ("/", "/healthz", "/page/main.js"):
        assert asyncio.run(below(path)) == 200, path
    assert asyncio.run(below("/v1/models")) == 401
    assert asyncio.run(below("/healthz", Host="elsewhere.example")) == 200
    assert asyncio.run(below("/v1/models", Host="elsewhere.example", Authorization="Bearer secret")) == 400


def test_host_names_are_compared_as_browsers_send_them(policy: Any) -> None:
    for served, sent in [
        ("h2.example:8443", "h2.example"),
        ("H2.example", "h2.example:8443"),
        ("B\u00fccher.example", "xn--bcher-kva.example"),
        ("med.example.", "med.example"),
    ]:
        found = call(policy, "GET", "/v1/models", headers={"Host": sent}, settings={"hosts": [served]})
        assert found.status_code == 200


def test_programs_make_no_link_of_a_source() -> None:
    for text in (
        "https://evil.example/x",
        "www.evil.example",
        "a@evil.example",
        "//evil.example/p.png",
        "evil.example",
    ):
        shown = escaped(f"see {text} or")
        assert shown.replace("\u2060", "") == f"see {text} or"
        for pattern in (r"https?://\w", r"www\.\w", r"\w@\w", r"//\w", r"evil\.example"):
            assert not re.search(pattern, shown), pattern


def test_nothing_turns_the_text_around() -> None:
    assert escaped("a\u202eb\x1bc\u200bd") == "abcd"
    assert escaped("A 1.5 mg dose, e.g. i.v., pH 7.4") == "A 1.5 mg dose, e.g. i.v., pH 7.4"


def test_head_is_get_without_its_body(policy: Any) -> None:
    for path in ["/", "/healthz", "/readyz", "/metrics", "/v1/models", "/v1/agent", "/page/main.js"]:
        whole, head = call(policy, "GET", path), call(policy, "HEAD", path)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        refused = call(policy, "POST", path, json={})
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert call(policy, "HEAD", "/v1/answers").status_code == 405
