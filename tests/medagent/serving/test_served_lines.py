"""A model behind an endpoint names sentences of the corpus by number, and people read the sentences."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from medagent.agent import Agent
from medagent.agent_folder import open_agent
from medagent.any_model import AnyModelLinesProtocol
from medagent.cli.ask import ask
from medagent.cli.commands.ask import AskCommand
from medagent.errors import InputError
from medagent.evidence.answers import CHOSEN
from medagent.policies.chat_endpoint import RemotePolicy
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.serving.app import make_app
from tests.medagent.serving.support import CHAT, Corpus
from tests.medagent.support import ChatServer, chat_server

ASKED = "What is the first-line drug for gout?"
SENTENCE = "The first-line drug is colchicine."


def posted(server: ChatServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    agent = Agent(RemotePolicy(server.url, "m", backoff_s=0.01), Corpus(), AnyModelLinesProtocol(), trained=False)

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=make_app(agent))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body)

    found = asyncio.run(run())
    assert found.status_code == 200, found.text
    return dict(found.json())


def answered(*replies: Any, question: str = ASKED) -> dict[str, Any]:
    with chat_server(*replies) as server:
        return dict(posted(server, "/v1/answers", {"question": question})["answer"])


def test_a_named_sentence_is_the_answer_with_its_citation_and_says_who_chose_it() -> None:
    with chat_server("2") as server:
        answer = posted(server, "/v1/answers", {"question": ASKED})["answer"]
        told = server.asked[0]["messages"][0]["content"]
    assert f"[2] {SENTENCE}" in told
    assert "numbers of one to three" in told
    assert (answer["text"], answer["caption"]) == (f"{SENTENCE} [1]", CHOSEN)
    assert answer["verdict"]["kind"] == "stated"
    assert [source["passage"]["id"] for source in answer["sources"]] == ["p1"]


def test_a_sentence_that_does_not_answer_is_not_said_to() -> None:
    answer = answered("[1]")
    assert not answer["supported"]
    assert SENTENCE in json.dumps(answer["quoted"])


@pytest.mark.parametrize("said", ["Colchicine, 500 mg.", "[9]", "None of them."])
def test_a_reply_that_names_no_sentence_shown_is_withheld_and_the_corpus_is_quoted(said: str) -> None:
    answer = answered(said)
    assert (answer["withheld"], answer["verdict"]["kind"], answer["caption"]) == (True, "no_answer", "")
    assert SENTENCE in json.dumps(answer["quoted"])
    assert "500" not in answer["text"]


def test_a_search_may_come_first_and_its_sentences_are_numbered_after_those_before() -> None:
    with chat_server("<search> gout drug</search>", "[5]") as server:
        answer = posted(server, "/v1/answers", {"question": ASKED})["answer"]
        told = server.asked[1]["messages"][-1]["content"]
    assert f"[5] {SENTENCE}" in told
    assert answer["text"] == f"{SENTENCE} [2]"


def test_programs_of_openais_api_get_the_caption_and_the_sentence() -> None:
    with chat_server("Sentence 2.") as server:
        body = {"model": "medagent", "messages": [{"role": "user", "content": ASKED}]}
        said = posted(server, CHAT, body)["choices"][0]["message"]["content"]
    assert CHOSEN in said
    assert SENTENCE in said


def test_ask_takes_an_endpoint_by_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_index([Passage.make("gout", f"Gout hurts. {SENTENCE}")], tmp_path / "index", HashedNgramEmbedder())
    with chat_server("[2]") as server:
        ask(
            AskCommand(
                question=ASKED, agent=server.url, model="m", prompting="lines", index=str(tmp_path / "index"), json=True
            )
        )
    assert json.loads(capsys.readouterr().out)["answer"]["text"] == f"{SENTENCE} [1]"


@pytest.mark.parametrize("name", ["none", "starter", "runs/mine/agent"])
def test_lines_are_refused_for_what_has_its_own_way_before_it_is_opened(name: str) -> None:
    with pytest.raises(InputError, match=r"--prompting lines, wanted an untrained model"):
        open_agent(name, index="no/such/index", lines=True)
