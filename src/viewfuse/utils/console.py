"""Progress lines for the user; a failure to print never costs a result."""

from __future__ import annotations

import sys
from contextlib import suppress


def is_live() -> bool:
    """Whether a bar can be shown: on a terminal, or in a notebook."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()  # None in programs without a console
    return on_terminal or "ipykernel" in sys.modules


def tell(line: object) -> None:
    """Write a line to standard error, if there is one that takes it."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # closed, full, or a pipe without a reader
            print(line, file=sys.stderr, flush=True)
