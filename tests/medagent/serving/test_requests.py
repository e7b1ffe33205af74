"""Requests as clients send them: what is refused says so, and chores are answered without the agent."""

from __future__ import annotations

import asyncio
import html
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from medagent.agent import Agent
from medagent.cli.ask import question_of
from medagent.errors import ConfigError, InputError
from medagent.evidence.check import EvidenceCheck
from medagent.policies.scripted import ScriptedPolicy
from medagent.rewriting import ModelRewriter
from medagent.serving.admission import AdmissionLimits
from medagent.serving.app import make_app
from medagent.serving.chores import title_of
from medagent.serving.feedback import Feedback
from medagent.serving.middleware import digest
from medagent.serving.openai_form import content_of, escaped
from retrieval.filters import Filter
from retrieval.passages import Hit, Passage
from tests.medagent.serving.support import Corpus, SlowPolicy, call, client_of, events

ASKED = {"role": "user", "content": "What treats gout?"}
CHAT = "/v1/chat/completions"


def chat(policy: Any, messages: list[dict[str, Any]], **more: Any) -> Any:
    return call(policy, "POST", CHAT, json={"model": "medagent", "messages": messages, **more})


@pytest.mark.parametrize(
    ("more", "param"),
    [
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
    ],
)
def test_what_would_change_the_answers_shape_is_refused(policy: Any, more: dict[str, Any], param: str) -> None:
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


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_attachments_are_refused_and_earlier_ones_forgiven(policy: Any, kind: str) -> None:
    shown = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {}}]}
    found = chat(policy, [shown])
    assert found.status_code == 400
    assert kind in found.json()["error"]["message"]
    assert chat(policy, [shown, {"role": "assistant", "content": "?"}, ASKED]).status_code == 200


OPEN_WEBUI = (
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Output:\nJSON "
    'format: {{ "title": "your concise title here" }}\n### Chat History:\n<chat_history>\nUSER: What treats gout?\n'
    "ASSISTANT: colchicine\n</chat_history>"
)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (
            [
                {
                    "role": "system",
                    "content": "Please generate a concise, 5-word-or-less title for the conversation.\n\n||>User:\n"
                    '"What treats gout?"\n||>Title:',
                }
            ],
            "What treats gout",
        ),
        ([{"role": "user", "content": OPEN_WEBUI}], '{"title": "What treats gout"}'),
        (
            [
                {
                    "role": "user",
                    "content": "### Task:\nGenerate 1-3 broad tags categorizing the themes of the chat.",
                }
            ],
            '{"tags": ["Medicine"]}',
        ),
        (
            [
                {
                    "role": "user",
                    "content": "### Task:\nSuggest 3-5 relevant follow-up questions of the user.",
                }
            ],
            '{"follow_ups": []}',
        ),
        (
            [ASKED, {"role": "assistant", "content": "x"}, {"role": "user", "content": "Write a title for this chat."}],
            "What treats gout",
        ),
    ],
)
def test_chores_are_answered_without_the_agent(tokenizer: Any, messages: list[Any], said: str) -> None:
    def never(read: str, turn: int) -> str:
        raise AssertionError("the agent was asked")

    policy = ScriptedPolicy(tokenizer, never)
    body = chat(policy, messages, max_tokens=16).json()
    assert body["choices"][0]["message"]["content"] == said
    streamed = chat(policy, messages, stream=True).text
    assert json.loads(streamed.split("\n\n")[0].removeprefix("data: "))["choices"][0]["delta"]["content"] == said
    assert title_of("") == "Medical question"


HISTORY = "USER: What treats gout?\nASSISTANT: colchicine"


