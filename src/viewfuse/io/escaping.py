"""Text that a spreadsheet would run as a formula is marked as text when it is written, and unmarked when it is read."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from typing import IO, Any

from viewfuse.data.numerals import is_number

_SIGNS = "=+@\uff1d\uff0b\uff20\uff0d\\-"
"""What formulas begin with; full-width signs are taken for the plain ones."""
_RISKY = re.compile(rf"'*[{_SIGNS}\t\r]")
_INSIDE = re.compile(rf"[;,|\t\r\n]\s*[\"']*[{_SIGNS}]")
"""The same after a sign that separates cells in other countries: only quotes keep such text in one cell."""


def marked(cell: Any) -> Any:
    """A cell that does no harm; anything but risky text stays as it is."""
    return f"'{cell}" if isinstance(cell, str) and _is_risky(cell) else cell


def unmarked(text: str) -> str:
    """The text that was marked."""
    return text[1:] if text.startswith("'") and _is_risky(text) else text


def _is_risky(text: str) -> bool:
    begins = _RISKY.match(text) is not None and not is_number(text)
    return begins or _INSIDE.search(text) is not None


def write_harmless(file: IO[str], rows: Iterable[Sequence[Any]]) -> None:
    """Lines of a CSV file, risky cells marked, and those in quotes that others would cut into several."""
    plain, quoted = csv.writer(file), csv.writer(file, quoting=csv.QUOTE_ALL)
    for row in rows:
        cells = [marked(cell) for cell in row]
        is_cut = any(isinstance(cell, str) and cell.startswith("'") and _INSIDE.search(cell) for cell in cells)
        (quoted if is_cut else plain).writerow(cells)
