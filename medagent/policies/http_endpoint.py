"""An HTTP endpoint that may be slow, busy or unreachable for a while. Requests are retried with back-off."""

import asyncio
import math
import re
import sys
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httpx

from medagent.errors import EndpointError, PolicyError
from medagent.retrieval.http_service import LONGEST_WAIT_S, RETRY_STATUS, retry_after_s

USUAL_REST_S = 10.0  # until a server that does not answer may do so
PATIENCE_S = 1800.0  # the longest total wait of a request at a limit, while no other request is answered
_MISSING_FLAG = re.compile(r"requires --")  # a server's way to say how it must be started; no wait mends that
_LASTING = re.compile(r"insufficient_quota|per.?day|too large", re.IGNORECASE)  # limits that no minute lifts


class EndpointGoneError(EndpointError):
    """No answer after all attempts. The endpoint may be down; another replica may answer."""


@dataclass
class Endpoint:
    """An API whose base address is `url`, such as http://localhost:8000/v1.

    `socket` is the path of a Unix socket that reaches it; the host in `url` then does not matter. `remedy` ends the
    error for an endpoint that does not answer. With `requests_per_minute` above 0, requests are sent no faster, evenly
    spaced.
    """

    url: str
    api_key: str = ""
    timeout_s: float = 120.0
    retries: int = 5
    backoff_s: float = 1.0
    socket: str = ""
    remedy: str = "Start it, or try again later."
    requests_per_minute: float = 0.0
    patience_s: float = PATIENCE_S
    works: bool = field(default=False, repr=False)  # whether the last request was answered
    _next_at: float = field(default=0.0, repr=False)
    _served: int = field(default=0, repr=False)
    _limit_said: bool = field(default=False, repr=False)
    _client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = field(default=None, repr=False)

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """The answer to one request, whatever its status. Temporary failures are retried first.

        A limit on requests is no attempt. The client waits as long as `Retry-After` says, in seconds or by its date. A
        429 without it is asked again after 1, 2, 4 and up to 60 seconds, which outlasts a limit per minute. These
        waits end after `patience_s` without an answer to any request. `status_of` says what a status of 200 counts as.

        Raises `EndpointGoneError` after the last attempt, and `PolicyError` where the address itself is wrong.
        """
        failure, status, told_s = "", 0, None
        attempt, limited, waited_s, since, served = 0, 0, 0.0, math.inf, self._served
        while attempt <= self.retries:
            wait_s = min(LONGEST_WAIT_S, self.backoff_s * 2**attempt)
            attempt += 1
            await self._turn()
            try:
                answer = await self._http().post(f"{self.url.rstrip('/')}/{path}", json=body)
            except (httpx.TransportError, httpx.DecodingError) as error:
                failure, status, told_s = repr(error), 0, None
            except (httpx.InvalidURL, httpx.RequestError, UnicodeEncodeError) as error:
                raise PolicyError(f"endpoint {self.url}: cannot be asked ({error!r}). Check the address.") from error
            else:
                status = status_of(answer)
                if status not in RETRY_STATUS or _MISSING_FLAG.search(answer.text):
                    self._served, self.works = self._served + 1, status == 200
                    return answer
                inside = "" if status == answer.status_code else " inside a 200"
                failure = f"status {status}{inside}: {answer.text[:200]}"
                told_s = retry_after_s(answer)
                if told_s is None and status == 429 and not _LASTING.search(answer.text):
                    told_s, limited = min(LONGEST_WAIT_S, self.backoff_s * 2**limited), limited + 1
                if self._served != served:
                    served, waited_s = self._served, 0.0
                if told_s is not None and waited_s + told_s <= self.patience_s:
                    wait_s, counted = max(told_s, self.backoff_s), told_s >= self.backoff_s
                    # An answer that asks for no wait counts as an attempt, or the retries would never end.
                    attempt, waited_s = attempt - counted, waited_s + wait_s
                    self._say_limit(failure)
            since = min(since, monotonic())
            if attempt <= self.retries:
                await asyncio.sleep(wait_s)
        told = f"endpoint {self.url}: no answer after {attempt} attempts ({failure}). {self.remedy}"
        self.works = False
        rest_s = math.ceil(told_s or USUAL_REST_S)
        raise EndpointGoneError(told, since=since, host=self.host, status=status, retry_after_s=rest_s)

    async def get(self, path: str) -> httpx.Response:
        """The answer to one request without a body, asked once. Raises `httpx.HTTPError`."""
        return await self._http().get(f"{self.url.rstrip('/')}/{path}")

    @property
    def host(self) -> str:
        """The host and port of `url`, without what may be secret in it."""
        return httpx.URL(self.url).netloc.decode()

    async def _turn(self) -> None:
        """Wait until `requests_per_minute` lets the next request go."""
        if self.requests_per_minute:
            now = monotonic()
            at = max(now, self._next_at)
            self._next_at = at + 60 / self.requests_per_minute
            await asyncio.sleep(at - now)

    def _say_limit(self, failure: str) -> None:
        if not self._limit_said:
            print(f"endpoint {self.url}: limits requests ({failure}). Waiting, then asking again.", file=sys.stderr)
        self._limit_said = True

    async def disconnect(self) -> None:
        """Close the connections of the running event loop."""
        if self._client is not None and self._client[0] is asyncio.get_running_loop():
            client, self._client = self._client[1], None
            await client.aclose()

    def refusal(self, answer: httpx.Response, model: str) -> EndpointError:
        """The error for an answer that is neither a success nor a temporary failure."""
        advice = f"Check the address, the model's name ({model!r}) and the key in MEDAGENT_API_KEY."
        return EndpointError(
            f"endpoint {self.url}: refused with status {answer.status_code}: {answer.text[:300]}. "
            f"{self.remedy if self.socket else advice}",
            host=self.host,
            status=answer.status_code,
        )

    def _http(self) -> httpx.AsyncClient:
        """The client of the running event loop: connections belong to a loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            transport = httpx.AsyncHTTPTransport(uds=self.socket, limits=limits) if self.socket else None
            client = httpx.AsyncClient(timeout=self.timeout_s, headers=headers, limits=limits, transport=transport)
            self._client = (loop, client)
        return self._client[1]


def status_of(answer: httpx.Response) -> int:
    """The status of an answer.

    Routers send errors inside a 200: the status is then the one that the error names, or 502. A 200 without a choice
    in JSON counts as 502 too.
    """
    if answer.status_code != 200:
        return answer.status_code
    try:
        row = answer.json()
    except ValueError:
        return 502
    if not isinstance(row, dict):
        return 502
    choices = row.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    failed = first.get("finish_reason") == "error"
    error = first.get("error") or row.get("error")
    said = isinstance(first.get("message"), dict) and first["message"].get("content")
    if not failed and (not error or said):
        return 200 if first else 502
    code = str(error.get("code")) if isinstance(error, dict) else ""
    return int(code) if re.fullmatch("[45][0-9]{2}", code) else 502
