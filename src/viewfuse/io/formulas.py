"""CSV text: formulas of spreadsheets are marked as text in files that are written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import IO, Any

from viewfuse.data.precision import is_number

_SIGNS = "=+@\uff1d\uff0b\uff20\uff0d\\-"
"""What formulas begin with; full-width signs are taken for the plain ones."""
_RISKY = re.compile(rf"[\s']*[{_SIGNS}].|'*[\t\r]", re.DOTALL)
_INSIDE = re.compile(rf"([;,|\t\r\n]\s*[\"']*)([{_SIGNS}])")
"""The same after a sign that separates cells in other countries, where quotes within a line keep nothing together."""


def marked(cell: Any) -> Any:
    """A cell that does no harm; anything but risky text stays as it is."""
    return "'" + _INSIDE.sub(r"\1'\2", cell) if isinstance(cell, str) and _is_risky(cell) else cell


def unmarked(text: str) -> str:
    """The text that was marked."""
    if not text.startswith("'") or not _is_risky(text):
        return text
    return _INSIDE.sub(lambda found: found[1].removesuffix("'") + found[2], text[1:])


def _is_risky(text: str) -> bool:
    begins = _RISKY.match(text) is not None and not is_number(text)
    return begins or _INSIDE.search(text) is not None


def write_harmless(file: IO[str], rows: Iterable[Sequence[Any]], line_end: str = "\r\n") -> None:
    """Lines of a CSV file, risky cells marked: the one writer of all of them, headers included."""
    csv.writer(file, lineterminator=line_end).writerows(map(marked, row) for row in rows)


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    """The same as text."""
    text = io.StringIO()
    write_harmless(text, rows, "\n")
    return text.getvalue()
