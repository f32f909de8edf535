"""What every request passes: who asks, under which name, how long it took, counted in the format of Prometheus."""

from __future__ import annotations

import base64
import binascii
import hmac
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from time import perf_counter
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from viewfuse.utils.version import __version__

OPEN = frozenset({"/health", "/ready"})
"""Addresses of health checks, which need no token."""
LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
OTHER = "other"
"""Stands for addresses that do not exist: asking for many of them must not make many counters."""
_MOST_PATTERNS = 64
"""Of missing views that are counted one by one; others are counted together."""
_SUMS = {
    "confidence": "Sum of the confidence of samples that were placed.",
    "uncertain": "Samples that could be in more than one cluster.",
    "novel": "Samples whose novelty is above 0.95.",
    "out_of_range": "Samples with values far outside of those of training.",
}
"""What is added up over samples that were placed, and what that means."""


class Gate:
    """Check the token, count requests, and send headers that protect browsers.

    Parameters
    ----------
    token : what callers must know; None lets all callers pass
    hosts : names under which the service may be called; None allows all. A service for one machine allows its own
        names only: else a page from elsewhere could have its own name lead here, and read the answers.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, token: str | None, hosts: frozenset[str] | None) -> None:
        self._app, self._metrics, self._token, self._hosts = app, metrics, token, hosts

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
        """What is answered to those who may not pass."""
        headers = dict(scope["headers"])
        if self._hosts is not None and _without_port(headers) not in self._hosts:
            detail = "the service is for its own machine, and answers to no other name than 127.0.0.1 or localhost"
            return JSONResponse({"detail": detail}, 400)
        if self._token is None or scope["path"] in OPEN or _is_known(headers.get(b"authorization", b""), self._token):
            return None
        detail = "the token is missing or wrong; send it as 'Authorization: Bearer TOKEN', or as a password"
        return JSONResponse({"detail": detail}, 401, {"WWW-Authenticate": 'Basic realm="viewfuse", charset="UTF-8"'})


def _without_port(headers: Mapping[bytes, bytes]) -> str:
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name, sign, port = host.rpartition(":")
    return name if sign and port.isdigit() else host


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


def middleware(metrics: Metrics, token: str | None, host: str) -> dict[str, Any]:
    """The parameters of a `Gate` for a service that listens at `host`."""
    own = f"[{host}]" if ":" in host else host
    return {"metrics": metrics, "token": token, "hosts": LOCAL | {own} if is_local(host) else None}


def is_local(host: str) -> bool:
    """Whether only this machine can reach what listens at this address."""
    return ip_address(host).is_loopback


class Metrics:
    """What has happened since the start."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._times: dict[str, list[int]] = {}
        self._rows = 0
        self._sums: Counter[str] = Counter()
        self._labels: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()

    def count(self, path: str, status: int, seconds: float) -> None:
        """One request that was answered."""
        known = path if path in self._paths else OTHER
        self._requests[known, status] += 1
        self._seconds[known] += seconds  # type: ignore[assignment]
        self._times.setdefault(known, [0] * (len(_SECONDS) + 1))[bisect_left(_SECONDS, seconds)] += 1

    def count_rows(self, n: int, seen: Mapping[str, Any]) -> None:
        """Samples of a request that was answered with results; `seen` is what is said of those that were placed."""
        self._rows += n
        self._labels.update(seen.get("labels", {}))
        for views, count in seen.get("missing", {}).items():
            is_known = views in self._missing or len(self._missing) < _MOST_PATTERNS
            self._missing[views if is_known else OTHER] += count
        self._sums.update({name: seen[name] for name in _SUMS if name in seen})

    def text(self, taken: int, places: int, model: str) -> str:
        """All of it; `model` is the version of the model."""
        requests = [(f'{{path="{path}",status="{status}"}}', n) for (path, status), n in sorted(self._requests.items())]
        lines = [
            *_metric("info", "gauge", [(f'{{version="{__version__}",model="{model}"}}', 1)]),
            *_metric("places_taken", "gauge", [("", taken)], "Requests that are read, wait or run."),
            *_metric("places", "gauge", [("", places)]),
            *_metric("rows_total", "counter", [("", self._rows)], "Samples that were placed, filled or explained."),
            *_metric("requests_total", "counter", requests),
        ]
        for name, words in _SUMS.items():
            lines += _metric(f"{name}_total", "counter", [("", f"{self._sums[name]:g}")], words)
        for name, counts, key in (("predicted", self._labels, "label"), ("missing", self._missing, "views")):
            found = [(f'{{{key}="{_escaped(own)}"}}', n) for own, n in sorted(counts.items())]
            lines += _metric(f"{name}_total", "counter", found)
        return "\n".join([*lines, *self._histogram(), ""])

    def _histogram(self) -> list[str]:
        name = "viewfuse_request_seconds"
        lines = [f"# TYPE {name} histogram"]
        for path, times in sorted(self._times.items()):
            below = 0
            for bound, n in zip((*map(str, _SECONDS), "+Inf"), times, strict=True):
                below += n
                lines.append(f'{name}_bucket{{path="{path}",le="{bound}"}} {below}')
            lines.append(f'{name}_sum{{path="{path}"}} {self._seconds[path]:.6f}')
            lines.append(f'{name}_count{{path="{path}"}} {below}')
        return lines


def _metric(name: str, kind: str, samples: Iterable[tuple[str, object]], words: str = "") -> list[str]:
    """The lines of a metric: what it means, its kind, and per set of labels its value."""
    said = [f"# HELP viewfuse_{name} {words}"] if words else []
    return [*said, f"# TYPE viewfuse_{name} {kind}", *(f"viewfuse_{name}{labels} {value}" for labels, value in samples)]


def _escaped(text: str) -> str:
    """A value of a label as Prometheus reads it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
