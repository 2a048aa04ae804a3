"""The routes of the server. In: a model and settings. Out: an ASGI application.

A request is read and checked, its prompts are encoded on a separate thread, its jobs go to the worker, and their
events become the answer. When the client leaves, its jobs are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tilewright.base.errors import UserError
from tilewright.llm.serve.answers import Answer, Channel
from tilewright.llm.serve.errors import ApiError, wrong_field
from tilewright.llm.serve.guard import Guard
from tilewright.llm.serve.metrics import Metrics
from tilewright.llm.serve.model import ServedModel
from tilewright.llm.serve.page import load_page
from tilewright.llm.serve.protocol import CompletionRequest, parse_json, parse_request
from tilewright.llm.serve.settings import Settings
from tilewright.llm.serve.worker import Job, Worker

# nginx's status of a client that left before its answer; nobody receives it, the metrics count it.
CLIENT_LEFT = 499
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class JobStream(StreamingResponse):
    """A stream that releases its jobs however it ends, also where the client has left before the first piece."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], release: Callable[[], None]) -> None:
        super().__init__(events, headers=STREAM_HEADERS)
        self.events = events
        self.release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.release()
            await self.events.aclose()


class Service:
    """One model behind HTTP: the state that the routes share."""

    def __init__(self, model: ServedModel, settings: Settings) -> None:
        self.model = model
        self.settings = settings
        self.metrics = Metrics()
        self.worker = Worker(model, settings.queue, self.metrics, settings.warm_up)
        # One thread: long prompts are encoded beside the loop, and the tokenizer is never called twice at once.
        self.encoding = ThreadPoolExecutor(1, "tilewright-encode")
        self.created = int(time.time())
        self.page = load_page()

    async def chat(self, request: Request) -> Response:
        return await self._complete(request, chat=True)

    async def complete(self, request: Request) -> Response:
        return await self._complete(request, chat=False)

    async def _complete(self, request: Request, *, chat: bool) -> Response:
        arrived = time.monotonic()
        asked = parse_request(parse_json(await self._body(request)), chat=chat)
        self._check_model(asked.model)
        loop = asyncio.get_running_loop()
        prompts = await loop.run_in_executor(self.encoding, self._encode, asked)
        echoes = await loop.run_in_executor(self.encoding, self._echoes, asked, prompts)
        channel = Channel(loop)
        jobs = self._jobs(asked, prompts, channel, arrived)
        prompt_tokens = sum(map(len, prompts[:: asked.choices]))
        answer = Answer(self.model.name, chat, prompt_tokens, echoes, asked.choices, asked.include_usage)
        self.worker.submit(jobs)
        if asked.stream:
            return JobStream(answer.stream(channel), partial(self.worker.cancel, jobs))
        try:
            return await _unless_client_leaves(request, answer.collect(channel))
        finally:
            self.worker.cancel(jobs)

    async def _body(self, request: Request) -> bytes:
        """The body, as long as it comes in time and is not too large."""
        limit = self.settings.max_body
        too_large = ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.read_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise too_large
        except TimeoutError as error:
            message = f"the body did not arrive within {self.settings.read_seconds:g} seconds"
            raise ApiError(408, message, code="timeout") from error
        return bytes(body)

    def _check_model(self, name: str) -> None:
        if name and name != self.model.name:
            message = f"the model {name[:100]!r} is not served here; {self.model.name!r} is"
            raise ApiError(404, message, code="model_not_found", param="model")

    def _encode(self, asked: CompletionRequest) -> list[list[int]]:
        """The tokens of every prompt, checked against the context."""
        try:
            if asked.messages:
                prompts = [self.model.encode_chat(asked.messages)]
            else:
                prompts = [self.model.encode(one) if isinstance(one, str) else list(one) for one in asked.prompts]
        except UserError as error:
            raise ApiError(400, f"{error.operation}: {error.message}", code="invalid_value") from error
        for prompt in prompts:
            if any(not 0 <= token < self.model.vocabulary for token in prompt):
                raise wrong_field("prompt", f"tokens must lie in 0 to {self.model.vocabulary - 1}")
            if not prompt:
                raise wrong_field("prompt", "is empty, and the model needs a token to continue")
            if len(prompt) >= self.model.context:
                message = f"the prompt has {len(prompt)} tokens, and prompt and answer together {self.model.context}"
                param = "messages" if asked.messages else "prompt"
                raise ApiError(400, message, code="context_length_exceeded", param=param)
        if len(prompts) * asked.choices > self.model.slots:
            message = f"{len(prompts)} prompts of {asked.choices} choices are more than {self.model.slots} at once"
            raise wrong_field("n", message)
        return [prompt for prompt in prompts for _ in range(asked.choices)]

    def _echoes(self, asked: CompletionRequest, prompts: Sequence[list[int]]) -> list[str]:
        return [self.model.decode(prompt) if asked.echo else "" for prompt in prompts]

    def _jobs(
        self, asked: CompletionRequest, prompts: Sequence[list[int]], channel: Channel, arrived: float
    ) -> list[Job]:
        most = self.settings.max_tokens or self.model.context
        if asked.limit is not None and asked.limit > most:
            raise wrong_field("max_tokens", f"at most {most} tokens are generated by one request")
        jobs = []
        continues = not asked.messages
        for index, prompt in enumerate(prompts):
            # Choices of one request differ, and a repeated request gives the same ones.
            seed = asked.sampling.seed
            sampling = replace(asked.sampling, seed=None if seed is None else seed + index)
            limit = min(asked.limit or most, self.model.context - len(prompt))
            deadline = arrived + self.settings.request_seconds
            jobs.append(Job(prompt, sampling, limit, asked.stops, continues, deadline, partial(channel.put, index)))
        return jobs

    async def models(self, request: Request) -> Response:
        del request
        return JSONResponse({"object": "list", "data": [self._description()]})

    async def model_by_name(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._description())

    def _description(self) -> dict[str, Any]:
        return {
            "id": self.model.name,
            "object": "model",
            "created": self.created,
            "owned_by": "tilewright",
            "context_length": self.model.context,
        }

    async def health(self, request: Request) -> Response:
        del request
        status = "stopping" if self.worker.is_draining else "ok" if self.worker.is_healthy else "failed"
        facts = {"status": status, "running": self.worker.running, "waiting": self.worker.waiting}
        facts |= {"warming_up": self.worker.is_warming}
        return JSONResponse(facts, 200 if status == "ok" else 503)

    async def read_metrics(self, request: Request) -> Response:
        del request
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def show_page(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self.page.etag:
            return Response(status_code=304, headers=self.page.headers)
        return Response(self.page.body, headers=self.page.headers, media_type="text/html")

    async def no_icon(self, request: Request) -> Response:
        """The page carries its icon; browsers ask for this one when they show an answer of the API."""
        del request
        return Response(status_code=204)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        del app
        self.worker.start()
        try:
            yield
        finally:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self.worker.stop, self.settings.grace_seconds)
            self.encoding.shutdown(wait=False, cancel_futures=True)


