"""Sparse matrices of strangers: SciPy reads and writes where they say, so they are checked first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError


def check_sparse(where: str, matrix: Any) -> None:
    """Refuse a sparse matrix of SciPy, of any format, whose indices lead out of it."""
    try:
        fine = _CHECKS.get(matrix.format, _others_stay_inside)(matrix)
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError):  # its parts are no arrays of that kind
        fine = False
    if not fine:
        raise DataError(f"{where} is a sparse matrix whose indices lead out of it; make it again")


def _compressed_stays_inside(matrix: Any) -> bool:
    """Of csr, csc and bsr: where each row or column starts, and places in it."""
    height, width = matrix.data.shape[1:] if matrix.format == "bsr" else (1, 1)
    rows, columns = matrix.shape[0] // height, matrix.shape[1] // width
    major, minor = (columns, rows) if matrix.format == "csc" else (rows, columns)
    starts, places = _whole(matrix.indptr), _whole(matrix.indices)
    return (
        (rows * height, columns * width) == matrix.shape
        and len(starts) == major + 1
        and starts[0] == 0
        and bool((starts[1:] >= starts[:-1]).all())
        and starts[-1] <= min(len(matrix.data), len(places))
        and _is_below(places, minor)
    )


def _coordinates_stay_inside(matrix: Any) -> bool:
    rows, columns = _whole(matrix.row), _whole(matrix.col)
    inside = _is_below(rows, matrix.shape[0]) and _is_below(columns, matrix.shape[1])
    return inside and len(rows) == len(columns) == len(matrix.data)


def _diagonals_stay_inside(matrix: Any) -> bool:
    return matrix.data.ndim == 2 and len(_whole(matrix.offsets)) == len(matrix.data)


def _others_stay_inside(matrix: Any) -> bool:
    """Of lists and dicts, which Python itself looks through."""
    if matrix.format == "lil":
        pairs = zip(matrix.rows, matrix.data, strict=True)
        if len(matrix.rows) != matrix.shape[0] or any(len(places) != len(values) for places, values in pairs):
            return False
        return all(min(places) >= 0 and max(places) < matrix.shape[1] for places in matrix.rows if places)
    return _coordinates_stay_inside(matrix.tocoo())


def _whole(numbers: Any) -> NDArray[Any]:
    """Whole numbers in one line, or an error."""
    found = np.asarray(numbers)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise TypeError
    return found


def _is_below(places: NDArray[Any], end: int) -> bool:
    return not len(places) or bool(places.min() >= 0 and places.max() < end)


_CHECKS = {
    **dict.fromkeys(("csr", "csc", "bsr"), _compressed_stays_inside),
    "coo": _coordinates_stay_inside,
    "dia": _diagonals_stay_inside,
}
