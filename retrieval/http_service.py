"""One HTTP service that embeds or reranks. Failed requests are repeated, and the key comes from MEDAGENT_RETRIEVAL_KEY.

An index of others may name a service of theirs. So it has a key of its own, and a service elsewhere is named aloud.
"""

import logging
import os
import time
import weakref
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from medagent.retrieval.errors import RetrievalError, RetrieverUnavailableError

log = logging.getLogger(__name__)
RETRY_STATUS = {408, 409, 425, 429, *range(500, 505), *range(520, 525), 529}
LONGEST_WAIT_S = 60.0
BATCH = 32  # texts per request, the most that TEI takes by default
RETRIES, BACKOFF_S, TIMEOUT_S = 4, 0.5, 120.0


class ServiceRefusalError(RetrievalError):
    """A service refused a request, with `status`; the same request would be refused again."""

    status = 0


class HttpService:
    """A service whose base address is `url`, such as http://localhost:8000/v1."""

    def __init__(self, url: str, what: str) -> None:
        """`what` names the service in errors. An address with a password or a query is refused: it would be stored."""
        self._what, self.url = f"{what} at {url}", url.rstrip("/")
        try:
            parts = httpx.URL(url)
        except httpx.InvalidURL:
            parts = httpx.URL("")
        if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo or parts.query:
            raise RetrievalError(
                f"{what}: found an address that is none or holds a key, wanted one such as http://localhost:8000/v1. "
                "Give a key in the variable MEDAGENT_RETRIEVAL_KEY."
            )
        if parts.host not in ("localhost", "127.0.0.1", "::1"):
            log.warning("%s: texts and queries are sent there.", self._what)
        key = os.environ.get("MEDAGENT_RETRIEVAL_KEY", "")
        self._client = httpx.Client(timeout=TIMEOUT_S, headers={"Authorization": f"Bearer {key}"} if key else {})
        weakref.finalize(self, self._client.close)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON of an answer. A failure that may pass is repeated, after `Retry-After` or doubled waits.

        Raises `RetrieverUnavailableError` after the last attempt, and `ServiceRefusalError` for any other status.
        """
        for attempt in range(RETRIES + 1):
            wait_s, cause = BACKOFF_S * 2**attempt, None
            try:
                answer = self._client.post(f"{self.url}/{path}", json=body)
            except httpx.HTTPError as error:
                failure, cause = repr(error), error
            else:
                failure = f"status {answer.status_code}: {answer.text[:300]}"
                if answer.status_code not in RETRY_STATUS:
                    return self._json(answer, failure)
                told_s = retry_after_s(answer)
                wait_s = wait_s if told_s is None else min(told_s, LONGEST_WAIT_S)
            if attempt < RETRIES:
                time.sleep(wait_s)
        raise RetrieverUnavailableError(
            f"{self._what}: no answer after {RETRIES + 1} attempts ({failure}). Start it, or try again later."
        ) from cause

    def _json(self, answer: httpx.Response, failure: str) -> Any:
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status_code != 200 or found is None:
            refusal = ServiceRefusalError(
                f"{self._what}: refused with {failure}. Check the address, the model's name and MEDAGENT_RETRIEVAL_KEY."
            )
            refusal.status = answer.status_code
            raise refusal
        return found

    def unexpected(self, wanted: str) -> RetrievalError:
        """The error for an answer that is not as it was asked for."""
        return RetrievalError(f"{self._what}: its answer lacks {wanted}. Check that it serves the model that is meant.")


def retry_after_s(answer: httpx.Response) -> float | None:
    """Seconds that an answer asks to wait, None where it names neither a number of them nor a date."""
    said, sent = answer.headers.get("retry-after", ""), answer.headers.get("date")
    if said.replace(".", "", 1).isdecimal():
        return float(said)
    try:  # the server's own date, as its clock may differ from ours
        now_s = parsedate_to_datetime(sent).timestamp() if sent else time.time()
        return max(0.0, parsedate_to_datetime(said).timestamp() - now_s)
    except ValueError:
        return None
