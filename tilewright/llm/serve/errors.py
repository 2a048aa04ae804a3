"""Errors as answers to a client. In: a status and a message. Out: the body that OpenAI's clients understand. Raised
while a request is read or run, turned into a response by `app`; never leaves the server."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer that is an error: `param` names the wrong field, `code` is for programs, the message for people.

    `retry_after` is in seconds, for a request that would be served later.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after

    @property
    def kind(self) -> str:
        """OpenAI's class of the error, which follows from the status."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def wrong_field(param: str, message: str) -> ApiError:
    """A field of a request with a value that is not allowed."""
    return ApiError(400, f"{param}: {message}", code="invalid_value", param=param)


def unsupported_field(param: str, message: str) -> ApiError:
    """A field of OpenAI's API that this server does not support."""
    return ApiError(400, f"{param}: {message}", code="unsupported_parameter", param=param)
