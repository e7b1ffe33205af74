"""What a tool is, and how the calls of a turn are run: side by side, checked, and within a time."""

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.errors import NoIndexError, RetrievalError, ToolError
from medagent.retrieval.passages import Hit, Passage, replace_surrogates
from medagent.tool_calls import ToolCall, ToolResult
from medagent.tracing import span

log = logging.getLogger(__name__)
MAX_CALLS = 8  # of a turn
MAX_CHARACTERS = 50_000  # of a result; the protocol then shows what fits into an observation
MAX_FAILURES = 20  # in a row, after which training stops


@dataclass(frozen=True)
class CallContext:
    """What a tool may use of its dialogue: its search, the corpus and what it withholds, and the passages from [1] on.

    `search` takes `top_k` and `where` as `SearchBatcher.search` does. With `only_given` no more of it may be read.
    """

    search: Callable[..., Awaitable[list[Hit]]]
    batcher: SearchBatcher
    seen: Sequence[Passage] = ()
    withheld: frozenset[str] = frozenset()
    only_given: bool = False


class Tool(ABC):
    """Something that a model calls by name. `parameters` is the JSON schema of its arguments, an object.

    `given` is the setting that names it. `failures` counts calls in a row that failed, but for their arguments.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    timeout_s: float | None = 30.0
    given: str | dict[str, Any] = ""
    failures = 0

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """The result for arguments that the model wrote; many calls may run at once.

        Raises:
            ValueError: the arguments do not fit, and the message tells the model why. Any other error is logged.
        """

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates and OpenAI's API take it."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": told}

    @property
    def fingerprint(self) -> str:
        """A digest by which records tell versions of a tool apart."""
        return sha256(json.dumps(self.schema, sort_keys=True).encode()).hexdigest()

    def result(self, arguments: Mapping[str, Any], text: str) -> ToolResult:
        """A text as a passage, whose title is the call. A long one is truncated, and the title says so."""
        alone = next(iter(arguments.values())) if len(arguments) == 1 else None
        written = alone if isinstance(alone, str) else json.dumps(arguments, ensure_ascii=False)
        title = f"{self.name}: {written[:200]}"
        if len(text) > MAX_CHARACTERS:
            title += f" (the first {MAX_CHARACTERS:,} of {len(text):,} characters)"
        passage = Passage.make(title, text[:MAX_CHARACTERS] or "an empty result", source=f"tool {self.name}")
        return ToolResult(self.name, (Hit(passage, 1.0),))


def routed(searches: Sequence[ToolCall], tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
    """Searches, of which one for "dose: 15 mg 70 kg" is a call of the tool `dose`.

    What follows the colon is the one argument that the tool needs, or a JSON object of several.
    """
    return tuple(_routed(str(call.arguments.get("query")), tools) or call for call in searches)


def _routed(query: str, tools: Sequence[Tool]) -> ToolCall | None:
    name, colon, said = (part.strip() for part in query.partition(":"))
    tool = next((each for each in tools if colon and each.name.lower() == name.lower()), None)
    if tool is None:
        return None
    known = tool.parameters.get("properties", {})
    needed = tool.parameters.get("required", list(known))
    single = needed[0] if len(needed) == 1 else ""
    try:
        found: Any = json.loads(said or "{}")
    except (ValueError, RecursionError):
        found = said
    if isinstance(found, dict) and (not single or found.keys() & known.keys()):
        return ToolCall(tool.name, found)
    if single:
        return ToolCall(tool.name, {single: said if known[single].get("type") == "string" else found})
    return ToolCall(tool.name, {}, f"not possible: wanted a JSON object with {', '.join(known)}")


async def run_calls(calls: Sequence[ToolCall], tools: Sequence[Tool], context: CallContext) -> list[ToolResult]:
    """The results of a turn's calls in order. The first `MAX_CALLS` run side by side, and the others get an error.

    Raises:
        RetrievalError: the corpus cannot be searched. Whatever goes wrong in a tool is a result.
    """
    known = {tool.name: tool for tool in tools}

    async def run(number: int, call: ToolCall) -> ToolResult:
        error = call.error
        if not error and number >= MAX_CALLS:
            error = f"not run: a turn may have {MAX_CALLS} calls. Call it in the next turn."
        elif not error and call.name not in known:
            error = f"there is no tool {call.name[:80]!r}. There are: {', '.join(known)}."
        if error:
            return ToolResult(call.name, error=error)
        try:
            with span("execute_tool", call.name, tool__name=call.name, tool__type="function") as made:
                result = await _run(known[call.name], call.arguments, context)
                made.set_attribute("medagent.tool_failed", bool(result.error))
                return result
        except NoIndexError:
            if len(known) == 1:
                raise
            return ToolResult(call.name, error="there is no corpus to search. Call another tool.")

    return list(await asyncio.gather(*(run(number, call) for number, call in enumerate(calls))))


async def _run(tool: Tool, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
    try:
        # JSON may name half of a character, which no encoder takes. Models write null for what they leave out.
        plain = json.loads(replace_surrogates(json.dumps(arguments, ensure_ascii=False)))
        needed = tool.parameters.get("required", ())
        given = {name: each for name, each in plain.items() if each is not None or name in needed}
        result = await asyncio.wait_for(tool.call(given, context), tool.timeout_s)
        tool.failures = 0
    except ValueError as error:
        result, tool.failures = ToolResult(tool.name, error=f"not possible: {str(error)[:2_000]}"), 0
    except Exception as error:
        if isinstance(error, RetrievalError) and not isinstance(error, ToolError):
            raise
        shown = str(error) if isinstance(error, ToolError) else type(error).__name__
        shown = f"no answer within {tool.timeout_s:g} s" if isinstance(error, TimeoutError) else shown
        tool.failures += 1
        if tool.failures & (tool.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th ... in a row
            log.warning("tool %s failed %d times in a row: %r for %.200r", tool.name, tool.failures, error, arguments)
        result = ToolResult(tool.name, error=f"the tool failed: {shown}")
    return result


def check_working(tools: Sequence[Tool]) -> None:
    """Raise `ToolError` where a tool does nothing but fail: an agent would learn not to use it."""
    for tool in tools:
        if tool.failures >= MAX_FAILURES:
            raise ToolError(
                f"tool {tool.name}: found {tool.failures} calls in a row that failed, as warnings above tell, wanted a "
                "tool that works. Mend it, and run the same command again to go on."
            )
