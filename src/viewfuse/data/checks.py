"""What looks wrong in data that can be clustered all the same: fill values, ids, constant views."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.alignment import shown
from viewfuse.data.categories import categories_in, category_of
from viewfuse.data.filling import column_medians
from viewfuse.data.input_types import (
    Mask,
    Names,
    column_sums,
    is_sparse,
    looks,
    only_counted,
    parts_of,
    row_sums,
    stored,
    take,
)
from viewfuse.data.longer_ids import misread_ids
from viewfuse.data.precision import single
from viewfuse.data.sparse_tables import column_blocks
from viewfuse.data.tables import called, labelled
from viewfuse.data.views import Views, is_one_table
from viewfuse.errors import DataError
from viewfuse.utils.console import some
from viewfuse.utils.settings import Setting

CONSTANT = "never change"
_FAR = 10.0
"""Times the range of all other values: an end that is farther away than this looks like a fill value."""
_FAR_BESIDE_ZEROS = 1e4
"""The same where more than half of the values are zero: the few others are often far apart."""
_MARKS = (-9.0, -99.0, -999.0, -9999.0, -99999.0)
"""Below columns without other negative numbers these look like fill values, too."""
_MOST_ROWS = 20_000
_FEW = 20
"""Samples, or columns, of which little can be said."""
_SHOWN = 5
_ABOUT = {
    "batch", "plate", "label", "labels", "class", "cluster", "clusters", "group", "subtype", "event", "survival",
    "time", "truth", "target", "known", "id",
}  # fmt: skip
"""Columns of such a name usually say something about a sample that must not decide its cluster."""
_BESIDE = {
    "os", "pfs", "dfs", "dss", "pfi", "overall", "vital", "status", "days", "months", "sample", "patient", "true",
    "number",
}  # fmt: skip
"""Words that may stand beside them, or beside one another: os_time, OS_MONTHS, sample_id; but not in event_rate."""
_FEW_BELOW, _LONG_TAIL = 0.01, 10
"""Share of the values that are no counts where all others are; their largest value over the mean of those above 0."""
_MANY_ZERO, _HARDLY_ZERO = 0.1, 0.1
"""Of the samples that have a view; of the cells of its other samples."""


def suspicious_columns(views: Views, v: int) -> dict[str, list[str]]:
    """Per reason, which columns of a view; of many rows some are looked at, evenly spread."""
    rows, width = np.flatnonzero(views.mask[:, v]), views.widths[v]
    values = take(views.arrays[v], rows[:: max(1, len(rows) // _MOST_ROWS)])
    if not values.shape[0]:
        return {}
    if is_sparse(values):
        parts = column_blocks(values)  # which leave most zeros out
    else:
        if np.isnan(values).any():
            values = np.where(np.isnan(values), column_medians(values, np.ones(len(values), dtype=bool)), values)
        parts = iter([(np.arange(width), values)])
    zeros = 1.0 - column_sums(values != 0) / values.shape[0]
    found: dict[str, Mask] = {}
    for columns, part in parts:
        for why, which in _reasons(part, zeros[columns]).items():
            found.setdefault(why, np.zeros(width, dtype=bool))[columns] = which
    named = {why: [str(views.columns[v][c]) for c in np.flatnonzero(own).tolist()] for why, own in found.items()}
    return {why: names for why, names in named.items() if names}


def in_words(name: str, suspicious: dict[str, list[str]]) -> list[str]:
    """What to look at in a view, a line per reason."""
    return [f"{name}, columns that {why}: {some(columns, _SHOWN)}" for why, columns in suspicious.items()]


def data_warnings(views: Views, suspicious: Sequence[dict[str, list[str]]] | None = None) -> list[str]:
    """Warnings about the samples, a line each.

    Columns that never change do no harm, as long as others do; in few samples nothing is far out.
    `suspicious` holds the `suspicious_columns` of every view, where they are known already.
    """
    lines = []
    for v, (name, n) in enumerate(zip(views.names, views.mask.sum(axis=0).tolist(), strict=True)):
        reasons = dict(suspicious[v] if suspicious else suspicious_columns(views, v)) if n > 1 else {}
        if n > 1 and len(reasons.pop(CONSTANT, ())) == views.widths[v]:
            lines.append(f"{name}: no column of this view ever changes, so it carries no information; leave it out")
        lines += in_words(name, reasons) if n >= _FEW else []
        lines += [] if isinstance(views.columns[v], range) else _values_alike(name, views.columns[v])[:1]
        lines += _below_zero(views, v)
        zero, elsewhere = _zero_rows(views, v) if n >= _FEW and views.widths[v] > 1 else (0, 0.0)
        usual = _MANY_ZERO * n if views.widths[v] >= _FEW else n
        if n > zero > (0 if elsewhere < _HARDLY_ZERO else usual):  # zeros are data, but may be meant as missing
            lines.append(
                f"{name}: {zero} of its {n} samples are zero in all columns, which is taken for data; "
                "if they lack the view, say so with a mask"
            )
    return [*_about_samples(views), *_same_twice(views), *lines, *isolated_views(views)]


def _below_zero(views: Views, v: int) -> list[str]:
    """A line where a few values are below zero among others that look like counts: whole numbers with a long tail.

    A single one would have all of them prepared as measurements, so that clusters follow the depth of samples.
    """
    values = views.arrays[v]
    count, size = int((stored(values) < 0).sum()), stored(values).size
    if not 0 < count <= _FEW_BELOW * size:
        return []
    above = stored(values)[stored(values) > 0]
    whole, total = int((above == np.rint(above)).sum()), above.sum(dtype=np.float64)
    if whole < (1 - _FEW_BELOW) * above.size or above.max(initial=0) * above.size <= _LONG_TAIL * total:
        return []
    row, column = (int(place[0]) for place in (values < 0).nonzero())
    where = f"the first one in sample {labelled(row, views.ids)}, column {called(views.columns[v], column)}"
    fault = f"{views.names[v]}: {count:,} of its values are below 0 ({where}), while all others look like counts"
    return [f"{fault}, so that they are prepared like measurements, not like counts; correct these cells or empty them"]


def _about_samples(views: Views) -> list[str]:
    """A line for every table with columns that seem to say what a sample is called, or what becomes of it.

    Those of a sparse view are not looked at, as they may be words of texts.
    """
    lines = []
    for name, array, columns in zip(views.names, views.arrays, views.columns, strict=True):
        plain = () if isinstance(columns, range) or is_sparse(array) else (category_of(c) or str(c) for c in columns)
        if found := [one for one in dict.fromkeys(plain) if _is_about_a_sample(one)]:
            lines.append(
                f"{name}: {some(found, _SHOWN)} may say something about a sample and not describe it, but decide its "
                f"cluster as all columns do; drop such columns (--drop {found[0]!r}), or leave the table out: --batch "
                "takes batches out, and viewfuse report compares clusters with --known and --survival"
            )
    return lines


def _is_about_a_sample(name: str) -> bool:
    words = set(re.split(r"[\s_.]+", name.strip().casefold()))
    return words <= _ABOUT | _BESIDE and (len(words) > 1 or words <= _ABOUT)


def _same_twice(views: Views) -> list[str]:
    """A line for every two views that hold the same values."""
    cure = "so it counts twice; leave one out"
    pairs = combinations(range(len(views.names)), 2)
    same = [(views.names[v], views.names[w]) for v, w in pairs if _are_one(views, v, w)]
    return [f"{one} and {other} are the same table, {cure}" for one, other in same]


def _are_one(views: Views, v: int, w: int) -> bool:
    """Whether two views have the same samples and values; an empty cell is like another."""
    a, b = views.arrays[v], views.arrays[w]
    rows, offsets = (views.mask[:, v], views.mask[:, w]), (views.offsets[v], views.offsets[w])
    if a.shape != b.shape or is_sparse(a) != is_sparse(b) or not np.array_equal(*rows) or not rows[0].any():
        return False
    if is_sparse(a):
        return a.nnz == b.nnz and not (a != b).nnz
    return np.array_equal(*offsets) and np.array_equal(a, b, equal_nan=True)


def _zero_rows(views: Views, v: int) -> tuple[int, float]:
    """How many samples that have a view are zero in all of its columns, and the share of zeros in the others."""
    array, present = views.arrays[v], views.mask[:, v]
    nothing = 0 if is_sparse(array) else single(np.negative(np.asarray(views.offsets[v], dtype=np.float64)))
    cells = np.concatenate([row_sums(part != nothing) for part in parts_of(array, present)])
    zero = int((cells == 0).sum())
    size = (len(cells) - zero) * array.shape[1]
    return zero, 1.0 - float(cells.sum()) / size if size else 1.0


def absent_views(views: Views) -> list[str]:
    """A line for every view that no sample has, with which nothing can be trained."""
    cure = "so nothing can be learned of it; leave it out"
    absent = np.flatnonzero(~views.mask.any(axis=0))
    return [f"view {views.names[v]!r} is missing in every row, {cure}" for v in absent]


def check_samples(views: Views, n_clusters: int) -> None:
    """Refuse fewer samples than clusters, and views that no sample has."""
    if len(views) < n_clusters:
        cure = "; give more samples or ask for fewer clusters"
        raise DataError(f"{len(views)} samples are fewer than ", Setting("n_clusters", n_clusters), cure)
    for line in absent_views(views):
        raise DataError(line)


def _values_alike(name: str, columns: Names) -> list[str]:
    """Two values of a category that differ only in capitals, or in signs that look alike, stay two values."""
    first: dict[str, str] = {}
    values = [str(columns[place]) for places in categories_in(columns).values() for place in places]
    pairs = [(first.setdefault(looks(one).casefold(), one), one) for one in values]
    said = "look alike, and count as two values; spell them alike"
    return [f"{name}: {shown(one)} and {shown(other)} {said}" for one, other in pairs if one != other]


def isolated_views(views: Views) -> list[str]:
    """A line for every view that shares none or few of its samples with others, and for ids that are misread."""
    shared, counts = views.mask[views.mask.sum(axis=1) > 1].sum(axis=0), views.mask.sum(axis=0)
    if (counts > 0).sum() < 2:
        return []
    ids = views.ids.tolist()
    lines = [] if only_counted(views.ids) else misread_ids(views.names, views.mask, ids)
    lines += _numbered_apart(views, ids)
    for name, common, own in zip(views.names, shared, counts, strict=True):
        if own and not common:
            lines.append(f"{name}: no sample has this view and another one; are the ids spelled alike in all files?")
        elif common < min(_FEW, own / 2):
            lines.append(
                f"{name}: only {common} of its {own} samples have another view, too, so clusters may show "
                "which views a sample has, and not what it is"
            )
    return lines


def _numbered_apart(views: Views, ids: list[Any]) -> list[str]:
    """A line where rows of one view are numbered from 0 and as many of another from 1, as by Python and by R."""
    starts: dict[int, tuple[str, int]] = {}
    for name, present in zip(views.names, views.mask.T, strict=True):
        if present.all() or present.sum() < 2:
            continue
        numbers = [str(ids[row]) for row in np.flatnonzero(present).tolist()]
        for start in (0, 1):
            if set(numbers) == {str(start + place) for place in range(len(numbers))}:
                starts.setdefault(start, (name, len(numbers)))
    (zero, n), (one, m) = (starts.get(start, ("", start)) for start in (0, 1))
    said = f"the {n} rows of {zero} are numbered from 0 and those of {one} from 1, and matched by these numbers"
    return [f"{said}; if they are the same samples, number them alike"] if n == m else []


def _reasons(rows: NDArray[np.float32], zeros: NDArray[np.float64]) -> dict[str, Mask]:
    """Per reason, which columns; `rows` of shape (samples, columns), `zeros` the share of zeros in each column."""
    far = np.where(zeros > 0.5, _FAR_BESIDE_ZEROS, _FAR)
    ordered = np.sort(rows, axis=0)
    counting = (ordered[1:] - ordered[:-1] == 1).all(axis=0) & (len(rows) > 2)
    return {
        CONSTANT: ordered[0] == ordered[-1],
        "have values so far out that they may stand for nothing, such as -999": _lone_end(ordered, far)
        | _lone_end(-ordered[::-1], far),
        "count the rows, and may be ids": counting,
    }


def _lone_end(ordered: NDArray[np.float32], far: NDArray[np.float64]) -> Mask:
    """Columns whose lowest value is `far` from all others, of which there are several; `ordered` is sorted by rows."""
    n_lowest = (ordered == ordered[0]).sum(axis=0)
    second = ordered[np.minimum(n_lowest, len(ordered) - 1), np.arange(ordered.shape[1])]
    spread = ordered[-1] - second
    is_mark = np.isin(ordered[0], _MARKS) & (second >= 0)
    return (spread > 0) & (is_mark | (second - ordered[0] > far * spread))


def check_one_table(X: Any, y: Any) -> None:
    """Refuse one sparse table alone, as scikit-learn's checks want it, and a second table as y, which would be lost."""
    if is_one_table(X) and hasattr(type(X), "toarray"):
        raise DataError("X is sparse, which is not supported for one table alone; pass [X]")
    if is_one_table(X) and len(getattr(y, "shape", ())) == 2 and y.shape[1] > 1:
        raise DataError("y is no view, but a table was given as y; pass all views together: fit([first, second])")
