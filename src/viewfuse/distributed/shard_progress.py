"""How far a run over many files is: rows per second and the time left, in a bar, or now and then in a line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from tqdm.auto import tqdm

from viewfuse.utils.console import is_live, tell

_SECONDS_BETWEEN = 30.0
"""Between two lines, where there is no bar."""


class ShardProgress:
    """Shows files, rows per second and the time left; used as a context manager.

    How many rows files have is not known before they are opened, so the time left follows from their bytes.

    Parameters
    ----------
    sizes : bytes of every file that is to be done
    shown : whether anything is shown at all
    """

    def __init__(self, sizes: Sequence[int], *, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        has_bar = shown and is_live()
        form = "predicting {percentage:3.0f}%|{bar}| {desc}"
        self._bar = tqdm(total=sum(sizes), disable=not has_bar, leave=False, delay=1e-9, bar_format=form)
        self._has_lines = shown and not has_bar
        self._files, self._all_files, self._all_bytes = 0, len(sizes), sum(sizes)
        self._rows = self._bytes = 0
        self._clock, self._began = clock, clock()
        self._shown_at = self._began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._bar.close()

    def advance(self, rows: int, n_bytes: int, files: int = 0) -> None:
        """So many more are done."""
        self._rows, self._bytes, self._files = self._rows + rows, self._bytes + n_bytes, self._files + files
        self._bar.set_description_str(str(self), refresh=False)
        self._bar.update(n_bytes)
        if self._has_lines and self._clock() - self._shown_at >= _SECONDS_BETWEEN:
            self._shown_at = self._clock()
            tell(self)

    def __str__(self) -> str:
        seconds = max(self._clock() - self._began, 1e-9)
        left = seconds * (self._all_bytes - self._bytes) / max(self._bytes, 1)
        files = f"{self._files} of {self._all_files} files, {self._rows:,} rows"
        return f"{files}, {self._rows / seconds:,.0f} rows/s, {_spelled(left)} left"


def _spelled(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
