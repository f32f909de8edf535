"""What every request passes: who asks, under which name, how long it took, counted in the format of Prometheus."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from ipaddress import ip_address
from time import perf_counter
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from viewfuse.utils.version import __version__

OPEN = frozenset({"/health", "/ready"})
"""Addresses of health checks, which need no token."""
_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_OTHER = "other"
"""Stands for addresses that do not exist: asking for many of them must not make many counters."""
_MOST_PATTERNS = 64
"""Of missing views that are counted one by one; others are counted together."""
_SUMS = {
    "confidence_total": "Sum of the confidence of samples that were placed.",
    "uncertain_total": "Samples that could be in more than one cluster.",
    "novel_total": "Samples whose novelty is above 0.95.",
    "out_of_range_total": "Samples with values far outside of those of training.",
}
_METRICS = {
    "info": "",
    "places_taken": "Requests that are read, wait or run.",
    "places": "",
    "rows_total": "Samples that were placed, filled or explained.",
    "requests_total": "",
    **_SUMS,
    "predicted_total": "",
    "missing_total": "",
}


class Middleware:
    """Check the token, which None lets all callers pass without, count requests, and send headers for browsers.

    A service that listens on this machine alone allows its own names only: else a page from elsewhere could have its
    own name lead here, and read the answers.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, token: str | None, host: str) -> None:
        self._app, self._metrics, self._token = app, metrics, token
        own = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
        self._hosts = own if is_local(host) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = 500, perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        try:
            await (self._refusal(scope) or self._app)(scope, receive, noted)
        finally:
            self._metrics.count(scope["path"], status, perf_counter() - start)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = dict(scope["headers"])
        name = re.sub(r":\d+\Z", "", headers.get(b"host", b"").decode("latin-1").lower())
        if self._hosts is not None and name not in self._hosts:
            detail = "the service is for its own machine, and answers to no other name than 127.0.0.1 or localhost"
            return JSONResponse({"detail": detail}, 400)
        if self._token is None or scope["path"] in OPEN or _is_known(headers.get(b"authorization", b""), self._token):
            return None
        detail = "the token is missing or wrong; send it as 'Authorization: Bearer TOKEN', or as a password"
        return JSONResponse({"detail": detail}, 401, {"WWW-Authenticate": 'Basic realm="viewfuse", charset="UTF-8"'})


def _is_known(given: bytes, token: str) -> bool:
    """Whether the token is given, as such or, since browsers ask for that, as a password with any name."""
    kind, _, rest = given.partition(b" ")
    if kind.lower() == b"basic":
        try:
            rest = base64.b64decode(rest, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif kind.lower() != b"bearer":
        return False
    return hmac.compare_digest(rest.strip(), token.encode())


def is_local(host: str) -> bool:
    """Whether only this machine can reach what listens at this address."""
    return ip_address(host).is_loopback


class Metrics:
    """What has happened since the start: by metric, and in it by labels, a number."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in _METRICS}
        for name in ("rows_total", *_SUMS):
            self._counts[name][""] = 0
        self._times: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def count(self, path: str, status: int, seconds: float) -> None:
        """One request that was answered."""
        known = path if path in self._paths else _OTHER
        self._counts["requests_total"][f'path="{known}",status="{status}"'] += 1
        self._seconds[known] = self._seconds.get(known, 0) + seconds
        self._times.setdefault(known, [0] * (len(_SECONDS) + 1))[bisect_left(_SECONDS, seconds)] += 1

    def count_rows(self, n: int, seen: Mapping[str, Any]) -> None:
        """Samples of a request that was answered with results; `seen` is what is said of those that were placed."""
        self._counts["rows_total"][""] += n
        for name in _SUMS:
            self._counts[name][""] += seen.get(name.removesuffix("_total"), 0)
        self._counts["predicted_total"].update({f'label="{one}"': k for one, k in seen.get("labels", {}).items()})
        missing = self._counts["missing_total"]
        for views, k in seen.get("missing", {}).items():
            escaped = views.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            labels = f'views="{escaped}"'
            missing[labels if labels in missing or len(missing) < _MOST_PATTERNS else f'views="{_OTHER}"'] += k

    def text(self, taken: int, places: int, model: str) -> str:
        """All of it; `model` is the version of the model."""
        gauges = {"info": f'version="{__version__}",model="{model}"', "places_taken": "", "places": ""}
        for (name, labels), value in zip(gauges.items(), (1, taken, places), strict=True):
            self._counts[name] = Counter({labels: value})
        lines = []
        for name, words in _METRICS.items():
            lines += [f"# HELP viewfuse_{name} {words}"] if words else []
            lines.append(f"# TYPE viewfuse_{name} {'gauge' if name in gauges else 'counter'}")
            for labels, value in sorted(self._counts[name].items()):
                lines.append(f"viewfuse_{name}{f'{{{labels}}}' if labels else ''} {value:.15g}")
        name = "viewfuse_request_seconds"
        lines.append(f"# TYPE {name} histogram")
        for path, times in sorted(self._times.items()):
            bounds = (*map(str, _SECONDS), "+Inf")
            lines += [f'{name}_bucket{{path="{path}",le="{le}"}} {sum(times[: i + 1])}' for i, le in enumerate(bounds)]
            lines.append(f'{name}_sum{{path="{path}"}} {self._seconds[path]:.6f}')
            lines.append(f'{name}_count{{path="{path}"}} {sum(times)}')
        return "\n".join([*lines, ""])
