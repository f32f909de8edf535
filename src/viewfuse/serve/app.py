"""The addresses of the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.requests import ClientDisconnect

from viewfuse import __version__
from viewfuse.data.views import Views
from viewfuse.errors import DataError, MissingPackage, NotEnoughMemory, SettingError, ViewfuseError
from viewfuse.io.writers import as_json
from viewfuse.serve.answers import QUESTIONS, Question
from viewfuse.serve.bodies import JSON, PARQUET, Asked, read_json, read_parquet
from viewfuse.serve.gate import OPEN, Gate, middleware
from viewfuse.serve.limits import Busy, Limits, TooLarge
from viewfuse.serve.metrics import Metrics
from viewfuse.serve.opened import Opened
from viewfuse.serve.worker import Worker

_STATUS = {TooLarge: 413, NotEnoughMemory: 413, DataError: 422, SettingError: 422, MissingPackage: 501, Busy: 503}
PATHS = OPEN | {"/", "/model", "/metrics", "/openapi.json"} | {f"/{name}" for name in QUESTIONS}
_BODIES = {"requestBody": {"required": True, "content": {JSON: {"schema": {"type": "object"}}, PARQUET: {}}}}

Blocks = Annotated[list[str], Query(description="Of a wide Parquet table: VIEW=PATTERN of its columns; repeatable.")]
View = Annotated[str | None, Query(description="The view that a Parquet table is.")]
IdColumn = Annotated[str | None, Query(description="Its column of ids; the first one by default.")]


def create_app(
    opened: Opened, limits: Limits | None = None, *, token: str | None = None, host: str = "127.0.0.1"
) -> FastAPI:
    """The service of a model.

    Parameters
    ----------
    token : what callers must know; None lets everybody pass
    host : where it will listen; on this machine alone it answers to no other names
    """
    limits = limits or Limits()
    worker, metrics = Worker(limits.places), Metrics(PATHS)

    @asynccontextmanager
    async def alive(_: FastAPI) -> AsyncIterator[None]:
        yield
        worker.stop()

    app = FastAPI(title="viewfuse", version=__version__, docs_url=None, redoc_url=None, lifespan=alive)
    app.add_exception_handler(ViewfuseError, _say)
    app.add_exception_handler(Exception, _apologise)
    app.add_middleware(Gate, **middleware(metrics, token, host))
    for name, question in QUESTIONS.items():
        answer = _answering(opened, question, limits, worker, metrics)
        app.add_api_route(
            f"/{name}", answer, methods=["POST"], summary=question.__doc__, operation_id=name, openapi_extra=_BODIES
        )
    _add_facts(app, opened, limits, worker, metrics)
    return app


def _add_facts(app: FastAPI, opened: Opened, limits: Limits, worker: Worker, metrics: Metrics) -> None:
    """What can be asked without samples."""

    @app.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        return HTMLResponse(opened.page)

    @app.get("/model")
    async def model() -> dict[str, Any]:
        most = {"rows": limits.rows, "bytes": limits.bytes, "places": limits.places}
        return {**opened.facts, "limits": most}

    @app.get("/health")
    async def health() -> dict[str, bool]:
        return {"alive": True}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        return JSONResponse({"ready": worker.is_ready}, 200 if worker.is_ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def counts() -> PlainTextResponse:
        return PlainTextResponse(metrics.text(worker.taken, worker.places), media_type="text/plain; version=0.0.4")


def _answering(opened: Opened, question: Question, limits: Limits, worker: Worker, metrics: Metrics) -> Any:
    """What answers one question about the samples of a body."""

    async def answer(request: Request, view: View = None, block: Blocks = [], id_column: IdColumn = None) -> Response:  # noqa: B006
        with worker.place():
            asked = Asked(view, _pairs(block), id_column)
            read = _reader(request.headers.get("content-type", ""), asked, opened.fitted.view_names_)
            body = await _body(request, limits)
            text, rows = await worker.run(partial(_work, opened, question, read, body, limits), _text)
        metrics.count_rows(rows)
        return Response(text, media_type=JSON)

    return answer


def _work(opened: Opened, question: Question, read: Any, body: bytes, limits: Limits) -> dict[str, Any]:
    views: Views = read(body, limits)
    return question(opened.fitted, views, limits)


def _text(found: dict[str, Any], told: list[str]) -> tuple[str, int]:
    """The text of an answer, and how many samples it is about."""
    return as_json({**found, "warnings": told}), len(found["ids"])


def _reader(kind: str, asked: Asked, names: list[str]) -> Any:
    """What reads a body of this kind."""
    plain = kind.partition(";")[0].strip().lower()
    if plain == PARQUET:
        return partial(read_parquet, asked=asked, names=names)
    if plain != JSON:
        raise HTTPException(415, f"bodies are {JSON} or {PARQUET}, not {plain[:80]!r}; say so in Content-Type")
    if any(asked):
        raise DataError("view, block and id_column are for Parquet; JSON names its views and ids itself")
    return read_json


async def _body(request: Request, limits: Limits) -> bytes:
    """The body, as far as it is short enough and comes in time."""
    found = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                found += part
                limits.check_body(len(found))
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {limits.body_seconds:g} s; send it again") from None
    except ClientDisconnect:
        raise HTTPException(400, "the caller went away") from None
    return bytes(found)


def _pairs(blocks: list[str]) -> dict[str, str] | None:
    wrong = [text for text in blocks if not all(text.partition("="))]
    found = dict(text.partition("=")[::2] for text in blocks)
    if wrong or len(found) < len(blocks):
        raise DataError(f"block {(wrong or blocks)[0]!r}: write VIEW=PATTERN, each view once")
    return found or None


async def _say(_: Request, error: Exception) -> Response:
    """The package's own sentence, and the status that says who can do something about it."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    again = {"Retry-After": "1"} if status == 503 else None
    return Response(as_json({"detail": str(error)}), status, again, media_type=JSON)  # also letters that UTF-8 lacks


async def _apologise(_: Request, __: Exception) -> JSONResponse:
    """A mistake of ours: the log has it, callers need not."""
    return JSONResponse({"detail": "the service made a mistake with this request; its log says more"}, 500)
