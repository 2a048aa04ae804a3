"""The checks before the routes. In: every request. Out: a refusal, or the request passed on and its status counted.

Checked in this order: the size of the headers, the host that the request names, the web page it comes from, the key.
A plain ASGI application, so that a stream passes through it piece by piece."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilewright.llm.serve.errors import ApiError
from tilewright.llm.serve.metrics import Metrics
from tilewright.llm.serve.settings import Settings

# Paths without a key: the page, which asks for one, and the health check of load balancers.
OPEN_PATHS = frozenset({"/", "/health", "/favicon.ico"})
# Paths that are counted by name; all others are counted together, so that a scanner does not fill the metrics.
COUNTED_PATHS = OPEN_PATHS | {"/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics"}
MAX_HEAD_BYTES = 32 << 10
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Refuses requests for another host, from a page of another origin, or without the key."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        label = path if path in COUNTED_PATHS else "other"

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.responses.labels(label, str(message["status"])).inc()
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        error = self.refusal(path, Headers(scope=scope), scope["method"])
        if error is None:
            await self.app(scope, receive, count_and_send)
        else:
            response = JSONResponse(error.body(), error.status, error.headers())
            await response(scope, receive, count_and_send)

    def refusal(self, path: str, headers: Headers, method: str) -> ApiError | None:
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
            return ApiError(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes", code="headers_too_large")
        host = headers.get("host", "")
        if not self.settings.accepts_host(host):
            message = f"this server does not answer for the host {host[:100]!r}; --allow-host adds a name"
            return ApiError(421, message, code="host_not_allowed")
        origin = headers.get("origin")
        if origin is not None and not self.settings.accepts_origin(origin, host):
            message = f"pages of {origin[:100]!r} may not call this server; --allow-origin adds an origin"
            return ApiError(403, message, code="origin_not_allowed")
        # A browser asks with OPTIONS, without the key, whether a page of an allowed origin may call.
        if self.settings.api_key and path not in OPEN_PATHS and method != "OPTIONS" and not self.has_key(headers):
            return ApiError(401, "the API key is missing or wrong: Authorization: Bearer KEY", code="invalid_api_key")
        return None

    def has_key(self, headers: Headers) -> bool:
        """Whether the header carries the key. The time of the comparison does not tell how much of it was right."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        matches = hmac.compare_digest(given.strip().encode("latin-1"), self.settings.api_key.encode("ascii"))
        return matches and scheme.lower() == "bearer"
