"""CSV files of people, which are text in UTF-8 or are refused by the name of what they lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from viewfuse.errors import DataError

_LOOKED_AT = 1_000
"""Characters; UTF-16 without its mark has a zero byte in nearly each."""


@contextmanager
def open_utf8(path: Path) -> Iterator[TextIO]:
    """The open file, with or without the mark of UTF-8; inside, text of another encoding is refused."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            if "\0" in file.read(_LOOKED_AT):
                raise _no_utf8(path)
            file.seek(0)
            yield file
    except UnicodeDecodeError:
        raise _no_utf8(path) from None


def _no_utf8(path: Path) -> DataError:
    return DataError(f"{path} is no text in UTF-8 (UTF-16, perhaps?); save it as CSV in UTF-8")
