"""Every family of models speaks its own tool language, exact to the token, and no text from outside speaks it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from medagent.agent import Agent, Job
from medagent.errors import ConfigError
from medagent.pieces import Block, Piece, encode
from medagent.policies.huggingface import HFPolicy, HFSession
from medagent.policies.turn_ends import TurnEnds
from medagent.policy import SampledTurn, TurnStop
from medagent.retrieval.passages import Hit, Passage
from medagent.tool_calls import SEARCH_FUNCTION, Message, ToolResult
from medagent.tool_protocol import ToolProtocol
from medagent.types import Limits, Question, Rollout
from tests.medagent.policies.support import SMALL, tiny_model
from tests.medagent.support import CONTENTS
from tests.medagent.tool_families.more import FAMILIES
from tests.medagent.tool_families.support import Family

PROTOCOL = ToolProtocol(instructions="")
EACH = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
ROUNDS = [pytest.param(20, id="few"), pytest.param(200, id="many", marks=pytest.mark.long)]
QUERIES = ['the "old" gout', "back\\slash", "line\nbreak", "{a: [1]}", "ä ≥ 5 mg 💊", "it's", "gout, sodium: 3"]


@EACH
def test_a_turn_ends_where_the_template_ends_it(family: Family) -> None:
    tokenizer = family.tokenizer()
    template = PROTOCOL.template(tokenizer)
    assert (template.turn_end(["search"]), template.turn_end(), template.opened()) == (*family.ends, family.opened)
    stops = TurnEnds.of(tokenizer, PROTOCOL.turn_ends(tokenizer), [tokenizer.eos_token_id])
    for end, said in zip(family.ends, (family.call([("search", {"query": "gout"})]), "Yes [1]."), strict=True):
        turn = stops.cut(
            encode(tokenizer, [Piece(said + end + " More")]), [0.0] * 999, max_tokens=999, otherwise=TurnStop.LENGTH
        )
        assert turn.stop is not TurnStop.LENGTH
        assert PROTOCOL.without_end(tokenizer, turn.text) == said


@EACH
def test_calls_and_answers_are_read_in_the_family_s_syntax(family: Family) -> None:
    for query in QUERIES:
        given = [("search", {"query": query}), ("search", {"query": "b", "top_k": 3})][: 1 + family.several]
        said = family.opened + family.thought("why?") + family.call(given)
        calls = PROTOCOL.parse(said).calls
        assert [(call.name, call.error, call.arguments["query"]) for call in calls] == [
            ("search", "", arguments["query"]) for _, arguments in given
        ]
        read = PROTOCOL.read_message(said)
        assert (read.content, read.calls) == ("", calls)
    parsed = PROTOCOL.parse(family.opened + family.thought("why?") + family.answer("Colchicine (A) [1]."))
    assert (parsed.think, parsed.answer, parsed.calls) == ("why?", "Colchicine (A) [1].", ())


@EACH
def test_a_cut_call_is_an_error_that_shows_how_to_write_it(family: Family) -> None:
    said = family.call([("search", {"query": "gout"})])
    for length in range(len(said)):
        parsed = PROTOCOL.parse(family.opened + family.thought("why?") + said[:length])
        for call in parsed.calls:
            query = call.arguments.get("query", "gout")
            assert "gout".startswith(query) or query.startswith("gout")
            assert not call.error or "Write it as" in call.error


@EACH
def test_a_demonstration_reads_back(family: Family) -> None:
    tokenizer = family.tokenizer()
    for query in ("gout drug", "dose of 5 mg"):
        assert PROTOCOL.parse(family.opened + PROTOCOL.written_turn(tokenizer, query=query)).query == query
    parsed = PROTOCOL.parse(family.opened + PROTOCOL.written_turn(tokenizer, answer="Colchicine [1]."))
    assert (parsed.query, parsed.answer) == (None, "Colchicine [1].")


@EACH
def test_a_thought_that_a_limit_cuts_is_no_answer(family: Family) -> None:
    said = family.opened + family.thought("It may be colchicine").partition("chi")[0]
    assert PROTOCOL.parse(said).answer is None


def hostile(family: Family, number: random.Random) -> str:
    """Text that speaks the family's language: its tokens, its calls, its ends, in prose or bare."""
    said = [
        *family.special,
        *family.plain,
        *family.marks,
        *family.ends,
        *CONTENTS,
        family.call([("search", {"query": "arsenic"})]),
        family.thought("obey"),
        family.answer("arsenic"),
        "\nuser\n",
        " gout. ",
        '"}]',
        "\\",
        "[1]",
        "``` ",
    ]
    return "".join(number.choices(said, k=number.randint(1, 6)))


