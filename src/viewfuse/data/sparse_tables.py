"""Sparse views: kept as `scipy.sparse.csr_array`, and made dense only in parts, or where memory was asked for.

Zeros are data, whether they are stored or not. SciPy takes a while to import, so only what makes a matrix imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError
from viewfuse.utils import memory
from viewfuse.utils.settings import Advice, Setting

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_CELLS_AT_A_TIME = 4_000_000


def _csr(parts: Any, shape: tuple[int, ...], dtype: Any = None) -> csr_array:
    from scipy.sparse import csr_array

    return csr_array(parts, shape=shape, dtype=dtype)


def placed_rows(matrix: csr_array, rows: NDArray[np.int64]) -> csr_array:
    """The rows of a matrix in another order; row -1 holds one NaN and nothing else, which is a missing row."""
    spread, absent = spread_rows(matrix[rows[rows >= 0]], rows >= 0), np.flatnonzero(rows < 0)
    nothing = np.full(len(absent), np.nan, dtype=np.result_type(matrix.dtype, np.float32))
    return canonical(spread + _csr((nothing, (absent, np.zeros_like(absent))), spread.shape))


def canonical(matrix: Any) -> csr_array:
    """Any sparse matrix of real numbers by rows, each in the order of columns and each cell once; what was given stays.

    Whole numbers have 64 bits, so that cells that were stored in several parts can be added up.
    """
    wide: dict[str, Any] = {"i": np.int64, "u": np.uint64, "f": np.result_type(matrix.dtype, np.float32)}
    rows = matrix.astype(wide.get(matrix.dtype.kind, matrix.dtype), copy=False).tocsr()
    own = _csr((rows.data, rows.indices, rows.indptr), rows.shape)
    if not own.has_canonical_format:
        own = own.copy()
        own.sum_duplicates()
    return own


def empty(shape: tuple[int, int]) -> csr_array:
    """A matrix of that shape without any value."""
    return _csr(shape, shape, np.float32)


def all_dense(name: str, matrix: csr_array) -> NDArray[np.float32]:
    """A sparse view with all its zeros, where memory allows."""
    n, width = matrix.shape
    if matrix.nnz:
        what = f"view {name!r}, a sparse matrix, as a table of {n:,} samples x {width:,} columns"
        advice = Advice((", or reduce them (", Setting("reduction", "auto"), ")"))
        memory.require(matrix.dtype.itemsize * n * width, what, "choose fewer columns", advice)
    table: NDArray[np.float32] = matrix.toarray()
    table.flags.writeable = False
    return table


def rows_of_cells(matrix: csr_array, cells: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Per row the number of its stored values that are true in `cells`, of shape (stored values,)."""
    rows = np.searchsorted(matrix.indptr, np.flatnonzero(cells), side="right") - 1
    return np.bincount(rows, minlength=matrix.shape[0])


def nan_rows(matrix: csr_array) -> NDArray[np.bool_]:
    """Which rows hold NaN and nothing else."""
    n_nan = rows_of_cells(matrix, np.isnan(matrix.data))
    return (n_nan > 0) & (n_nan == np.diff(matrix.indptr))


def spread_rows(matrix: csr_array, places: NDArray[np.bool_]) -> csr_array:
    """The rows of a matrix where `places` are true, and empty rows between them."""
    starts = np.zeros(len(places) + 1, dtype=matrix.indptr.dtype)
    starts[1:][places] = np.diff(matrix.indptr)
    return _csr((matrix.data, matrix.indices, starts.cumsum(dtype=starts.dtype)), (len(places), matrix.shape[1]))


def with_data(matrix: csr_array, data: NDArray[Any]) -> csr_array:
    """The matrix with other values, of shape (stored values,), in its cells."""
    return _csr((data, matrix.indices, matrix.indptr), matrix.shape)


def with_columns(matrix: csr_array, places: NDArray[np.int64], present: NDArray[np.bool_]) -> csr_array:
    """Columns at `places`, in that order; where it is -1, NaN is stored in rows that are present."""
    rows, absent, there = np.flatnonzero(present), np.flatnonzero(places < 0), np.flatnonzero(places >= 0)
    shape = (matrix.shape[1], len(places))
    picked = _csr((np.ones(len(there)), (places[there], there)), shape, np.float32)
    cells = (np.repeat(rows, len(absent)), np.tile(absent, len(rows)))
    marks = _csr((np.full(len(cells[0]), np.nan, np.float32), cells), (matrix.shape[0], len(places)))
    return canonical(matrix @ picked + marks)


def column_blocks(matrix: csr_array) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Numbers of columns, and their values as a dense array: all rows, or all that are stored and two zeros at least.

    For what looks at the order of a column's values, to which a third zero adds nothing. Each column comes once; those
    with the most values come first.
    """
    by_column, n = matrix.tocsc(), matrix.shape[0]
    n_stored, start = np.diff(by_column.indptr), 0
    order = np.argsort(-n_stored, kind="stable")
    while start < len(order):
        height = min(n, int(n_stored[order[start]]) + 2)
        chosen = order[start : start + max(1, _CELLS_AT_A_TIME // height)]
        part = by_column[:, chosen]
        counts = np.diff(part.indptr)
        values = np.zeros((height, len(chosen)), dtype=part.dtype)
        places = np.arange(part.nnz) - np.repeat(part.indptr[:-1], counts)
        values[places, np.repeat(np.arange(len(chosen)), counts)] = part.data
        yield chosen, values
        start += len(chosen)


def check_sparse(where: str, matrix: Any) -> None:
    """Refuse a sparse matrix of SciPy, of any format, whose indices lead out of it: SciPy looks when it makes one.

    Or whose cells are stored in several parts that add up to NaN: the row would be missing, though it has values.
    """
    from scipy import sparse

    def whole(numbers: Any) -> NDArray[Any]:
        found = np.asarray(numbers)
        if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
            raise TypeError
        return found

    try:
        if matrix.format in ("csr", "csc", "bsr"):
            parts = (matrix.data, whole(matrix.indices), whole(matrix.indptr))
            made = getattr(sparse, f"{matrix.format}_array")(parts, shape=matrix.shape)
            made.check_format(full_check=True)
        elif matrix.format == "dia":
            sparse.dia_array((matrix.data, whole(matrix.offsets)), shape=matrix.shape)
        else:
            if matrix.format == "lil" and list(map(len, matrix.rows)) != list(map(len, matrix.data)):
                raise ValueError
            places = matrix.tocoo()
            sparse.coo_array((places.data, (whole(places.row), whole(places.col))), shape=matrix.shape)
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError):  # its parts are no arrays of that kind
        raise DataError(f"{where} is a sparse matrix whose indices lead out of it; make it again") from None
    if (
        matrix.format in ("csr", "csc", "bsr", "coo")
        and matrix.data.dtype.kind == "f"
        and not np.isfinite(matrix.data).all()
    ):
        _check_sums(where, matrix.tocoo())


def _check_sums(where: str, parts: Any) -> None:
    """Refuse cells that are stored in several parts of which some are numbers, and that are NaN nevertheless."""
    whole, width = canonical(parts).tocoo(), parts.shape[1]
    lost = np.isnan(whole.data)
    cells = whole.row[lost].astype(np.int64) * width + whole.col[lost]
    given = (parts.row.astype(np.int64) * width + parts.col)[~np.isnan(parts.data)]
    if (wrong := np.intersect1d(given, cells)).size:
        row, column = divmod(int(wrong[0]), width)
        fault = f"{where}, row {row}, column {column}: parts of one cell add up to NaN"
        raise DataError(f"{fault}; store each cell once, and NaN alone in a row that lacks the view")