@pytest.mark.parametrize(
    "messages",
    [
        [("user", "Please generate a title of four words summarizing our conversation, without quotation marks.")],
        [("user", f"Give this conversation a name.\nKeep it short, ten characters at most.\n\n{HISTORY}")],
        [("user", f"Analyze this conversation and provide:\n1. The language\n2. A concise title\n\n{HISTORY}")],
        [("user", "Now reply with a title for the chat that is 3 words long.")],
        [("system", "Summarize the user's conversation into a title within 10 words."), ("user", HISTORY)],
        [("system", "Generate a short title that captures this conversation.\n- Only the title"), ("user", HISTORY)],
        [
            (
                "system",
                "- write a short title based on the first message a user begins a conversation with\n- 80 characters",
            ),
            ("user", "What treats gout?"),
        ],
        [("system", "Summarize the first message into a title of 5 words or less."), ("user", "What treats gout?")],
        [("developer", "Write a title for this conversation in 5 words."), ("user", "What treats gout?")],
    ],
)
def test_titles_are_known_in_many_words(policy: Any, messages: list[tuple[str, str]]) -> None:
    asked = [{"role": role, "content": text} for role, text in messages]
    before = [] if len(asked) > 1 or "USER" in asked[0]["content"] else [ASKED, {"role": "assistant", "content": "x"}]
    body = chat(policy, [*before, *asked]).json()
    assert "medagent" not in body, "the agent was asked"
    assert body["choices"][0]["message"]["content"] == "What treats gout"


def test_other_chores_have_their_shape(policy: Any) -> None:
    def said(*messages: tuple[str, str]) -> str:
        body = chat(policy, [{"role": role, "content": text} for role, text in messages]).json()
        assert "medagent" not in body
        return body["choices"][0]["message"]["content"]

    task = "### Task:\n"
    assert json.loads(said(("user", f"{task}You are an autocompletion system. <type>Search Query</type>"))) == {
        "text": ""
    }
    image = f"{task}Write a prompt for an image.\n{HISTORY}"
    assert json.loads(said(("user", image))) == {"prompt": "What treats gout"}
    assert said(("user", "Show the speaker's mood through a fitting emoji. Message: gout")) == "\N{SPEECH BALLOON}"
    condense = (
        "Rephrase it to be a standalone question.\nHuman: What causes gout?\nFollow Up Input: And how is it treated?"
    )
    assert said(("user", condense)) == "How is gout treated?"
    summary = (
        (ASKED["role"], ASKED["content"]),
        ("assistant", "x"),
        ("system", "Summarize the discussion in 200 words."),
    )
    assert said(*summary) == "The user asked: What treats gout?"


def test_a_chores_stream_counts_its_usage(policy: Any) -> None:
    asked = [{"role": "user", "content": f"Generate a title for this chat.\n{HISTORY}"}]
    lines = chat(policy, asked, stream=True, stream_options={"include_usage": True}).text.strip().split("\n\n")
    assert json.loads(lines[-2].removeprefix("data: "))["usage"]["total_tokens"] == 0


def test_a_question_under_a_system_message_on_titles_is_answered(policy: Any) -> None:
    for system in (
        "You are a doctor. Write a title for each conversation in 5 words, then answer.",
        "Be brief. Also suggest a title for the conversation in 5 words.",
        "Answer in at most 50 words.",
    ):
        assert "medagent" in chat(policy, [{"role": "system", "content": system}, ASKED]).json(), system


def test_a_question_about_titles_is_a_question(policy: Any) -> None:
    for text in (
        "What is the title compound that treats gout?",
        "Give me the name of the drug for gout and tell me if it is safe",
        "[task] what treats gout?",
        "Provide a differential with a title line, then a short discussion: what treats gout?",
        "Write the title of the condition, from this conversation: which one has a hot toe?",
        "### Task:\nGenerate a title for this chat. My father can't breathe.",
        "#" * 100,
    ):
        assert "medagent" in chat(policy, [{"role": "user", "content": text}]).json(), text[:40]


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

    def notes(read: str, turn: int) -> str:
        asked.append(read)
        return ""

    async def run() -> list[int]:
        slow = SlowPolicy(tokenizer)
        settings = {"rewriter": ModelRewriter(ScriptedPolicy(tokenizer, notes))}
        limits = AdmissionLimits(max_running=1, max_waiting=0)
        async with client_of(slow, limits=limits, **settings) as client:
            first = asyncio.create_task(client.post("/v1/answers", json={"question": "What causes gout?"}))
            while not slow.opened:
                await asyncio.sleep(0.01)
            body = {"question": "How is it treated?", "earlier": ["What causes gout?"]}
            refused = [(await client.post("/v1/answers", json=body)).status_code for _ in range(3)]
            slow.go.set()
            await first
            return refused

    assert asyncio.run(run()) == [429] * 3
    assert not asked


