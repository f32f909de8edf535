"""What the user sees: progress lines, and warnings that point at the line that called the package.

A failure to print never costs a result.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress

_INSIDE = ("viewfuse", "sklearn", "torch")


def is_live() -> bool:
    """Whether a bar can be shown: on a terminal, or in a notebook."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()  # None in programs without a console
    return on_terminal or "ipykernel" in sys.modules


def tell(line: object) -> None:
    """Write a line to standard error, if there is one that takes it."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # closed, full, or a pipe without a reader
            print(line, file=sys.stderr, flush=True)


def warn(warning: Warning) -> None:
    """Give a warning at the first line outside of the package, however deep inside it this is called."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)
