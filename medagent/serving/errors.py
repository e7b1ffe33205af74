"""Errors that a client reads, in OpenAI's shape."""

from typing import Any

from fastapi.responses import JSONResponse

from medagent.errors import MedagentError


class ServiceError(MedagentError):
    """An error with its HTTP status, and OpenAI's type, code and param. Waiting `retry_after_s`, if any, may help.

    From status 500 on the type is "server_error".
    """

    status: int = 400
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The body of the response."""
        kind = "server_error" if self.status >= 500 else self.type
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self, **headers: str) -> JSONResponse:
        """The response, with more `headers`."""
        waits = {"Retry-After": str(self.retry_after_s)} if self.retry_after_s else {}
        return JSONResponse(self.body, status_code=self.status, headers=waits | headers)


class OverloadedError(ServiceError):
    """Too many questions."""

    status, type, code = 429, "rate_limit_error", "overloaded"


class TooSlowError(ServiceError):
    """An answer took longer than is allowed."""

    status, code = 504, "timeout"


class TooLongError(ServiceError):
    """The question leaves the agent no room to answer."""

    code = "context_length_exceeded"
