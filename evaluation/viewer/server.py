"""Serves the page of `medagent view` on this machine, or writes it as one file that needs no server."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from medagent import serving
from medagent.errors import InputError
from medagent.evaluation.viewer.recorded import RecordedRun
from medagent.serving.middleware import Guards

PAGE = Path(__file__).parent / "static"
SERVICE_PAGE = Path(serving.__file__).parent / "static"
LARGEST = 40_000_000  # bytes of rollouts in an exported page: browsers open larger ones slowly or not at all
SCRIPTS = ("source", "curves", "tables", "rollout", "main")  # in the order in which one file holds them
HOSTS = ("127.0.0.1", "localhost", "[::1]")
MOVED = re.compile(r"^(import .*?;\n|export (?=const|function|async))", re.MULTILINE)


def make_viewer(runs: Sequence[RecordedRun]) -> Guards:
    """The application: the page at "/", and the runs' data under "/data/NUMBER/"."""

    def overview(request: Request) -> Response:
        return JSONResponse(_run(request).overview(request.query_params.getlist("known")))

    def lines(request: Request) -> Response:
        found = _run(request).lines(request.path_params["part"])
        return Response(found, media_type="application/x-ndjson", headers={"Content-Encoding": "gzip"})

    def _run(request: Request) -> RecordedRun:
        return runs[int(request.path_params["run"])]

    def names(request: Request) -> Response:
        return JSONResponse([str(run.folder) for run in runs])

    routes = [
        Route("/", lambda request: FileResponse(PAGE / "index.html")),
        Route("/data/runs", names),
        Route("/data/{run:int}/overview", overview),
        Route("/data/{run:int}/parts/{part}", lines),
        Mount("/page/service", StaticFiles(directory=SERVICE_PAGE)),
        Mount("/page", StaticFiles(directory=PAGE)),
    ]
    said = {
        LookupError: lambda request, error: JSONResponse({"error": "there is none"}, status_code=404),
        InputError: lambda request, error: JSONResponse({"error": str(error)}, status_code=422),
    }
    return Guards(Starlette(routes=routes, exception_handlers=said), hosts=HOSTS)


def exported(runs: Sequence[RecordedRun]) -> str:
    """The page with its data, as one HTML text without a foreign asset.

    Rollouts of more than `LARGEST` bytes are those of some parts, spread evenly, and the page says so.
    """
    data = [_packed(run, LARGEST // len(runs)) for run in runs]
    scripts = [SERVICE_PAGE / "dom.js", *(PAGE / f"{name}.js" for name in SCRIPTS)]
    script = "\n".join(MOVED.sub("", path.read_text(encoding="utf-8")) for path in scripts)
    style = "\n".join((folder / "page.css").read_text(encoding="utf-8") for folder in (SERVICE_PAGE, PAGE))
    allowed = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}"
    head = f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n<style>{style}</style>'
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    page = re.sub(r"<!-- parts -->.*<!-- /parts -->", lambda _: head, page, flags=re.DOTALL)
    told = json.dumps(data).replace("<", "\\u003c")
    ends = (
        f'<script type="application/json" id="data">{told}</script>\n<script type="module">{script}</script>\n</body>'
    )
    return page.replace("</body>", ends)


def _packed(run: RecordedRun, room: int) -> dict[str, Any]:
    """A run's data for an exported page, in `room` bytes: all of its parts, or as many as fit."""
    overview = run.overview()
    lines = {name: base64.b64encode(run.lines(name)).decode() for name in overview["parts"]}
    names, sizes = list(lines), [len(text) + len(json.dumps(overview["parts"][name])) for name, text in lines.items()]
    for count in range(len(names), -1, -1):
        kept = {round(at * (len(names) - 1) / max(1, count - 1)) for at in range(count)}
        if sum(sizes[at] for at in kept) <= room:
            break
    overview["parts"] = {name: part for at, (name, part) in enumerate(overview["parts"].items()) if at in kept}
    if len(kept) < len(names):
        told = f"This file holds the rollouts of {len(kept)} of {len(names)} iterations or modes"
        overview["left_out"] = f"{told}; all take {sum(sizes) / 1e6:.0f} MB. medagent view {run.folder} shows them."
    return {"overview": overview, "parts": {name: lines[name] for name in overview["parts"]}}


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
