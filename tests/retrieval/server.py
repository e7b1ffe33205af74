"""A retrieval service for tests: a real server on a free port of this machine."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import uvicorn

from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.serving import make_app


class Serving:
    """Serves an index from its making until `stop`."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.retriever = HybridRetriever(str(folder), cache_size=0)
        config = uvicorn.Config(make_app(self.retriever), host="127.0.0.1", port=port, log_level="critical")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 60
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"no server on port {port}: another process may have taken it meanwhile")
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
