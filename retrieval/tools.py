"""Tools beside the corpus: called by the search tag, and read, numbered and cited like passages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib import import_module
from inspect import getsource, signature

from medagent.retrieval.batching import passes
from medagent.retrieval.controls import UnreliableRetriever
from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError, ToolError
from medagent.retrieval.filters import Filter
from medagent.retrieval.passages import Hit, Passage
from medagent.retrieval.retriever import FilteringRetriever, Retriever, WordReplacing


class Tool(ABC):
    """A function from text to text with a name, such as a calculator or a drug table.

    Subclass it, and name the class in the YAML. A tool is made without arguments, as an exported agent keeps the names
    of classes alone. So the agent can be opened with the tools that it was trained with.
    """

    name: str  # what a query begins with, before a colon: letters, digits and underscores

    def __init_subclass__(cls) -> None:
        """Refuse a tool that could not be called, or not be made again."""
        if not str(cls.__dict__.get("name", "")).isidentifier():
            raise ToolError(
                f"tool {cls.__qualname__}: found the name {cls.__dict__.get('name')!r}, wanted letters, digits and "
                'underscores: name = "dose".'
            )
        if signature(cls).parameters:
            raise ToolError(
                f"tool {cls.__qualname__}: found arguments {list(signature(cls).parameters)}, wanted none. Write a "
                "class with its settings inside."
            )

    @abstractmethod
    def use(self, argument: str) -> str:
        """The result for what follows the colon: any text that the policy writes. Threads may call it at once.

        Equal arguments must give equal results.

        Raises:
            ValueError: its message is given to the agent as the result. An `OSError` is tried again, as a search is.
                Any other error ends the run.
        """


class Toolbox:
    """A retriever that sends a query such as "dose: 15 mg 70 kg" to the tool named `dose`, and others to the corpus.

    Say in `protocol.instructions` which tools there are. A result is one passage with the call for its title.
    """

    def __init__(self, retriever: Retriever, tools: list[Tool]) -> None:
        names = [tool.name.lower() for tool in tools]
        if not names or len(set(names)) < len(names):
            raise ToolError(f"tools: found the names {names}, wanted one or more, all different.")
        if isinstance(retriever, Toolbox):
            raise ToolError("tools: found a Toolbox in a Toolbox, wanted one with all tools.")
        self.retriever, self.tools = retriever, dict(zip(names, tools, strict=True))

    @property
    def class_paths(self) -> tuple[str, ...]:
        """The classes of the tools."""
        return tuple(class_path(tool) for tool in self.tools.values())

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        return self._answered(queries, lambda others: self.retriever.search(others, top_k=top_k))

    def search_where(self, queries: Sequence[str], *, top_k: int, where: Filter) -> list[list[Hit]]:
        """See `FilteringRetriever.search_where`; the tools answer as ever."""
        corpus = self.retriever
        if not isinstance(corpus, FilteringRetriever):
            raise ToolError(f"filter {where}: {type(corpus).__name__} behind the tools takes none.")
        return self._answered(queries, lambda others: corpus.search_where(others, top_k=top_k, where=where))

    def _answered(self, queries: Sequence[str], search: Callable[[Sequence[str]], list[list[Hit]]]) -> list[list[Hit]]:
        found: list[list[Hit] | None] = [self._by_tool(query) for query in queries]
        others = [query for query, hits in zip(queries, found, strict=True) if hits is None]
        searched = iter(search(others) if others else [])
        return [next(searched) if hits is None else hits for hits in found]

    def _by_tool(self, query: str) -> list[Hit] | None:
        name, colon, argument = query.partition(":")
        tool = self.tools.get(name.strip().lower()) if colon else None
        if tool is None:
            return None
        try:
            result = tool.use(argument.strip())
        except ValueError as error:
            result = f"not possible: {error}"
        except Exception as error:
            kind = RetrieverUnavailableError if passes(error) else ToolError
            failure: RetrievalError = kind(
                f"tool {name.strip()}: {argument.strip()!r} ended in {error!r}. Let it raise ValueError for an "
                "agent's mistakes; then the agent reads the message."
            )
            failure.query = query
            raise failure from error
        if not isinstance(result, str):
            failure = ToolError(f"tool {name.strip()}: gave {result!r} for {argument.strip()!r}, wanted a text.")
            failure.query = query
            raise failure
        return [Hit(Passage.make(f"{tool.name}: {argument.strip()}", result, source=f"tool {tool.name}"), 1.0)]


def corpus_of(retriever: Retriever) -> Retriever:
    """The retriever of the corpus, without tools and without failures that training injects."""
    if isinstance(retriever, Toolbox | UnreliableRetriever):
        return corpus_of(retriever.retriever)
    return retriever


def replaced_words(retriever: Retriever, query: str) -> dict[str, tuple[str, ...]]:
    """See `WordReplacing.replaced`, of the corpus; nothing where it cannot tell, as one that is served elsewhere."""
    corpus = corpus_of(retriever)
    return corpus.replaced(query) if isinstance(corpus, WordReplacing) else {}


def without_failures(retriever: Retriever) -> Retriever:
    """The same retriever for an agent in use: without failures that training injects, with its tools."""
    if isinstance(retriever, Toolbox):
        return Toolbox(without_failures(retriever.retriever), list(retriever.tools.values()))
    return corpus_of(retriever)


def class_path(tool: Tool) -> str:
    """Module and name of a tool's class."""
    return f"{type(tool).__module__}.{type(tool).__qualname__}"


def tool_named(path: str) -> Tool:
    """A tool by its class, such as "my_task.Doses", which is made without arguments."""
    module, _, name = path.rpartition(".")
    try:
        made = getattr(import_module(module), name)()
    except Exception as error:  # whatever a module of the user's does when it is imported
        raise ToolError(
            f"tool {path!r}: cannot be made ({error}). Wanted a class that takes no arguments, in a module that "
            "Python finds from here, such as my_task.Doses."
        ) from error
    if not isinstance(made, Tool):
        raise ToolError(f"tool {path!r}: found a {type(made).__name__}, wanted a subclass of retrieval.tools.Tool.")
    return made


def code_digest(path: str) -> str:
    """A digest of a tool's class, by its source."""
    return sha256(getsource(type(tool_named(path))).encode()).hexdigest()
