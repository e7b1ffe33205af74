"""Functions become tools, and whatever goes wrong in a call is a result that the model reads."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from medagent.agent import Agent, Job
from medagent.cli.console import TurnPrinter
from medagent.evidence.answers import Steps
from medagent.policies.scripted import ScriptedPolicy
from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.controls import NoRetriever
from medagent.retrieval.errors import RetrieverUnavailableError, ToolError
from medagent.serving.openai_form import thought_of
from medagent.tool_calls import ToolCall, ToolResult
from medagent.tools.base import MAX_CHARACTERS, CallContext, check_working, routed, run_calls
from medagent.tools.corpus import SEARCH
from medagent.tools.functions import FunctionTool
from medagent.tools.named import tools_of
from medagent.training.rewards import OutcomeReward
from medagent.types import Question
from tests.recording import Finds


def dose(per_kg: float, weight: int, unit: str = "mg") -> str:
    """The dose by weight.

    Args:
        per_kg: How much per kilogram.
        weight: The weight,
            in kilograms.
        unit: Its unit.
    """
    return f"{per_kg * weight:g} {unit}"


async def double(number: int) -> dict[str, int]:
    """Twice a number.

    Args:
        number: The number.
    """
    if number < 0:
        raise ValueError("wanted no debt")
    return {"twice": 2 * number}


def broken(how: str) -> Any:
    """Goes wrong.

    Args:
        how: In which way.
    """
    if how == "hang":
        time.sleep(60)
    elif how == "exit":
        sys.exit(3)
    elif how == "stop":
        raise StopIteration
    elif how == "cancel":
        raise asyncio.CancelledError
    elif how == "divide":
        return 1 / 0
    odd = {"bytes": b"\x00\xff", "endless": itertools.count(), "object": object()}
    return {**odd, "large": "x" * 10_000_000, "list": [1, "a"], "empty": ""}[how]


async def blocks(how: str) -> None:
    """Blocks the loop that it runs on.

    Args:
        how: Ignored.
    """
    time.sleep(60)


TOOLS = tools_of([dose, double, broken, blocks])


def called(*calls: tuple[str, dict[str, Any]], **limits: int) -> list[ToolResult]:
    batcher = SearchBatcher(Finds(), top_k=3)
    context = CallContext(batcher.search, batcher)
    return asyncio.run(run_calls([ToolCall(*call) for call in calls], (SEARCH, *TOOLS), context, **limits))


def text(result: ToolResult) -> str:
    return result.error or result.hits[0].passage.shown_text


def test_the_schema_is_that_of_signature_and_docstring() -> None:
    told = TOOLS[0].schema["function"]
    assert (told["name"], told["description"]) == ("dose", "The dose by weight.")
    assert told["parameters"]["required"] == ["per_kg", "weight"]
    assert told["parameters"]["properties"]["weight"] == {
        "type": "integer",
        "description": "The weight, in kilograms.",
    }


def test_results_are_passages_in_the_order_of_the_calls() -> None:
    found = called(("dose", {"per_kg": "15", "weight": 64, "unit": None}), ("double", {"number": 4}))
    assert [text(each) for each in found] == [
        'dose: {"per_kg": "15", "weight": 64}: 960 mg',
        'double: {"number": 4}: {"twice":8}',
    ]
    assert found[0].hits[0].passage.source == "tool dose"


def test_a_wrong_argument_is_an_error_that_names_it() -> None:
    found = called(
        ("dose", {"per_kg": "much", "wight": 3}),
        ("double", {"number": -1}),
        ("doze", {}),
        ("dose", {"per_kg": 1, "weight": 1, "unit": "\ud800"}),
        ("search", {"query": "gout", "where": "colour=red"}),
        ("search", {"query": " "}),
        ("search", {"query": "gout", "top_k": 10**9}),
    )
    assert "per_kg: Input should be a valid number" in found[0].error
    assert "weight: Missing required argument; wight: Unexpected keyword argument" in found[0].error
    assert found[1].error == "not possible: wanted no debt"
    assert found[2].error == "there is no tool 'doze'. There are: search, dose, double, broken, blocks."
    assert text(found[3]).endswith("1 ?")
    assert "takes no filter" in found[4].error
    assert found[5].error == found[6].error
    assert "10,000 characters at most, and top_k 1 to 50" in found[6].error


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ("exit", "the tool failed: SystemExit"),
        ("stop", "the tool failed: StopIteration"),
        ("cancel", "the tool failed: CancelledError"),
        ("divide", "the tool failed: ZeroDivisionError"),
        ("other", "the tool failed: KeyError"),
        ("bytes", "the tool failed: it gave a bytes, wanted text or JSON"),
        ("endless", "the tool failed: it gave a count, wanted text or JSON"),
        ("object", "the tool failed: Unable to serialize unknown type: <class 'object'>"),
        ("list", 'broken: list: [1,"a"]'),
        ("empty", "broken: empty: an empty result"),
    ],
)
def test_whatever_a_tool_does_is_a_result(how: str, shown: str) -> None:
    assert text(called(("broken", {"how": how}))[0]) == shown


def test_a_long_text_is_truncated_and_says_so_first() -> None:
    said = text(called(("broken", {"how": "large"}))[0])
    assert said.startswith("broken: large (the first 50,000 of 10,000,000 characters): xxx")
    assert len(said) < MAX_CHARACTERS + 100


def test_a_tool_that_hangs_holds_up_neither_others_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in TOOLS:
        monkeypatch.setattr(tool, "timeout_s", 0.3)
    start = time.monotonic()
    found = called(("broken", {"how": "hang"}), ("double", {"number": 1}), ("blocks", {"how": ""}))
    assert time.monotonic() - start < 5
    assert [each.error for each in found] == ["the tool failed: no answer within 0.3 s", "", found[0].error]
    monkeypatch.setattr("medagent.tools.functions.MAX_HUNG", 1)
    assert called(("blocks", {"how": ""}))[0].error == "the tool failed: 1 earlier calls of it have not ended"


def test_a_turn_has_eight_calls() -> None:
    found = called(*[("double", {"number": 1})] * 1000)
    assert [not each.error for each in found] == [True] * 8 + [False] * 992
    assert "a turn may have 8 calls" in found[8].error


def test_training_stops_over_a_tool_that_does_nothing_but_fail() -> None:
    tool = FunctionTool(broken)
    batcher = SearchBatcher(Finds(), top_k=3)
    for how, failures in (("divide", 20), ("list", 0), ("divide", 1)):
        for _ in range(failures or 1):
            asyncio.run(run_calls([ToolCall("broken", {"how": how})], [tool], CallContext(batcher.search, batcher)))
        assert tool.failures == failures
        if failures == 20:
            with pytest.raises(ToolError, match="tool broken: found 20 calls in a row that failed"):
                check_working([tool])
        else:
            check_working([tool])


def test_a_search_that_is_down_is_no_result() -> None:
    class Down:
        def search(self, queries: Sequence[str], *, top_k: int) -> Any:
            raise ConnectionError("gone")

    batcher = SearchBatcher(Down(), top_k=3, retries=0)
    with pytest.raises(RetrieverUnavailableError):
        asyncio.run(run_calls([ToolCall("search", {"query": "x"})], [SEARCH], CallContext(batcher.search, batcher)))


def test_a_query_in_tags_calls_the_tool_that_it_names() -> None:
    def one(query: str) -> ToolCall:
        return routed([ToolCall("search", {"query": query})], TOOLS)[0]

    assert one(" Double : 21") == ToolCall("double", {"number": 21})
    assert one("broken: {}") == ToolCall("broken", {"how": "{}"})
    assert one('dose: {"per_kg": 2, "weight": 3}') == ToolCall("dose", {"per_kg": 2, "weight": 3})
    assert one("dose: 2 mg").error == "not possible: wanted a JSON object with per_kg, weight, unit"
    for query in ("triple: 3", "double", "gout", ""):
        assert one(query) == ToolCall("search", {"query": query})


def test_a_tools_result_is_read_and_cited_like_a_passage(tokenizer) -> None:
    said = ["<search>double: x</search>", "<search>double: 4</search>", "<answer> 8 [1]</answer>"]
    policy = ScriptedPolicy(tokenizer, lambda read, turn: said[turn])
    agent = Agent(policy, NoRetriever(), tools=tools_of([double]))
    rollout = agent.run_all([Job(Question("q", "Twice 4?", answer="8"))])[0]
    assert "number: Input should be a valid integer" in tokenizer.decode(rollout.turns[0].observation_ids)
    assert [hit.passage.text for hit in rollout.hits] == ['{"twice":8}']
    assert [call.name for turn in rollout.turns for call in turn.calls] == ["double", "double"]
    assert "[1]." in tokenizer.decode(rollout.turns[1].observation_ids)
    assert (rollout.num_searches, rollout.turns[1].query) == (0, None), "a call of a tool is no search"
    step = [Steps(agent.protocol, agent.retriever)(turn) for turn in rollout.turns][1]
    assert step["calls"] == [{"name": "double", "arguments": {"number": 4}, "error": ""}]
    assert thought_of(step) == 'Called: double {"number": 4} (1 new passages)\n'
    console = Console(file=StringIO())
    TurnPrinter(console, agent.protocol, agent.retriever)(rollout.turns[1])
    assert 'calls    double {"number": 4}' in console.file.getvalue()
    assert "neither" not in console.file.getvalue()
    assert OutcomeReward()(rollout).success


def test_what_cannot_be_a_tool_is_refused() -> None:
    def untold(number: int) -> int:
        """Twice."""
        return 2 * number

    def untyped(number):  # type: ignore[no-untyped-def]
        """Twice.

        Args:
            number: It.
        """

    for wrong, what in (
        (untold, "no description for the argument 'number'"),
        (untyped, "missing a type hint"),
        (lambda: 1, "no docstring"),
        (f"{__name__}.TOOLS", "found a tuple"),
        (f"{__name__}.nothing", "has no attribute"),
        ("no_such_module.tool", "No module named 'no_such_module'"),
        ("x", "Wanted search, read, or a function"),
    ):
        with pytest.raises(ToolError, match=what):
            tools_of([wrong])
    with pytest.raises(ToolError, match="names that differ"):
        tools_of([dose, dose])
    (found,) = tools_of([f"{__name__}.dose"])
    assert found.given == f"{__name__}.dose"
