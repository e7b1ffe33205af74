"""Connections that send no request are closed: silent or slow ones can neither fill the service nor starve it."""

from __future__ import annotations

import asyncio
import resource

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 10.0  # from a connection, or the first byte of a further request, to the end of a request's head
SPARE_FILES = 128  # file handles for the index, the log and the agent
MOST_CONNECTIONS = 4_096


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP/1.1 with a bound on the time that a request's head may take, and on the number of connections.

    Heads are bounded in size by uvicorn itself (64 KiB). The body has its own bounds (`medagent.serving.middleware`).
    """

    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.close()
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Bytes arrive; those of a whole head begin a request."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self.conn.our_state is not h11.CLOSED:
                self._await_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self.head_timer is None:
            self.head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None


def most_connections() -> int:
    """How many connections may be open at once: what the limit of file handles leaves."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft - SPARE_FILES))