def test_searches_stream_as_reasoning(policy: Any) -> None:
    lines = chat(policy, [ASKED], stream=True).text.strip().split("\n\n")[:-1]
    deltas = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines]
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d] == [
        "Searched: gout drug (1 passages)\n"
    ]


def test_nothing_of_the_corpus_is_markup_in_a_chat(tokenizer: Any) -> None:
    hostile = Passage.make(
        "gout ![.](https://evil.example/p.png) <img src=x>",
        "The first-line drug is colchicine.",
        source="[guideline](javascript:alert(1))\n\n# Forged",
        id="p",
    )

    class Poisoned(Corpus):
        def search(self, queries: Any, *, top_k: int) -> list[list[Hit]]:
            return [[Hit(hostile, 1.0)] for _ in queries]

    def says(read: str, turn: int) -> str:
        return "<search>gout</search>" if turn == 0 else "<answer> colchicine [1]</answer>"

    asked = {"model": "medagent", "messages": [{"role": "user", "content": "Which drug for gout?"}]}
    body = call(ScriptedPolicy(tokenizer, says), "POST", CHAT, Poisoned(), json=asked).json()
    text = body["choices"][0]["message"]["content"]
    assert "colchicine [1]" in text
    for markup in ("![", "](", "<img", "\n# "):
        assert markup not in text
    answer = body["medagent"]["answer"]
    lacking = content_of({**answer, "withheld": True, "nearest": [hostile.to_json()], "urgent": "Call [x](y)"})
    for markup in ("![", "](", "<img", "\n# "):
        assert markup not in lacking
    assert escaped("a [1] [2]: http://x") == "a [1] &#91;2&#93;: http&#8288;&#58;/&#8288;&#47;x", (
        "a definition of a link is one too"
    )
    block = escaped("Title\n===\n# H\r- item\n1. one\n    code\nwww.x.example a@b.example $x$", paragraphs=True)
    assert not re.search(r"(?m)^[#=+-]|^ {4}|^\d+\.|www\.|@|(?<!\\)\$", block)


def test_a_blank_question_and_a_body_that_is_no_json(policy: Any) -> None:
    for body in ({"question": "  "}, {"question": "x", "options": ["a", " "]}):
        found = call(policy, "POST", "/v1/answers", json=body)
        assert (found.status_code, found.json()["error"]["message"].split(": ")[1]) == (
            400,
            "wanted text that is not blank",
        )
    sent = {"content-type": "application/x-www-form-urlencoded"}
    found = call(policy, "POST", "/v1/answers", headers=sent, content=b'{"question": "x"}')
    assert "Content-Type: application/json" in found.json()["error"]["message"]


def test_methods_models_and_hosts(policy: Any) -> None:
    wrong = call(policy, "GET", "/v1/answers")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    for path in ("/", "/healthz", "/readyz"):
        assert call(policy, "HEAD", path).status_code == 200
    assert call(policy, "GET", "/v1/models/medagent").json()["id"] == "medagent"
    assert call(policy, "GET", "/v1/models/other").status_code == 404
    named = {"hosts": ("localhost", "med.example")}
    for host, status in (("med.example", 200), ("MED.example:443", 200), ("evil.example", 400), ("", 400)):
        assert call(policy, "GET", "/v1/models", headers={"host": host}, settings=named).status_code == status
    refused = call(policy, "GET", "/v1/models", headers={"host": "evil.example"}, settings=named).json()
    assert refused["error"]["code"] == "unknown_host"
    assert call(policy, "GET", "/healthz", headers={"host": "10.0.0.1"}, settings=named).status_code == 200


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


