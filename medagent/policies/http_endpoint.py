"""An HTTP endpoint that may be slow, busy or gone for a while. Requests are retried with back-off."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx

from medagent.errors import PolicyError

RETRY_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}
LONGEST_WAIT_S = 60.0


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

        Raises `EndpointGoneError` after the last attempt, and `PolicyError` where the address itself is wrong.
        """
        failure = ""
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(min(LONGEST_WAIT_S, self.backoff_s * 2 ** (attempt - 1)))
            try:
                answer = await self._http().post(f"{self.url.rstrip('/')}/{path}", json=body)
            except httpx.TransportError as error:
                failure = repr(error)
                continue
            except (httpx.InvalidURL, httpx.RequestError, UnicodeEncodeError) as error:
                raise PolicyError(f"endpoint {self.url}: cannot be asked ({error!r}). Check the address.") from error
            if answer.status_code not in RETRY_STATUS:
                return answer
            failure = f"status {answer.status_code}: {answer.text[:200]}"
        raise EndpointGoneError(
            f"endpoint {self.url}: no answer after {self.retries + 1} attempts ({failure}). {self.remedy}"
        )

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
