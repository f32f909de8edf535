"""Sparse matrices from files: SciPy reads where they say, so they are checked first."""

from __future__ import annotations

from typing import Any

import numpy as np

from viewfuse.errors import DataError


def check_sparse(where: str, matrix: Any) -> None:
    """Refuse a compressed sparse matrix whose indices lead out of it."""
    rows, columns = matrix.shape
    major, minor = (rows, columns) if matrix.format == "csr" else (columns, rows)
    starts, places = np.asarray(matrix.indptr), np.asarray(matrix.indices)
    fine = (
        len(starts) == major + 1
        and starts[0] == 0
        and bool((np.diff(starts) >= 0).all())
        and starts[-1] <= min(len(matrix.data), len(places))
        and (not len(places) or (places.min() >= 0 and places.max() < minor))
    )
    if not fine:
        raise DataError(f"{where} is a sparse matrix whose indices lead out of it; write it again")
