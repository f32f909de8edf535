"""What a view is: measurements, counts, words, intensities or yes and no. Told by its present rows alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.reduction.tables import Values, column_deviations, filled, parts_of, row_sums, stored

KINDS = ("measurements", "counts", "words", "intensities", "binary")
_SPARSE = 0.9
_LONGEST_TEXT = 500
"""Different words of a usual text; a sequenced cell shows more genes than that."""
_MANY_ZEROS = 0.5
_LONG_TAIL, _LONG_TAIL_OF_ZEROS, _LONG_TAIL_OF_FRACTIONS = 10, 3, 100
"""Largest value over the mean of those that are not zero: counts have a long tail, pixels end at 255.

Among many zeros a shorter tail will do: pixels that are not black are bright, while most counts are 1 or 2.

Expected counts and counts per million are fractions; so are many things that are no counts, so more is asked of them.
"""


@dataclass(frozen=True)
class Kind:
    """What a view is, and the numbers that say so, all over its present rows.

    Attributes
    ----------
    name : one of `KINDS`
    zeros : share of cells that are zero
    whole : share of other cells that are whole numbers
    least, largest : bounds of all cells
    tail : largest value over the mean of the cells that are not zero; 0 where some value is negative
    per_row : median number of cells of a row that are not zero
    units : largest standard deviation of a column over the median of those that are not constant
    """

    name: str
    zeros: float
    whole: float
    least: float
    largest: float
    tail: float
    per_row: float
    units: float


def kind_of(values: Values, present: NDArray[np.bool_]) -> Kind:
    """Look at the present rows of a view of shape (samples, columns).

    A view with a negative value holds measurements. Of the others, "binary" holds 0 and 1 only; "words" are 90 % zeros
    with fewer than 500 other cells in the median row; "counts" are whole numbers, the largest of which is
    more than 10 times the mean of those that are not zero (3 times, where more than half are zero), or fractions with
    100 for 10; all else are "intensities".
    Binary views as sparse as words are words.
    """
    cells = int(present.sum()) * values.shape[1]
    looks = [_look(part) for part in parts_of(values, present)]
    count, whole, total = np.sum([look.sums for look in looks], axis=0).tolist() if looks else (0, 0, 0)
    ends = [end for look in looks for end in look.ends] + [0.0] * (count < cells or not cells)
    facts = {
        "zeros": 1 - count / cells if cells else 0.0,
        "whole": whole / count if count else 0.0,
        "least": min(ends),
        "largest": max(ends),
        "tail": max(ends) * count / total if total > 0 and min(ends) >= 0 else 0.0,
        "per_row": float(np.median(np.concatenate([look.per_row for look in looks]))) if looks else 0.0,
    }
    return Kind(_name(**facts), **facts, units=_units(column_deviations(values, present)))


def _units(deviations: NDArray[np.float64]) -> float:
    varying = deviations[deviations > 0]
    return float(varying.max() / np.median(varying)) if varying.size else 1.0


class _Look(NamedTuple):
    """Of cells that are not zero: their number, number of whole ones and sum; bounds; how many each row has."""

    sums: tuple[int, int, float]
    ends: list[float]
    per_row: NDArray[np.float64]


def _look(part: Values) -> _Look:
    cells = stored(part)
    cells = cells[cells != 0]
    ends = [float(cells.min()), float(cells.max())] if cells.size else []
    whole, total = int((cells == np.rint(cells)).sum()), float(cells.sum(dtype=np.float64))
    return _Look((cells.size, whole, total), ends, row_sums(filled(part)))


def _name(zeros: float, whole: float, least: float, largest: float, tail: float, per_row: float) -> str:
    if least < 0 or largest == 0:
        return "measurements"
    if zeros >= _SPARSE and per_row < _LONGEST_TEXT:
        return "words"
    if whole == 1 and largest == 1:
        return "binary"
    if whole == 1:
        bound = _LONG_TAIL_OF_ZEROS if zeros > _MANY_ZEROS else _LONG_TAIL
        return "counts" if tail > bound else "intensities"
    return "counts" if tail > _LONG_TAIL_OF_FRACTIONS else "intensities"
