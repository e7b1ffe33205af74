"""The tools of the corpus: `search` finds passages, and `read` shows what stands around them."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.filters import EXAMPLE, FIELDS, NO_FILTER, Filter
from medagent.retrieval.passages import Hit, is_named
from medagent.tool_calls import ToolResult
from medagent.tools.base import CallContext
from medagent.tools.functions import FunctionTool

AROUND, PART = 3, 5  # passages that one call of `read` shows
MAX_QUERY, MAX_TOP_K = 10_000, 50
_context: ContextVar[CallContext] = ContextVar("context")


class CorpusTool(FunctionTool):
    """A coroutine function over the corpus. It runs on its rollout's loop, for as long as a search may take."""

    timeout_s = None

    async def call(self, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        _context.set(context)
        return ToolResult(self.name, tuple(await self._checked(**arguments)))


async def search(query: str, where: str = "", top_k: int | None = None) -> list[Hit]:
    """Search the medical corpus. Returns numbered passages, best first.

    Args:
        query: What to look for, in words or as a question.
        where: Only passages that fit these conditions, such as: {where}
        top_k: How many passages to return.
    """
    context = _context.get()
    if not query.strip() or len(query) > MAX_QUERY or not 1 <= (top_k or 1) <= MAX_TOP_K:
        raise ValueError(f"wanted words to search for, {MAX_QUERY:,} characters at most, and top_k 1 to {MAX_TOP_K}")
    if where.strip() and not context.batcher.filters:
        raise ValueError("this corpus takes no filter: leave out where")
    try:
        wanted = Filter.parse(where) if where.strip() else NO_FILTER
    except RetrievalError as error:
        raise ValueError(str(error)) from error
    return await context.search(query, top_k=top_k, where=wanted)


async def read(passage: str, part: int | None = None) -> list[Hit]:
    """Read a passage with the ones before and after it, or its document from a given part on.

    Args:
        passage: The passage's number, such as 3, or its id.
        part: The first part of the document to show, 1 for its beginning. Each passage tells which part it is.
    """
    if _context.get().only_given:
        raise ValueError("only the passages that were shown can be read")
    context, id_ = _context.get(), passage.strip().strip("[]()")[:500]
    if id_.isdecimal() and 1 <= int(id_) <= len(context.seen):
        id_ = context.seen[int(id_) - 1].id
    size, first = (AROUND, None) if part is None else (PART, max(part, 1))
    found = await context.batcher.read(id_, first=first, size=size)
    if found is None or any(is_named(each, context.withheld) for each in found.passages):
        raise ValueError(f"there is no passage {id_!r} in the corpus; {len(context.seen)} are numbered so far")
    if not found.passages:
        raise ValueError(f"the document has {found.total} parts, found part {part}")
    parts = enumerate(found.passages, start=found.first)
    said = f", part {{}} of {found.total}"
    return [Hit(replace(each, section=(each.section + said.format(n)).lstrip(", ")), 1.0) for n, each in parts]


assert search.__doc__
search.__doc__ = search.__doc__.format(where=f"{EXAMPLE}. Fields: {', '.join(FIELDS)}.")
SEARCH, READ = CorpusTool(search), CorpusTool(read)
