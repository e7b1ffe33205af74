"""What `medagent serve` does: open an agent once, and answer over HTTP until interrupted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from medagent.asking import open_agent
from medagent.errors import ConfigError
from medagent.protocol import NOT_ADVICE
from medagent.serving.app import LOOPBACK, make_app
from medagent.serving.desk import Limits
from medagent.serving.guards import read_tokens

GRACE_S = 30  # running answers may take so long after the first Ctrl-C


def serve_agent(
    agent: str,
    *,
    index: str | None,
    model: str,
    tools: Sequence[str],
    name: str,
    host: str,
    port: int,
    tokens: str | None,
    limits: Limits,
) -> None:
    """Serve an agent; on an address that others reach it asks for tokens."""
    if host not in LOOPBACK and tokens is None:
        raise ConfigError(
            f"host {host}: others could reach the agent there, and no tokens are set. Give --tokens FILE (a SHA-256 digest a line), or leave --host out."
        )
    known = sorted(read_tokens(Path(tokens))) if tokens else []
    ready = open_agent(agent, index=index, model=model, tools=tools)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    app = make_app(ready, name=name, limits=limits, hosts=LOOPBACK if host in LOOPBACK else ("*",), tokens=known)
    print(
        f"Serving {agent} as {name!r} at http://{host}:{port}/v1; its description at /openapi.json. {NOT_ADVICE}",
        flush=True,
    )
    uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S)
