"""Agents of other projects on the starter world, and the starter policy's tags as calls of tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from transformers import PreTrainedTokenizerBase

from medagent.pieces import Piece, encode
from medagent.protocol import TagProtocol, TurnProtocol
from medagent.retrieval.search import HybridRetriever
from medagent.starter.index import build_starter_index
from medagent.starter.world import World
from medagent.tool_calls import Message, ToolCall
from medagent.tool_protocol import ToolProtocol
from medagent.types import Question
from studies.starter_base.lessons import STARTER_PROTOCOL

_MARKS = re.compile(r"( \([A-D]\)| \[\d\])")  # tokens of the starter's vocabulary


class StarterTools(ToolProtocol):
    """The starter policy was taught no chat template: its tags are read and written as calls of `search`."""

    search, answer = TagProtocol.search, TagProtocol.answer
    turn_ends, written_turn = TurnProtocol.turn_ends, TurnProtocol.written_turn
    note_on, history_metrics, session = TurnProtocol.note_on, TurnProtocol.history_metrics, TurnProtocol.session
    opened = TurnProtocol.opened

    def ended(self, tokenizer, turn, *, called: bool) -> bool:
        return True

    def encode_prompt(self, tokenizer: PreTrainedTokenizerBase, question: Question) -> list[int]:
        return STARTER_PROTOCOL.encode_prompt(tokenizer, question)

    def read_message(self, text: str, tokenizer=None) -> Message:
        parsed = TagProtocol().parse(text)
        calls = (ToolCall("search", {"query": parsed.query}),) if parsed.query else ()
        return Message("assistant", "" if calls else parsed.answer or text, calls=calls)

    def encode_messages(self, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], functions) -> list[int]:
        pieces: list[Piece] = []
        for each in messages:
            said = _MARKS.split(each.content + "".join(f"<search> {c.arguments['query']}</search>" for c in each.calls))
            content = [Piece(part, trusted=at % 2 == 1 or bool(each.calls)) for at, part in enumerate(said) if part]
            shown = [Piece("\n<information>\n"), *content, Piece("</information>\n")]
            pieces += shown if each.role == "tool" else content
        return encode(tokenizer, pieces)

    def encode_next(self, tokenizer, messages: Sequence[Message], *, ended: bool = True) -> list[int]:
        return self.encode_messages(tokenizer, messages, ())


@cache
def retriever() -> HybridRetriever:
    folder = Path(mkdtemp())
    build_starter_index(folder, World.load().passages())
    return HybridRetriever(str(folder))


def search_starter(query: str) -> str:
    hits = retriever().search([query], top_k=2)[0]
    return "".join(f"- {hit.passage.shown_text.rstrip('. ')} [{at}].\n" for at, hit in enumerate(hits, 1))


def asked(question: Question) -> str:
    return "".join(piece.text for piece in STARTER_PROTOCOL.prompt(question))


def earned(question: Question, answer: str) -> float:
    return float(f"({question.answer})" in answer)


async def pydantic_ai(question: Question, base_url: str) -> float:
    from pydantic_ai import Agent, Tool
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=base_url, api_key="none")
    agent = Agent(OpenAIChatModel("policy", provider=provider), tools=[Tool(search_starter_tool, name="search")])
    return earned(question, (await agent.run(asked(question))).output)


async def search_starter_tool(query: str) -> str:
    """Search the medical corpus."""
    return search_starter(query)


def smolagents(question: Question, base_url: str) -> float:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def search(query: str) -> str:
        """Search the medical corpus.

        Args:
            query: words to search for
        """
        return search_starter(query)

    model = OpenAIServerModel("policy", api_base=base_url, api_key="none")
    agent = ToolCallingAgent(tools=[search], model=model, max_steps=3, verbosity_level=0)
    return earned(question, str(agent.run(asked(question))))
