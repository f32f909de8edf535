"""Lines of the log that repeat themselves are counted, not written."""

from __future__ import annotations

import logging
from time import monotonic

_SECONDS = 60.0
_LOGGERS = ("asyncio", "uvicorn.error", "viewfuse.serve.process", "viewfuse.serve.replies")


class Counted(logging.Filter):
    """Lets a line pass once a minute; the next one that passes says how many were like it."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[tuple[str, str], float] = {}
        self._kept: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        kind, now = (record.name, _kind(record)), monotonic()
        if now - self._passed.get(kind, -_SECONDS) < _SECONDS:
            self._kept[kind] = self._kept.get(kind, 0) + 1
            return False
        self._passed[kind] = now
        kept = self._kept.pop(kind, 0)
        if kept:
            record.msg, record.args = f"{record.getMessage()} (and {kept:,} more like it)", ()
        return True


def _kind(record: logging.LogRecord) -> str:
    """What a line is about: the place in the code that wrote it, as messages may hold what callers sent."""
    error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
    return f"{record.pathname}:{record.lineno}:{error}"


def count_repetitions() -> None:
    """From now on repetitions are counted."""
    counted = Counted()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(counted)
