"""Checks before every request: its host name, its size and its token. Adds headers of security and an id.

The id is the client's own where it sent one.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import re
import resource
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from medagent.errors import ConfigError
from medagent.serving.errors import ServiceError

log = logging.getLogger("medagent.serving")
MAX_BODY_BYTES = 1_000_000
BODY_TIMEOUT_S = 30.0  # for a whole body
TOKEN_DIGITS = 8  # of a token's digest, in the log
PROBES = ("/healthz", "/readyz")
OPEN_PATHS = ("/", *PROBES)
OPEN_FOLDER = "/page/"  # the page itself holds no data, and asks for the token
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
        "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REQUEST_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)  # of a client, which is then returned and logged


def read_api_key_hashes(path: Path) -> frozenset[str]:
    """SHA-256 digests of bearer tokens, one per line; what follows a digest is a note."""
    try:
        lines = [line.split(maxsplit=1)[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as failure:
        raise ConfigError(
            f"api_key_hashes {path}: cannot be read ({failure}). Give a file with a SHA-256 digest per line."
        ) from failure
    wrong = [line for line in lines if not _SHA256.fullmatch(line)]
    if wrong or not lines:
        raise ConfigError(
            f"api_key_hashes {path}: found {len(wrong)} of {len(lines)} lines that are no SHA-256 digest, wanted one "
            "per line. Make one with: printf %s TOKEN | sha256sum."
        )
    return frozenset(lines)


def digest(token: str) -> str:
    """The SHA-256 digest of a token, which alone is kept."""
    return hashlib.sha256(token.encode()).hexdigest()


def _host(name: str) -> str:
    """A host name as it is compared: without port and final dot, in lower case, as browsers send it."""
    plain = re.sub(r":\d*$", "", name).lower().rstrip(".")
    try:
        return plain.encode("idna").decode() if not plain.isascii() else plain
    except UnicodeError:
        return plain


class Guards:
    """ASGI middleware that guards the service.

    It refuses requests to other host names than `hosts` (against DNS rebinding; "*" allows any), and bodies over
    `max_body_bytes` or slower than `BODY_TIMEOUT_S`. If digests of tokens are given, it refuses requests without a
    token. It logs each request without its text, with the first digits of its token's digest.
    """

    def __init__(
        self, app: ASGIApp, *, hosts: Sequence[str], tokens: Sequence[str] = (), max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._app, self._tokens, self._max = app, tuple(tokens), max_body_bytes
        self._hosts = frozenset(map(_host, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, began, status = Headers(scope=scope), time.perf_counter(), 0
        given = headers.get("x-request-id", "")
        id_ = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        scheme, _, token = headers.get("authorization", "").partition(" ")
        asker = digest(token.strip() if scheme.lower() == "bearer" else "") if self._tokens else ""
        scope.setdefault("state", {}).update(request_id=id_, asker=asker)
        head = scope["method"] == "HEAD"  # what GET would be answered, without the body

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                out["X-Request-Id"] = id_
                for name, value in HEADERS.items():
                    out.setdefault(name, value)
                allowed = {method.strip() for method in out.get("allow", "").split(",")}
                if "GET" in allowed:
                    out["allow"] = ", ".join(sorted(allowed | {"HEAD"}))
            await send({**message, "body": b""} if head and message["type"] == "http.response.body" else message)

        try:
            path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))  # a server may prefix its own
            self._check(headers, path, asker)
            body = [await self._body(receive)]

            async def listen() -> Message:
                return body.pop() if body else await receive()

            await self._app({**scope, "method": "GET"} if head else scope, listen, tell)
        except ServiceError as refused:
            asks = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
            await refused.response(**asks)(scope, receive, tell)
        finally:
            row = {
                "request": id_,
                "token": asker[:TOKEN_DIGITS] or None,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": round(time.perf_counter() - began, 3),
            }
            log.info(json.dumps(row))

    def _check(self, headers: Headers, path: str, asker: str) -> None:
        """Refuse by the head alone. Probes, which hold no data, answer under any host name."""
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max:
            raise self._too_large()
        if not (path in PROBES or "*" in self._hosts or _host(headers.get("host", "")) in self._hosts):
            told = "this host name is not served. The operator names it with medagent serve --auth.allowed_hosts."
            raise ServiceError(told, code="unknown_host")
        if not self._tokens or path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return
        if not any(hmac.compare_digest(asker, known) for known in self._tokens):
            told = "a bearer token is needed, or this one is not known."
            raise ServiceError(told, status=401, type="authentication_error", code="invalid_api_key")

    async def _body(self, receive: Receive) -> Message:
        """The whole body in one message, or that the client has gone."""
        body = b""
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                while (message := await receive())["type"] == "http.request":
                    body += message.get("body", b"")
                    if len(body) > self._max:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return {"type": "http.request", "body": body, "more_body": False}
        except TimeoutError as error:
            told = f"the body did not arrive within {BODY_TIMEOUT_S:g} s."
            raise ServiceError(told, status=408, code="body_too_slow") from error
        return message

    def _too_large(self) -> ServiceError:
        return ServiceError(f"the body is larger than {self._max:,} bytes.", status=413, code="body_too_large")


HEAD_TIMEOUT_S = 10.0  # from a connection, or the first byte of a further request, to the end of a request's head
SPARE_FILES = 128  # file handles for the index, the log and the agent
MAX_CONNECTIONS = 4_096


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP/1.1 with a bound on the time that a request's head may take, and on the number of connections."""

    head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects."""
        super().connection_made(transport)
        if len(self.connections) > max_connections():
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


def max_connections() -> int:
    """How many connections may be open at once: what the limit of file handles leaves."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MAX_CONNECTIONS, soft - SPARE_FILES))


def refuse_busy(host: str, port: int) -> None:
    """Raise `ConfigError` where the address cannot be listened on, before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"{host}:{port}: cannot be listened on ({error.strerror or error}). Give another --port, or stop what "
                "holds it."
            ) from error
