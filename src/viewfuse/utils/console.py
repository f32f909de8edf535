"""What the user sees: progress lines, and warnings that point at the line that called the package.

A failure to print never costs a result.
"""

from __future__ import annotations

import importlib
import reprlib
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Any

from viewfuse.errors import MissingPackage

_INSIDE = ("viewfuse", "sklearn", "torch", "contextlib")
_quiet = ContextVar("quiet", default=False)


def is_live() -> bool:
    """Whether a bar can be shown: on a terminal, or in a notebook."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()  # None in programs without a console
    return on_terminal or "ipykernel" in sys.modules


def plain(text: object) -> str:
    """Text on one line, in which nothing steers the terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(str(text).split()))


def some(names: Collection[object], most: int = 3) -> str:
    """The first of many names."""
    return ", ".join(map(reprlib.repr, islice(names, most))) + (", ..." if len(names) > most else "")


def tell(line: object) -> None:
    """Write a line to standard error, if there is one that takes it."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # closed, full, or a pipe without a reader
            print(line, file=sys.stderr, flush=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Give no warnings of ours in this thread; `warnings.catch_warnings` changes those of all threads."""
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)


def warn(warning: Warning) -> None:
    """Give a warning at the first line outside of the package, however deep inside it this is called."""
    if _quiet.get():
        return
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)


def needed(package: str, extra: str, what: Path | str) -> Any:
    """The package that `what` needs, or an error that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        name = package.split(".")[0]
        cure = how_to_install(name, extra)
        raise MissingPackage(f"{what} needs the package {name}, which is not installed; {cure}") from None


def how_to_install(package: str, extra: str) -> str:
    """A command that works wherever viewfuse came from, and one for those who have its source."""
    return f"pip install {package}, or in a checkout of viewfuse pip install -e '.[{extra}]'"