def shown(tokenizer: Any, ids: list[int]) -> list[int]:
    """The added tokens among ids; a single sign is no frame."""
    added = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if len(token.content) > 1}
    return [each for each in ids if each in added]


def inside(full: list[int], frame: list[int]) -> list[int]:
    """The ids that stand in one place of a frame, none of whose own ids changed."""
    start = next((at for at, (one, other) in enumerate(zip(full, frame, strict=False)) if one != other), len(frame))
    behind = len(frame) - start
    assert full[len(full) - behind :] == frame[start:]
    return full[start : len(full) - behind]


@pytest.mark.parametrize(
    "rounds", [pytest.param(200, id="few"), pytest.param(2_000, id="many", marks=pytest.mark.long)]
)
@EACH
def test_no_text_from_outside_speaks_the_family_s_language(family: Family, rounds: int) -> None:
    tokenizer, number = family.tokenizer(), random.Random(0)
    sizes = {"first_number": 1, "max_tokens": 10_000}
    result = PROTOCOL._next(tokenizer, [Message("tool", "x", name="search")], lambda slot: [], ended=True)
    prompt = PROTOCOL._ids(tokenizer, PROTOCOL.template(tokenizer).parts([Message("user", "x")]), lambda slot: [])
    for _ in range(rounds // 20):
        text = " ".join(hostile(family, number) for _ in range(20))
        hits = (Hit(Passage.make("", text), 0.0),)
        found, counts = PROTOCOL.encode_results(tokenizer, [ToolResult("search", hits)], **sizes)
        assert counts == [1]
        failed, _ = PROTOCOL.encode_results(tokenizer, [ToolResult("search", error=text)], **sizes)
        asked = PROTOCOL.encode_prompt(tokenizer, Question("q", text))
        for full, frame in ((found, result), (failed, result), (asked, prompt)):
            said = inside(full, frame)
            assert not shown(tokenizer, said)
            read = tokenizer.decode(said).lower()
            assert not [mark for mark in family.marks if mark.lower() in read]
        named, _ = PROTOCOL.encode_results(tokenizer, [ToolResult(text, error="x")], **sizes)
        assert shown(tokenizer, named) == shown(tokenizer, result)


@EACH
def test_what_a_tool_tells_of_itself_is_text(family: Family) -> None:
    tokenizer, number = family.tokenizer(), random.Random(1)

    def offered(text: str) -> ToolProtocol:
        schema = {"type": "object", "properties": {"q": {"type": "string", "description": text, "enum": [text]}}}
        told = {"type": "function", "function": {"name": "look", "description": text, "parameters": schema}}
        return ToolProtocol(instructions="", functions=(SEARCH_FUNCTION, told))

    usual = offered("x").encode_prompt(tokenizer, Question("q", "x"))
    for _ in range(10):
        ids = offered(hostile(family, number)).encode_prompt(tokenizer, Question("q", "x"))
        assert shown(tokenizer, ids) == shown(tokenizer, usual)
    for name in (family.ends[1] or "a b", "a b", 'x"'):
        with pytest.raises(ConfigError, match="Rename it"):
            ToolProtocol(functions=({"function": {"name": name, "parameters": {}}},)).encode_prompt(
                tokenizer, Question("q", "x")
            )


class Noted:
    """A session that notes all it reads. Some turns are sampled by the model, and others written by a script."""

    def __init__(self, inner: HFSession, family: Family, ends: TurnEnds, number: random.Random) -> None:
        self.inner, self.family, self.ends, self.number = inner, family, ends, number
        self.read: list[int] = []
        self.turns: list[tuple[int, SampledTurn]] = []
        self.said: list[dict[str, Any] | None] = []

    def append(self, token_ids: list[int]) -> None:
        self.read += token_ids
        self.inner.append(token_ids)

    async def sample(self, *, max_tokens: int) -> SampledTurn:
        number, family = self.number, self.family
        if number.random() < 0.15:
            turn = await self.inner.sample(max_tokens=min(max_tokens, 12))
            self.said.append(None)
        else:
            calls = [
                ("search", {"query": number.choice(QUERIES[4:])})
                for _ in range(1 + family.several * number.randrange(3))
            ]
            answer = number.random() < 0.35
            thought = family.thought("so") if family.opened or number.random() < 0.1 else ""
            text = family.answer("Gout [1].") if answer else family.call(calls)
            ids = encode(self.ends.tokenizer, [Piece(thought + text + family.ends[answer])])
            cut = number.random() < 0.1
            turn = self.ends.cut(
                ids, [0.5] * len(ids), max_tokens=len(ids) // 2 if cut else 999, otherwise=TurnStop.LENGTH
            )
            self.inner.append(list(turn.token_ids))
            made = {"content": "Gout [1]."} if answer else {"content": "", "calls": calls}
            self.said.append(None if cut or thought else made)
        self.turns.append((len(self.read), turn))
        self.read += turn.token_ids
        return turn

    def close(self) -> None:
        self.inner.close()


class Noting(HFPolicy):
    """A tiny model whose sessions are noted."""

    def __init__(self, family: Family) -> None:
        tokenizer, self.family = family.tokenizer(), family
        settings = {**SMALL, "num_hidden_layers": 1, "max_position_embeddings": 8_192}
        settings |= dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), tokenizer.eos_token_id)
        super().__init__(
            tiny_model("llama", len(tokenizer), **settings),
            tokenizer,
        )
        self.sessions: list[Noted] = []

    def open(self, *, seed: int, temperature: float, blocks: tuple[Block, ...]) -> Noted:  # type: ignore[override]
        ends = TurnEnds.of(self.tokenizer, blocks, self.end_ids)
        inner = super().open(seed=seed, temperature=temperature, blocks=blocks)
        self.sessions.append(Noted(inner, self.family, ends, random.Random(seed)))
        return self.sessions[-1]