@pytest.mark.parametrize("path", ["/v1/answers", CHAT])
def test_a_filter_holds_for_every_search_of_an_answer(policy: Any, path: str) -> None:
    corpus, body = Filtering(), {"where": "year >= 2010 type=guideline"}
    asked = {"model": "medagent", "messages": [ASKED]} if path == CHAT else {"question": "What treats gout?"}
    found = call(policy, "POST", path, corpus, json={**asked, **body})
    assert found.status_code == 200
    assert set(corpus.filters) == {"year>=2010 type=guideline"}
    plain = Filtering()
    assert call(policy, "POST", path, plain, json=asked).status_code == 200
    assert not plain.filters


@pytest.mark.parametrize(
    ("body", "param"),
    [({"where": "yaer>=2010"}, "where"), ({"where": {"year": 2010}}, "where"), ({"year_from": 2010}, "year_from")],
)
def test_an_unknown_filter_is_refused(policy: Any, body: dict[str, Any], param: str) -> None:
    found = call(policy, "POST", "/v1/answers", Filtering(), json={"question": "What treats gout?", **body})
    assert (found.status_code, found.json()["error"]["param"]) == (400, param)


BLANK = ("\u200b", "\u2800", "\u3164", "\u00ad", "\u200f", "\x01\x02", "\ufeff \u2060")


@pytest.mark.parametrize("text", BLANK)
def test_what_cannot_be_seen_is_no_question(policy: Any, text: str) -> None:
    assert chat(policy, [{"role": "user", "content": text}]).status_code == 400
    for body in ({"question": text}, {"question": "What treats gout?", "options": ["aspirin", text]}):
        assert call(policy, "POST", "/v1/answers", json=body).status_code == 400
    with pytest.raises(InputError, match="empty"):
        question_of(text)


@pytest.mark.parametrize(
    ("body", "content_type", "told"),
    [
        (b"", "application/json", "the body is no JSON object. Send one."),
        (b"null", "application/json", "the body is no JSON object. Send one."),
        (b"[1]", "application/json", "the body is no JSON object. Send one."),
        (b'{"question": ', "application/json", "the body is no JSON, from character 13 on."),
        (b"{'question': 'x'}", "application/json", "the body is no JSON, from character 1 on."),
        (b"\x1f\x8b\x08\x00\xff", "application/json", "the body cannot be read. Send JSON in UTF-8, not compressed."),
        ('{"question": "Morbus M\u00e9ni\u00e8re"}'.encode("latin-1"), "application/json", "the body cannot be read."),
        (b'{"question": "x"}', "text/plain", "the body is no JSON object (its content type is text/plain). Send one"),
    ],
)
def test_a_body_that_is_no_request_is_told_so(policy: Any, body: bytes, content_type: str, told: str) -> None:
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


@pytest.mark.parametrize(
    ("served", "sent"),
    [
        ("h2.example:8443", "h2.example"),
        ("H2.example", "h2.example:8443"),
        ("B\u00fccher.example", "xn--bcher-kva.example"),
        ("med.example.", "med.example"),
    ],
)
def test_host_names_are_compared_as_browsers_send_them(policy: Any, served: str, sent: str) -> None:
    found = call(policy, "GET", "/v1/models", headers={"Host": sent}, settings={"hosts": [served]})
    assert found.status_code == 200


@pytest.mark.parametrize(
    "text", ["https://evil.example/x", "www.evil.example", "a@evil.example", "//evil.example/p.png", "evil.example"]
)
def test_programs_make_no_link_of_a_source(text: str) -> None:
    shown = html.unescape(escaped(f"see {text} or"))
    assert shown.replace("\u2060", "") == f"see {text} or"
    for pattern in (r"https?://\w", r"www\.\w", r"\w@\w", r"//\w", r"evil\.example"):
        assert not re.search(pattern, shown), pattern


def test_nothing_turns_the_text_around() -> None:
    assert escaped("a\u202eb\x1bc\u200bd") == "abcd"
    assert escaped("A 1.5 mg dose, e.g. i.v., pH 7.4") == "A 1.5 mg dose, e.g. i.v., pH 7.4"
