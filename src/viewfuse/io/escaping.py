"""Text that a spreadsheet would run as a formula is marked as text when it is written, and unmarked when it is read."""

from __future__ import annotations

from typing import Any

from viewfuse.data.tables import is_number

_STARTS = ("=", "+", "-", "@", "\t", "\r")


def marked(cell: Any) -> Any:
    """A cell that does no harm; anything but risky text stays as it is."""
    risky = isinstance(cell, str) and cell.startswith(_STARTS) and not is_number(cell)
    return f"'{cell}" if risky else cell


def unmarked(text: str) -> str:
    """The text that was marked."""
    return text[1:] if text.startswith("'") and marked(text[1:]) == text else text
