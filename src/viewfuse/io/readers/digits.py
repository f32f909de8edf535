"""Whole numbers with more digits than 64-bit floats hold: columns of them would lose what tells samples apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.digits import EXACT, ROWS_THAT_VARY, SAMPLED, TOO_CLOSE
from viewfuse.errors import DataError

_LARGEST = 2**1023
"""What is larger is no float at all, which is refused elsewhere."""


class Digits:
    """Looks at the blocks of a table as they are read; most have no such numbers, and cost next to nothing."""

    def __init__(self) -> None:
        self._seen: dict[int, set[int]] = {}

    def look(self, block: NDArray[np.float64], exact: Callable[[int], Iterable[int]]) -> None:
        """Look at rows of shape (rows, columns); `exact` gives the whole numbers of a column."""
        for column in np.flatnonzero((np.abs(block) >= EXACT).any(axis=0)).tolist():
            seen = self._seen.setdefault(column, set())
            if len(seen) < SAMPLED:
                seen.update(number for number in exact(column) if abs(number) < _LARGEST)

    def check(self, path: Path, columns: Sequence[Any], table: NDArray[np.float64]) -> None:
        """Refuse a column whose numbers differ, but most of them not as floats."""
        for column, seen in self._seen.items():
            are_one = len(seen) > 1 and 2 * len(set(map(float, seen))) <= len(seen)
            if are_one and np.isfinite(table[:, column]).sum() >= ROWS_THAT_VARY:
                raise DataError(f"{path}, column {columns[column]!r}: {TOO_CLOSE}; ids belong into the column of ids")


def whole(cells: Iterable[str]) -> Iterable[int]:
    """The cells that are whole numbers."""
    for cell in cells:
        try:
            yield int(cell)
        except ValueError:  # a fraction, or nothing
            continue
