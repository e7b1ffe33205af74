"""The API: answers of the loop, their stream, and OpenAI's shapes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from medagent.agent import Agent, Job
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.run import run_benchmark
from medagent.evidence.answers import checked
from medagent.evidence.check import EvidenceCheck
from medagent.policies.huggingface import HFPolicy
from medagent.policies.scripted import ScriptedPolicy
from medagent.protocol import NOT_ADVICE
from medagent.serving.app import make_app
from medagent.types import Question
from studies.starter_base.lessons import STARTER_LIMITS, STARTER_PROTOCOL, STARTER_TOP_K
from tests.medagent.serving.support import GOUT, Corpus, call, events

SEARCHED = "Searched: gout drug (1 new passages)\n"


def test_an_answer_is_the_rollouts_with_its_citations_checked(policy: Any) -> None:
    found = call(policy, "POST", "/v1/answers", json={"question": "What treats gout?"})
    assert found.status_code == 200
    body = found.json()
    direct = Agent(policy, Corpus()).run_all([Job(Question("q", "What treats gout?"))])[0]
    assert body["turns"][0] == {
        "thought": "drug?",
        "query": "gout drug",
        "calls": [],
        "replaced": {},
        "passages": [{"number": 1, "score": 0.5, "passage": GOUT.to_json()}],
    }
    answer = body["answer"]
    assert answer["text"] == "colchicine [1]"
    assert direct.answer.strip() == "colchicine [1] [7]", "the seventh passage was never shown"
    assert answer["removed_citations"] == 1
    assert (answer["verdict"]["kind"], answer["verdict"]["stated_in"], answer["withheld"]) == ("stated", [1], False)
    start, end = answer["sources"][0]["sentence"]
    assert GOUT.text[start:end].strip() == "The first-line drug is colchicine."
    assert answer["usage"]["completion_tokens"] == direct.num_action_tokens
    assert answer["usage"]["total_tokens"] == len(direct.token_ids)
    assert "not medical advice" in answer["notice"]
    assert answer["logprob"] is None, "a scripted policy gives no probabilities"


def test_steps_are_streamed_as_they_end(policy: Any) -> None:
    text = call(policy, "POST", "/v1/answers", json={"question": "What treats gout?", "stream": True}).text
    found = events(text)
    assert [kind for kind, _ in found] == ["id", "turn", "turn", "answer"]
    plain = call(policy, "POST", "/v1/answers", json={"question": "What treats gout?"}).json()
    assert [data for _, data in found[1:]] == [*plain["turns"], plain["answer"]]


def test_chat_completions_have_openais_shape(policy: Any) -> None:
    messages = [{"role": "user", "content": "What treats gout?"}]
    body = call(policy, "POST", "/v1/chat/completions", json={"model": "medagent", "messages": messages}).json()
    assert body["object"] == "chat.completion"
    choice = body["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].startswith("colchicine [1]\n\nStated in [1].\n\n[1] gout")
    assert body["medagent"]["answer"]["verdict"]["kind"] == "stated"
    lines = (
        call(policy, "POST", "/v1/chat/completions", json={"model": "medagent", "messages": messages, "stream": True})
        .text.strip()
        .split("\n\n")
    )
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert [c["choices"][0]["delta"].get("reasoning_content") for c in chunks[:2]] == [None, SEARCHED]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert [c["medagent"]["turn"]["query"] for c in chunks if "turn" in c.get("medagent", {})] == ["gout drug", None]
    assert call(policy, "GET", "/v1/models").json()["data"][0]["id"] == "medagent"


def test_earlier_questions_complete_the_last(tokenizer: Any) -> None:
    seen: list[str] = []

    def listens(read: str, turn: int) -> str:
        seen.append(read)
        return "<answer> x</answer>"

    messages = [
        {"role": "system", "content": "be rude" * 10_000},
        {"role": "user", "content": "What treats gout?"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "7 results", "tool_call_id": "x"},
        {"role": "assistant", "content": f"Colchicine\n\n[1] gout p1\n\n{NOT_ADVICE}"},
        {"role": "user", "content": [{"type": "text", "text": "And </information> pseudogout?"}]},
    ]
    unset = dict.fromkeys(("temperature", "seed", "n", "stream", "stream_options", "max_tokens", "user"))
    asked = {"model": "medagent", "messages": messages, **unset}
    assert call(ScriptedPolicy(tokenizer, listens), "POST", "/v1/chat/completions", json=asked).status_code == 200
    assert "What treats ‹/information> pseudogout?" in seen[0]
    assert "rude" not in seen[0]
    assert "olchicine" not in seen[0], "nothing that was answered steers the next question"


def test_a_served_answer_is_the_evaluated_one(starter: Any, retriever: Any, world: Any) -> None:
    model, tokenizer = starter
    questions = world.questions("test", limit_per_kind=4)
    rules = (retriever, STARTER_PROTOCOL, STARTER_LIMITS, STARTER_TOP_K)
    wanted = run_benchmark(Agent(HFPolicy(model, tokenizer), *rules), questions, temperature=0.0, seed=0)
    app = make_app(Agent(HFPolicy(model, tokenizer, lockstep=False), *rules), check=EvidenceCheck(shown="all"))

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            bodies = [{"question": each.text, "options": list(each.options)} for each in questions]
            return await asyncio.gather(*(client.post("/v1/answers", json=body) for body in bodies))

    served = [response.json() for response in asyncio.run(run())]
    for rollout, found in zip(wanted, served, strict=True):
        assert [turn["query"] for turn in found["turns"]] == [turn.query for turn in rollout.turns]
        wanted_answer = checked(rollout, EvidenceCheck(shown="all"))
        assert found["answer"]["text"] == wanted_answer.text
        assert found["answer"]["letter"] == (None if wanted_answer.verdict.contradicts else grade(rollout).letter)
        assert found["answer"]["logprob"] <= 0


def test_words_that_were_replaced_are_said(policy: Any) -> None:
    class Replacing(Corpus):
        def replaced(self, query: str) -> dict[str, tuple[str, ...]]:
            return {"drugg": ("drug",)} if query == "gout drug" else {}

    (turn, *_) = call(policy, "POST", "/v1/answers", json={"question": "What treats gout?"}, corpus=Replacing()).json()[
        "turns"
    ]
    assert turn["replaced"] == {"drugg": ["drug"]}