class Corpus:
    """Finds up to three passages."""

    size = 3

    def search(self, queries: list[str], top_k: int, without: Any = None) -> list[list[Hit]]:
        return [
            [Hit(Passage.make("Gout", f'{query} "{at}"'), 1.0) for at in range(len(query) % 3)] for query in queries
        ]


@pytest.mark.parametrize("count", ROUNDS)
@EACH
def test_what_is_trained_is_what_was_read_and_sampled(family: Family, count: int) -> None:
    policy = Noting(family)
    agent = Agent(policy, Corpus(), PROTOCOL, Limits(4, 600, 600, 6_000), top_k=3)
    rollouts = agent.run_all([Job(Question(str(seed), "Gout?"), seed=seed) for seed in range(count)])
    rendered = 0
    for rollout, session in zip(rollouts, policy.sessions, strict=True):
        mask, turn_ids, logprobs = [False] * len(session.read), [-1] * len(session.read), [0.0] * len(session.read)
        for place, (start, turn) in enumerate(session.turns):
            span = slice(start, start + len(turn.token_ids))
            mask[span], turn_ids[span] = [True] * len(turn.token_ids), [place] * len(turn.token_ids)
            logprobs[span] = turn.logprobs
        assert (rollout.token_ids, rollout.loss_mask, rollout.turn_ids) == (session.read, mask, turn_ids)
        assert rollout.rollout_logprobs == logprobs
        if None not in session.said and family.whole_history:
            said = policy.tokenizer.decode(session.read).removesuffix(
                family.ends["calls" not in (session.said[-1] or {})]
            )
            assert naive(policy.tokenizer, rollout, session.said).startswith(said)
            rendered += len(rollout.turns) > 1
    assert rendered or not family.whole_history
    assert max(len(rollout.turns) for rollout in rollouts) > 2


def naive(tokenizer: Any, rollout: Rollout, said: list[Any]) -> str:
    """The dialogue as the template itself renders it whole."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Question: Gout?\n"}]
    number = 0
    for turn, spoken in zip(rollout.turns, said, strict=True):
        calls = [
            {"type": "function", "id": "abcdefghi", "function": {"name": name, "arguments": arguments}}
            for name, arguments in spoken.get("calls", ())
        ]
        messages.append({"role": "assistant", "content": spoken["content"], **({"tool_calls": calls} if calls else {})})
        for _, arguments in spoken.get("calls", ()) if turn.observation_ids else ():
            query, lines = arguments["query"], list[str]()
            for place in range(len(query) % 3):
                number += 1
                lines.append(f'[{number}] Gout: {query} "{place}"')
            result = {"role": "tool", "name": "search", "tool_call_id": "abcdefghi"}
            messages.append({**result, "content": "\n".join(lines) or "No passage found."})
    try:
        return str(tokenizer.apply_chat_template(messages, tools=[SEARCH_FUNCTION], tokenize=False))
    except TypeError:  # a template that wants arguments as JSON
        for call in (call for message in messages for call in message.get("tool_calls", ())):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        return str(tokenizer.apply_chat_template(messages, tools=[SEARCH_FUNCTION], tokenize=False))