def make_app(service: Service) -> Starlette:
    """The application of one service. It starts the worker when it is entered, and stops it when it is left."""
    settings = service.settings
    middleware = [Middleware(Guard, settings=settings, metrics=service.metrics)]
    if settings.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        )
    return Starlette(
        routes=[
            Route("/", service.show_page),
            Route("/favicon.ico", service.no_icon),
            Route("/health", service.health),
            Route("/metrics", service.read_metrics),
            Route("/v1/models", service.models),
            Route("/v1/models/{name:path}", service.model_by_name),
            Route("/v1/chat/completions", service.chat, methods=["POST"]),
            Route("/v1/completions", service.complete, methods=["POST"]),
        ],
        middleware=middleware,
        exception_handlers={
            ApiError: _answer_api_error,
            HTTPException: _answer_http_error,
            ClientDisconnect: _answer_nobody,
            Exception: _answer_bug,
        },
        lifespan=service.lifespan,
    )


async def _unless_client_leaves(request: Request, answer: Any) -> Response:
    """Awaits the answer until the client disconnects."""
    finished = asyncio.ensure_future(answer)
    left = asyncio.ensure_future(_client_leaves(request))
    try:
        await asyncio.wait({finished, left}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(finished.result()) if finished.done() else Response(status_code=CLIENT_LEFT)
    finally:
        finished.cancel()
        left.cancel()


async def _client_leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _answer_api_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, error.headers())


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    answer = ApiError(error.status_code, message, code="not_found" if error.status_code == 404 else None)
    return JSONResponse(answer.body(), answer.status, error.headers)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """The client left while it was sending."""
    del request, error
    return Response(status_code=CLIENT_LEFT)


async def _answer_bug(request: Request, error: Exception) -> Response:
    """A bug of ours; the server's log has its traceback."""
    del request
    answer = ApiError(500, f"the server failed: {type(error).__name__}", code="internal_error")
    return JSONResponse(answer.body(), answer.status)
