"""An index for assistants, over the Model Context Protocol: a tool `search`, and resources `passage://ID`."""

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field

from medagent.retrieval.batching import SearchBatcher
from medagent.retrieval.errors import RetrievalError, needs_package
from medagent.retrieval.filters import EXAMPLE, FIELDS, Filter
from medagent.retrieval.manifest import embedder_of_index
from medagent.retrieval.query_match import NOT_READ, operators_note
from medagent.retrieval.search import HybridRetriever

WHERE = (
    f"Only passages that fit these conditions, such as: {EXAMPLE}. Fields: {', '.join(FIELDS)}. Commas separate "
    "alternatives, and * stands for anything."
)
QUERY = f"What to look for, in words or as a question. {NOT_READ}"
NOTICE = "For research and education; this is not medical advice."


def make_server(retriever: HybridRetriever) -> Any:
    """The MCP server over an open index (official SDK)."""
    with needs_package("the MCP server", "mcp", "mcp"):
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.resources import ResourceSecurity
        from mcp.server.mcpserver.tools import Tool
        from mcp.types import ToolAnnotations
    batcher = SearchBatcher(retriever, top_k=5, retries=0)

    async def search(
        query: Annotated[str, Field(description=QUERY, max_length=2000)],
        top_k: Annotated[int, Field(description="How many passages", ge=1, le=50)] = 5,
        where: Annotated[str, Field(description=WHERE, max_length=2000)] = "",
        sources: Annotated[list[str] | None, Field(description="Only these sources; * stands for anything")] = None,
        year_from: Annotated[int | None, Field(description="Only passages of this year or later")] = None,
        year_to: Annotated[int | None, Field(description="Only passages of this year or earlier")] = None,
    ) -> dict[str, Any]:
        """Passages of the corpus that fit a query, best first, each with its id, source and text."""
        if not query.strip():
            raise RetrievalError("the query is empty, wanted words to search for")
        wanted = Filter.parse(where) & Filter.of(sources or (), year_from, year_to)
        hits = await batcher.search(query, top_k=top_k, where=wanted)
        return {
            "passages": [
                {**hit.passage.to_json(), "score": hit.score, "uri": f"passage://{quote(hit.passage.id, safe='')}"}
                for hit in hits
            ],
            "replaced": retriever.replaced(query),
            "note": operators_note(query),
            "notice": NOTICE,
        }

    tool = Tool.from_function(
        search,
        title="Search the medical corpus",
        annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
        structured_output=True,
    )
    # An argument that is not known is an error: a misspelt filter would filter nothing.
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters["additionalProperties"] = False
    server = MCPServer(
        "medagent",
        instructions=f"Searches a medical corpus of {len(retriever):,} passages. Cite passages by their id. {NOTICE}",
        tools=[tool],
    )

    # An id is looked up and never opened as a path, so that it may look like one.
    @server.resource(
        "passage://{id}", name="passage", mime_type="application/json", security=ResourceSecurity(exempt_params={"id"})
    )
    def passage(id: str) -> str:
        """One passage by id, whole."""
        found = retriever.passage(id)
        if found is None:
            raise RetrievalError(f"no passage {id!r} in this index")
        return json.dumps(found.to_json(), ensure_ascii=False)

    return server


def run_mcp(index: Path, *, device: str | None) -> None:
    """Serve an index on standard input and output until the client leaves."""
    make_server(HybridRetriever(str(index), embedder_of_index(index, device))).run("stdio")
