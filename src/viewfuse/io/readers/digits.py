"""Whole numbers with more digits than floats hold: columns of them look constant, and are refused as arrays are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.digits import EXACT, ROWS_THAT_VARY
from viewfuse.errors import DataError


class Digits:
    """Looks at the blocks of a table as they are read; most have no such numbers, and cost next to nothing."""

    def __init__(self) -> None:
        self._seen: dict[int, set[int]] = {}

    def look(self, block: NDArray[np.float64], exact: Callable[[int], Iterable[int]]) -> None:
        """Look at rows of shape (rows, columns); `exact` gives the whole numbers of a column."""
        for column in np.flatnonzero((np.abs(block) >= EXACT).any(axis=0)).tolist():
            seen = self._seen.setdefault(column, set())
            if len(seen) < 2:
                numbers = list(exact(column))
                seen.update((min(numbers), max(numbers)) if numbers else ())

    def check(self, path: Path, columns: Sequence[Any], table: NDArray[np.float64]) -> None:
        """Refuse a column whose numbers differ, but not as floats."""
        for column in (column for column, seen in self._seen.items() if len(seen) > 1):
            values = np.asarray(table[:, column])
            if np.isfinite(values).sum() < ROWS_THAT_VARY:
                continue
            with np.errstate(over="ignore"):
                low, high = np.float32(np.nanmin(values)), np.float32(np.nanmax(values))
            if low == high and np.isfinite(low):
                raise DataError(
                    f"{path}, column {columns[column]!r}: its values differ by less than 32-bit floats can tell; "
                    "subtract their mean, or rescale them; ids belong into the column of ids"
                )


def whole(cells: Iterable[str]) -> Iterable[int]:
    """The cells that are whole numbers."""
    for cell in cells:
        try:
            yield int(cell)
        except ValueError:  # a fraction, or nothing
            continue
