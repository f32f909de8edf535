"""Counts of requests, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import viewfuse

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
OTHER = "other"
"""Stands for addresses that do not exist: asking for many of them must not make many counters."""


class Metrics:
    """What has happened since the start."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._times: dict[str, list[int]] = {}
        self._rows = 0

    def count(self, path: str, status: int, seconds: float) -> None:
        """One request that was answered."""
        known = path if path in self._paths else OTHER
        self._requests[known, status] += 1
        self._seconds[known] += seconds  # type: ignore[assignment]
        self._times.setdefault(known, [0] * (len(_SECONDS) + 1))[bisect_left(_SECONDS, seconds)] += 1

    def count_rows(self, n: int) -> None:
        """Samples of a request that was answered with results."""
        self._rows += n

    def text(self, taken: int, places: int) -> str:
        """All of it."""
        lines = [
            "# TYPE viewfuse_info gauge",
            f'viewfuse_info{{version="{viewfuse.__version__}"}} 1',
            "# HELP viewfuse_places_taken Requests that are read, wait or run.",
            "# TYPE viewfuse_places_taken gauge",
            f"viewfuse_places_taken {taken}",
            "# TYPE viewfuse_places gauge",
            f"viewfuse_places {places}",
            "# HELP viewfuse_rows_total Samples that were placed, filled or explained.",
            "# TYPE viewfuse_rows_total counter",
            f"viewfuse_rows_total {self._rows}",
            "# TYPE viewfuse_requests_total counter",
        ]
        for (path, status), n in sorted(self._requests.items()):
            lines.append(f'viewfuse_requests_total{{path="{path}",status="{status}"}} {n}')
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
