"""An HTTP endpoint that may be slow, busy or unreachable for a while. Requests are retried with back-off."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx

from medagent.errors import PolicyError

RETRY_STATUS = {408, 409, 425, 429, *range(500, 505), *range(520, 525), 529}
LONGEST_WAIT_S = 60.0
PATIENCE_S = 1800.0  # the longest total wait for answers that say when to ask again


class EndpointGoneError(PolicyError):
    """No answer after all attempts. The endpoint may be down; another replica may answer."""


@dataclass
class Endpoint:
    """An API whose base address is `url`, such as http://localhost:8000/v1.

    `socket` is the path of a Unix socket that reaches it; the host in `url` then does not matter. `remedy` ends the
    error for an endpoint that does not answer.
    """

    url: str
    api_key: str = ""
    timeout_s: float = 120.0
    retries: int = 5
    backoff_s: float = 1.0
    socket: str = ""
    remedy: str = "Start it, or try again later."
    _client: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient] | None = field(default=None, repr=False)

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """The answer to one request, whatever its status. Temporary failures are retried first.

        An answer that says when to ask again (`Retry-After`) is no attempt. The client waits that long, up to
        `PATIENCE_S` in all. An error inside an answer of status 200 counts as the status that it names, or as 502.

        Raises `EndpointGoneError` after the last attempt, and `PolicyError` where the address itself is wrong.
        """
        failure, attempt, waited_s = "", 0, 0.0
        while attempt <= self.retries:
            wait_s = min(LONGEST_WAIT_S, self.backoff_s * 2**attempt)
            attempt += 1
            try:
                answer = await self._http().post(f"{self.url.rstrip('/')}/{path}", json=body)
            except httpx.TransportError as error:
                failure = repr(error)
            except (httpx.InvalidURL, httpx.RequestError, UnicodeEncodeError) as error:
                raise PolicyError(f"endpoint {self.url}: cannot be asked ({error!r}). Check the address.") from error
            else:
                status = status_of(answer)
                if status not in RETRY_STATUS:
                    return answer
                failure = f"status {status}: {answer.text[:200]}"
                told_s = _retry_after_s(answer)
                if told_s is not None and waited_s + told_s <= PATIENCE_S:
                    wait_s, counted = max(told_s, self.backoff_s), told_s >= self.backoff_s
                    # An answer that asks for no wait counts as an attempt, or the retries would never end.
                    attempt, waited_s = attempt - counted, waited_s + wait_s
            if attempt <= self.retries:
                await asyncio.sleep(wait_s)
        raise EndpointGoneError(f"endpoint {self.url}: no answer after {attempt} attempts ({failure}). {self.remedy}")

    async def disconnect(self) -> None:
        """Close the connections of the running event loop."""
        if self._client is not None and self._client[0] is asyncio.get_running_loop():
            client, self._client = self._client[1], None
            await client.aclose()

    def refusal(self, answer: httpx.Response, model: str) -> PolicyError:
        """The error for an answer that is neither a success nor a temporary failure."""
        advice = f"Check the address, the model's name ({model!r}) and the key in MEDAGENT_API_KEY."
        return PolicyError(
            f"endpoint {self.url}: refused with status {answer.status_code}: {answer.text[:300]}. "
            f"{self.remedy if self.socket else advice}"
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
    """The status of an answer. Routers send errors inside a 200: the status is then the one that the error names."""
    if answer.status_code != 200:
        return answer.status_code
    try:
        row = answer.json()
    except ValueError:
        return 200
    if not isinstance(row, dict):
        return 200
    choices = row.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    failed = first.get("finish_reason") == "error"
    error = first.get("error") or row.get("error")
    said = isinstance(first.get("message"), dict) and first["message"].get("content")
    if not failed and (not error or said):
        return 200
    code = error.get("code") if isinstance(error, dict) else None
    return int(str(code)) if str(code).isdecimal() else 502


def _retry_after_s(answer: httpx.Response) -> float | None:
    """Seconds that an answer asks to wait, None where it names no number of them."""
    said = answer.headers.get("retry-after", "")
    return float(said) if said.replace(".", "", 1).isdecimal() else None
