"""A client without a network: requests go straight into an application."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PARQUET = "application/vnd.apache.parquet"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app, method: str, address: str, body: bytes = b"", pause: float = 0.0, parts: int = 2, **headers: str
) -> Answer:
    """One request, its body in parts; `pause` seconds pass before the last one."""
    url = urlsplit(address)
    given = {"host": "127.0.0.1:8000"} | {name.replace("_", "-"): text for name, text in headers.items()}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": url.path, "raw_path": url.path.encode(), "query_string": url.query.encode(), "root_path": "",
        "headers": [(name.encode(), text.encode("latin-1")) for name, text in given.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    ends, sent = [len(body) * i // parts for i in range(parts + 1)], []
    waiting = [{"body": body[a:b], "more_body": b < len(body)} for a, b in pairwise(ends)][::-1]
    waiting[0]["more_body"] = False

    async def receive():
        if not waiting:
            return {"type": "http.disconnect"}
        await asyncio.sleep(pause if len(waiting) == 1 else 0)
        return {"type": "http.request", **waiting.pop()}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    found = {name.decode(): text.decode("latin-1") for name, text in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))


class Client:
    """The same for tests that ask one thing after the other."""

    def __init__(self, app) -> None:
        self.app = app

    def get(self, address: str, **headers: str) -> Answer:
        return asyncio.run(ask(self.app, "GET", address, **headers))

    def post(
        self, address: str, body: Any, kind: str = "application/json", pause: float = 0.0, parts: int = 2, **headers
    ) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return asyncio.run(ask(self.app, "POST", address, content, pause, parts, content_type=kind, **headers))
