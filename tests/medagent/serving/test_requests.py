"""Requests as clients send them: what is refused says so, and utility prompts are answered without the agent."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from medagent.agent import Agent
from medagent.errors import ConfigError
from medagent.evidence.check import EvidenceCheck
from medagent.policies.scripted import ScriptedPolicy
from medagent.retrieval.filters import Filter
from medagent.retrieval.passages import Hit, Passage
from medagent.serving.app import make_app
from medagent.serving.openai_form import content_of, escaped
from medagent.serving.page import MAX_EXAMPLES, Example, Feedback, read_examples
from medagent.serving.rewriting import ModelRewriter
from medagent.serving.settings import AdmissionLimits
from tests.medagent.serving.support import CHAT, Corpus, Stepwise, call, chat, client_of, events, holds, says
from tests.recording import Finds

ASKED = {"role": "user", "content": "What treats gout?"}


def test_what_would_change_the_answers_shape_is_refused(policy: Any) -> None:
    for more, param in [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"logprobs": True}, "logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"guided_choice": ["yes", "no"]}, "guided_choice"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"format": "json"}, "format"),
        ({"text": {"format": {"type": "json_object"}}}, "text"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ]:
        found = chat(policy, [ASKED], **more)
        assert (found.status_code, found.json()["error"]["param"]) == (400, param)


def test_what_changes_nothing_is_taken(policy: Any) -> None:
    unchanged = {
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "tools": [{"type": "function"}],
        "top_p": 1,
    }
    assert chat(policy, [ASKED], **unchanged).status_code == 200


def test_attachments_are_refused_and_earlier_ones_forgiven(policy: Any) -> None:
    for kind in ["image_url", "input_audio", "file"]:
        shown = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {}}]}
        found = chat(policy, [shown])
        assert found.status_code == 400
        assert kind in found.json()["error"]["message"]
        assert chat(policy, [shown, {"role": "assistant", "content": "?"}, ASKED]).status_code == 200


def test_an_emergency_is_heard_in_what_was_said_before(policy: Any) -> None:
    for said, following in (
        ("My father is unconscious.", "What should I do?"),
        ("I took 30 pills", "What treats gout?"),
    ):
        messages = [{"role": "user", "content": said}, {"role": "assistant", "content": "?"}]
        body = chat(policy, [*messages, {"role": "user", "content": following}]).json()
        assert body["choices"][0]["message"]["content"].startswith("**This may be an emergency.")


def test_a_long_chat_goes_on(policy: Any) -> None:
    for exchanges in (5, 40):
        messages = [each for _ in range(exchanges) for each in (ASKED, {"role": "assistant", "content": "colchicine"})]
        body = chat(policy, [*messages, {"role": "user", "content": "And how is it treated?"}]).json()
        assert body["medagent"]["answer"]["asked_as"] == "How is gout treated?"
        assert "*Asked as: How is gout treated?*" in body["choices"][0]["message"]["content"]


def test_a_model_may_complete_what_is_asked(policy: Any) -> None:
    asked = "Sure, but what would you give a woman who has had it twice?"
    whole = "What would you give a woman who has had gout twice?"
    rewriter = ModelRewriter(ScriptedPolicy(policy.tokenizer, lambda read, turn: whole))
    messages = [ASKED, {"role": "assistant", "content": "colchicine"}, {"role": "user", "content": asked}]
    sent = {"model": "medagent", "messages": messages}
    chat_answer = call(policy, "POST", CHAT, settings={"rewriter": rewriter}, json=sent).json()["medagent"]["answer"]
    sent = {"question": asked, "earlier": [ASKED["content"]]}
    answer = call(policy, "POST", "/v1/answers", settings={"rewriter": rewriter}, json=sent).json()["answer"]
    assert chat_answer["asked_as"] == answer["asked_as"] == whole


def test_a_full_service_asks_no_model_to_rewrite(tokenizer: Any) -> None:
    asked: list[str] = []
    rewriter = ModelRewriter(ScriptedPolicy(tokenizer, lambda read, turn: asked.append(read) or ""))

    async def run() -> None:
        slow, limits = Stepwise(tokenizer), AdmissionLimits(max_running=1, max_waiting=0)
        async with client_of(slow, limits=limits, rewriter=rewriter) as client:
            first = asyncio.create_task(client.post("/v1/answers", json={"question": "What causes gout?"}))
            await holds(lambda: slow.opened > 0)
            body = {"question": "How is it treated?", "earlier": ["What causes gout?"]}
            assert [(await client.post("/v1/answers", json=body)).status_code for _ in range(3)] == [429] * 3
            slow.allow(2)
            await first

    asyncio.run(run())
    assert not asked


def test_nothing_of_the_corpus_is_markup_in_a_chat(tokenizer: Any) -> None:
    hostile = Passage.make(
        "gout ![.](https://evil.example/p.png) <img src=x>",
        "The first-line drug is colchicine.",
        source="[guideline](javascript:alert(1))\n\n# Forged",
        id="p",
    )

    asked = {"model": "medagent", "messages": [{"role": "user", "content": "Which drug for gout?"}]}
    body = call(ScriptedPolicy(tokenizer, says), "POST", CHAT, Finds(hostile), json=asked).json()
    text = body["choices"][0]["message"]["content"]
    assert "colchicine [1]" in text
    answer = body["medagent"]["answer"]
    quoted = [{"passage": hostile.to_json(), "sentence": [0, 34], "scope": "![x](y)"}]
    lacking = content_of({**answer, "withheld": True, "quoted": quoted, "urgent": "Call [x](y)"})
    assert not re.search(r"\]\(|(?<!\\)<|\n# ", text + lacking)
    shown = escaped("a [1][2]: http://x [^3] A&E")
    assert shown.replace("\u2060", "_") == "a [1]_[2]_: http_:/_/x [_^3] A&E", "a definition of a link is one too"
    block = escaped("Title\n===\n# H\r- item\n1. one\n    code\nwww.x.example a@b.example $x$", paragraphs=True)
    assert not re.search(r"(?m)^[#=+-]|^ {4}|^\d+\.|www\.|(?<!\u2060)@|(?<!\\)\$", block)


def test_methods_and_models(policy: Any) -> None:
    wrong = call(policy, "GET", "/v1/answers")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert call(policy, "GET", "/v1/models/medagent").json()["id"] == "medagent"
    assert call(policy, "GET", "/v1/models/other").status_code == 404


def test_without_a_seed_samples_differ(tokenizer: Any) -> None:
    seeds: list[int] = []

    class Seeing(ScriptedPolicy):
        def open(self, **settings: Any) -> Any:
            seeds.append(settings["seed"])
            return super().open(**settings)

    policy = Seeing(tokenizer, lambda read, turn: "<answer> x</answer>")
    for _ in range(2):
        chat(policy, [ASKED], temperature=1.0)
        call(policy, "POST", "/v1/answers", json={"question": "gout?", "temperature": 1.0})
    chat(policy, [ASKED], temperature=1.0, seed=7)
    assert len(set(seeds[:4])) == 4
    assert seeds[4] == 7


def test_a_reported_answer_is_kept_with_its_rollout(policy: Any, tmp_path: Path) -> None:
    file = tmp_path / "feedback.jsonl"

    async def run() -> None:
        async with client_of(policy, feedback=Feedback(file)) as client:
            plain = (await client.post("/v1/answers", json={"question": "What treats gout?"})).json()
            streamed = await client.post("/v1/answers", json={"question": "What treats gout?", "stream": True})
            id_ = dict(events(streamed.text))["id"]["id"]
            for each in (plain["id"], id_):
                told = await client.post("/v1/feedback", json={"id": each, "right_answer": "NSAID", "note": "old"})
                assert told.status_code == 200
            assert (await client.post("/v1/feedback", json={"id": "unknown"})).status_code == 404

    asyncio.run(run())
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(row["question"], row["answer"], row["wrong"]) for row in rows] == [
        ("What treats gout?", "NSAID", True)
    ] * 2
    assert rows[0]["turns"] == rows[1]["turns"]
    assert rows[1]["said"]["text"] == "colchicine [1]"
    assert call(policy, "POST", "/v1/feedback", json={"id": "x"}).status_code == 404, "this service keeps none"
    with pytest.raises(ConfigError, match="cannot be written"):
        Feedback(tmp_path / "no" / "folder.jsonl")


def test_an_operator_who_shows_everything_sees_the_verdict(policy: Any) -> None:
    settings = {"check": EvidenceCheck(shown="all")}
    body = call(policy, "POST", "/v1/answers", settings=settings, json={"question": "What treats measles?"}).json()
    assert body["answer"]["text"] == "colchicine [1]"
    assert body["answer"]["verdict"]["kind"] == "something_else"
    assert not body["answer"]["supported"]


class Filtering(Corpus):
    """A corpus that keeps with which filter it was searched."""

    def __init__(self) -> None:
        super().__init__()
        self.filters: list[str] = []

    def search_where(self, queries: Any, *, top_k: int, where: Filter) -> list[list[Hit]]:
        """See `FilteringRetriever`."""
        self.filters.append(str(where))
        return self.search(queries, top_k=top_k)


def test_a_filter_holds_for_every_search_of_an_answer(policy: Any) -> None:
    for path in ["/v1/answers", CHAT]:
        corpus, body = Filtering(), {"where": "year >= 2010 type=guideline"}
        asked = {"model": "medagent", "messages": [ASKED]} if path == CHAT else {"question": "What treats gout?"}
        found = call(policy, "POST", path, corpus, json={**asked, **body})
        assert found.status_code == 200
        assert set(corpus.filters) == {"year>=2010 type=guideline"}
        plain = Filtering()
        assert call(policy, "POST", path, plain, json=asked).status_code == 200
        assert not plain.filters


def test_an_unknown_filter_is_refused(policy: Any) -> None:
    for body, param in [
        ({"where": "yaer>=2010"}, "where"),
        ({"where": {"year": 2010}}, "where"),
        ({"year_from": 2010}, "year_from"),
    ]:
        found = call(policy, "POST", "/v1/answers", Filtering(), json={"question": "What treats gout?", **body})
        assert (found.status_code, found.json()["error"]["param"]) == (400, param)


def test_a_file_of_examples_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "examples.jsonl"
    file.write_text('{"question": "What treats gout?"}\n\n' * 9)
    assert read_examples(file) == [Example(question="What treats gout?")] * MAX_EXAMPLES
    for wrong in ('{"question": ""}', '{"options": []}', "no JSON"):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_examples(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_examples(tmp_path / "missing")


@pytest.mark.parametrize(
    "asked",
    [
        ["What treats gout\ud800?", "Summarize the conversation"],
        ["What is gout?", "\ud800 it?"],
        ["What causes gout \ud800?", "How is it treated?"],
    ],
)
def test_half_a_character_breaks_no_answer(policy: Any, asked: list[str], tmp_path: Path) -> None:
    bodies = {
        CHAT: {"model": "medagent", "messages": [{"role": "user", "content": text} for text in asked]},
        "/v1/responses": {"model": "medagent", "input": [{"role": "user", "content": text} for text in asked]},
        "/v1/answers": {"question": asked[-1].replace("\ud800", "?"), "earlier": asked},
    }
    app = make_app(Agent(policy, Corpus()), feedback=Feedback(tmp_path / "wrong.jsonl"))
    with TestClient(app, base_url="http://localhost") as client:
        for path, body in bodies.items():
            headers = {"Content-Type": "application/json"}
            found = client.post(path, content=json.dumps(body), headers=headers)
            assert found.status_code == 200
            assert client.post("/v1/feedback", json={"id": found.json()["id"]}).status_code in (200, 404)


def test_a_report_that_cannot_be_written_may_be_made_again(
    policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    app = make_app(Agent(policy, Corpus()), feedback=Feedback(tmp_path / "wrong.jsonl"))
    with TestClient(app, base_url="http://localhost") as client:
        report = {"id": client.post("/v1/answers", json={"question": "What treats gout?"}).json()["id"]}
        with monkeypatch.context() as patched:
            patched.setattr("medagent.serving.page.append_private", full)
            found = client.post("/v1/feedback", json=report)
        assert (found.status_code, found.json()["error"]["type"]) == (500, "server_error")
        assert [client.post("/v1/feedback", json=report).status_code for _ in range(2)] == [200, 404]
