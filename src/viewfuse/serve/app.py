"""The addresses of the service."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.requests import ClientDisconnect

from viewfuse.errors import DataError, ViewfuseError
from viewfuse.io.writers import as_json
from viewfuse.serve.bodies import JSON, PARQUET
from viewfuse.serve.inference import INTERNAL_ERROR, QUESTIONS, Opened, reply, status_and_detail
from viewfuse.serve.limits import Busy, Limits, Signs
from viewfuse.serve.middleware import OPEN, Metrics, Middleware
from viewfuse.serve.worker import Facts, Message, Process, Queue
from viewfuse.utils.settings import named_values
from viewfuse.utils.version import __version__

PATHS = OPEN | {"/", "/model", "/metrics", "/openapi.json"} | {f"/{name}" for name in QUESTIONS}
_BODIES = {"requestBody": {"required": True, "content": {JSON: {"schema": {"type": "object"}}, PARQUET: {}}}}
_SHORT = 256_000
"""Bytes of the body of a short request."""
_AT_ONCE = 2
"""Long bodies that are there at the same time: one is worked on while the next one arrives."""
_NICE = 10
_log = logging.getLogger(__name__)

Blocks = Annotated[
    list[str] | None, Query(description="Of a wide Parquet table: VIEW=PATTERN of its columns; repeatable.")
]
View = Annotated[str | None, Query(description="The view that a Parquet table is.")]
IdColumn = Annotated[str | None, Query(description="Its column of ids; the first one by default.")]


class Serving:
    """The model that answers; another one may take its place while requests run.

    It has a queue for short requests, which so never wait for long ones, and one for the others. More processes would
    not be faster, as the model uses all cores by itself.
    """

    def __init__(self, opened: Opened, limits: Limits) -> None:
        self.limits = limits
        self._use(opened)

    def _use(self, opened: Opened) -> None:

        def behind() -> None:
            os.nice(_NICE)  # the process of short requests goes first, where there are more processes than cores
            opened.settle()

        start = partial(Process, work=partial(reply, opened, self.limits), seconds=self.limits.seconds)
        self.opened, places = opened, self.limits.places
        self.queues = (
            Queue(partial(start, opened.settle), places, places),
            Queue(partial(start, behind), places, _AT_ONCE),
        )

    def start(self) -> None:
        """Start both processes now, so that the first requests need not wait."""
        for queue in self.queues:
            queue.process()

    def stop(self) -> None:
        """End both processes, whatever they do, and refuse further requests."""
        for queue in self.queues:
            queue.stop()

    def reload(self, reopen: Callable[[], Opened]) -> None:
        """Open the folder again; where that fails, the model stays.

        New requests get the new model; those that the former one has begun are answered by it.
        """
        former = self.queues
        try:
            self._use(reopen())
        except ViewfuseError as error:
            _log.warning("the model stays as it is: %s", error)
            return
        self.start()
        for queue in former:
            queue.leave()
        _log.warning("requests are answered by model %s now", self.opened.facts["version"])

    async def answer(self, request: Request, facts: Facts) -> Message:
        """Read the body of a request, and ask the model."""
        limits, given = self.limits, self.opened.facts["views"]
        limits.check_body(int(request.headers.get("content-length", 0)))
        signs = Signs(limits, len(given), sum(map(len, given.values()))) if facts["kind"] == JSON else None
        body, parts = bytearray(), request.stream()
        is_whole = await _read(body, parts, limits, signs, _SHORT)
        queue = self.queues[0 if is_whole and signs is not None and signs.are_few else 1]
        async with queue.place():
            if not is_whole:
                await _read(body, parts, limits, signs, limits.bytes)
            return await queue.ask(facts, body)


def create_app(
    opened: Opened, limits: Limits | None = None, *, token: str | None = None, host: str = "127.0.0.1",
    reopen: Callable[[], Opened] | None = None,
) -> FastAPI:  # fmt: skip
    """The service of a model that listens at `host`; `reopen` opens the model again when the process gets SIGHUP."""
    limits = limits or Limits()
    serving, metrics = Serving(opened, limits), Metrics(PATHS)

    @asynccontextmanager
    async def alive(_: FastAPI) -> AsyncIterator[None]:
        serving.start()
        if reopen is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, serving.reload, reopen)
        yield
        serving.stop()

    app = FastAPI(title="viewfuse", version=__version__, docs_url=None, redoc_url=None, lifespan=alive)
    app.add_exception_handler(ViewfuseError, _refuse)
    app.add_exception_handler(Exception, lambda *_: JSONResponse({"detail": INTERNAL_ERROR}, 500))  # the log has it
    app.add_middleware(Middleware, metrics=metrics, token=token, host=host)
    app.state.serving = serving

    @app.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        return HTMLResponse(serving.opened.page)

    @app.get("/model")
    async def model() -> dict[str, Any]:
        most = {name: getattr(limits, name) for name in ("rows", "bytes", "places", "seconds")}
        return {**serving.opened.facts, "limits": most}

    @app.get("/health")
    async def health() -> dict[str, bool]:
        return {"alive": True}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        is_ready = serving.queues[0].has_place
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def counts() -> PlainTextResponse:
        text = metrics.text(
            sum(queue.taken for queue in serving.queues), limits.places, serving.opened.facts["version"]
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    def add_question(name: str, said: str | None) -> None:
        @app.post(f"/{name}", summary=said, operation_id=name, openapi_extra=_BODIES)
        async def answer(
            request: Request, view: View = None, block: Blocks = None, id_column: IdColumn = None
        ) -> Response:
            asked = {"view": view, "blocks": named_values("block", block or ()), "id_column": id_column}
            kind = _kind(request.headers.get("content-type", ""), asked)
            try:
                facts, text = await serving.answer(request, {"question": name, "kind": kind, "asked": asked})
            except asyncio.CancelledError:
                raise Busy("the service stops; ask again when it is back") from None
            metrics.count_rows(facts["rows"], facts.get("seen") or {})
            return Response(bytes(text), facts["status"], media_type=JSON)

    for name, question in QUESTIONS.items():
        add_question(name, question.__doc__)
    return app


def _kind(given: str, asked: Facts) -> str:
    plain = given.partition(";")[0].strip().lower()
    if plain not in (JSON, PARQUET):
        raise HTTPException(415, f"bodies are {JSON} or {PARQUET}, not {plain[:80]!r}; say so in Content-Type")
    if plain == JSON and any(asked.values()):
        raise DataError("view, block and id_column are for Parquet; JSON names its views and ids itself")
    if asked["view"] and asked["blocks"]:
        raise DataError("give view for a table that is one view, or block for one that holds several, not both")
    return plain


async def _read(body: bytearray, parts: AsyncIterator[bytes], limits: Limits, signs: Signs | None, enough: int) -> bool:
    """Read on until there are more than `enough` bytes; whether that is all. Too much, or too late, is refused."""
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in parts:
                body += part
                limits.check_body(len(body))
                if signs is not None:
                    signs.add(part)
                if len(body) > enough:
                    return False
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {limits.body_seconds:g} s; send it again") from None
    except ClientDisconnect:
        raise HTTPException(400, "the caller went away") from None
    return True


async def _refuse(_: Request, error: Exception) -> Response:
    status, detail = status_and_detail(error)
    again = {"Retry-After": "1"} if status == 503 else None
    return Response(as_json({"detail": detail}), status, again, media_type=JSON)  # also letters that UTF-8 lacks
