"""What was given is sorted out: which views there are, whose rows belong together, ids and masks."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.categories import encoded_frame
from viewfuse.data.input_types import (
    has_row_labels,
    is_anndata,
    is_annotated,
    is_mudata,
    is_sparse,
    is_sparse_frame,
    looks,
    only_counted,
)
from viewfuse.data.precision import TOO_CLOSE, are_whole_numbers_lost, exact_frame, filled, has_long_numbers
from viewfuse.data.sparse_tables import canonical, check_sparse, placed_rows
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.utils import memory
from viewfuse.utils.console import warn

CURE = "write ids alike in all views, as text with all their zeros, say (pandas: dtype=str)"
_MOST = 50_000
"""Ids of a view that are looked at; who misspells ids does not begin after so many."""


def aligned(given: dict[str, Any], *, allow_disjoint: bool = False) -> tuple[dict[str, Any], Sequence[Hashable] | None]:
    """Join labelled frames by the union of their row labels, in the order of first appearance.

    With `allow_disjoint` a frame may share no label with others, unless its labels are others' spelled otherwise.
    Returns the views, and the labels where there are any.
    """
    given = _with_levels_in_order(given)
    frames = {name: view for name, view in given.items() if view is not None}
    labelled = {name: view.index for name, view in frames.items() if has_row_labels(view)}
    if any(index.dtype.kind in "iu" for index in labelled.values()):
        # 0, 1, 2, ... next to other whole numbers are labels, too.
        labelled = {name: view.index for name, view in frames.items() if hasattr(view, "iloc") or has_row_labels(view)}
    elif any(all(isinstance(name, str) and name.isdecimal() for name in index) for index in labelled.values()):
        # So are the names "0", "1", ... that AnnData gives, next to others of which some cells were left out.
        own = {name: view for name, view in frames.items() if has_row_labels(view) or isinstance(view, AnnotatedTable)}
        labelled = {name: view.index for name, view in own.items()}
    for name, index in labelled.items():
        _check_labels(f"view {name!r}", index)
    indexes = list(labelled.values())
    if all(index.equals(indexes[0]) for index in indexes):
        tables = [name for name, view in frames.items() if hasattr(view, "iloc") or isinstance(view, AnnotatedTable)]
        counted = [name for name in tables if name not in labelled]
        if labelled and counted:  # an index may have been forgotten
            _tell_counted(f"view {counted[0]!r}", f"{next(iter(labelled))!r} has", indexes[0].tolist())
        return given, indexes[0] if indexes else None
    _check_matchable(labelled, frames, allow_disjoint)
    union = list(dict.fromkeys(label for index in indexes for label in index))
    joined = dict(given)
    for name, view in frames.items():
        if is_sparse_frame(view):
            view = AnnotatedTable(canonical(sparse_frame(name, view)), view.index, list(view.columns))
        is_frame = not isinstance(view, AnnotatedTable)
        joined[name] = exact_frame(view).reindex(union) if is_frame else view.in_order(union)
    return joined, union


def _with_levels_in_order(given: dict[str, Any]) -> dict[str, Any]:
    """The views, with the levels of row labels that have several in one order, by the names of the levels."""
    found = dict(given)
    several = {name: view for name, view in given.items() if hasattr(view, "iloc") and view.index.nlevels > 1}
    first: list[Hashable] = []
    for name, view in several.items():
        own = list(view.index.names)
        first = first or own
        moved = [
            level for level in own if level is not None and level in first and own.index(level) != first.index(level)
        ]
        if moved and (len(set(own)) < len(own) or None in own or set(own) != set(first)):
            fault = f"view {name!r} has row labels of {own}, but view {next(iter(several))!r} of {first}"
            raise DataError(f"{fault}; give both the same levels, in the same order")
        if moved:
            found[name] = view.set_axis(view.index.reorder_levels([own.index(level) for level in first]))
    return found


def sparse_frame(name: str, view: Any) -> Any:
    """The matrix of a frame with sparse columns; refuses whole numbers that are the same as floats of 64 bits."""
    for c in range(view.shape[1]):
        cells = view.iloc[:, c].array.sp_values
        if has_long_numbers(cells) and are_whole_numbers_lost(cells):
            raise DataError(f"view {name!r}, column {c} ({view.columns[c]!r}): {TOO_CLOSE}")
    return view.sparse.to_coo()


def _check_labels(where: str, index: Any) -> None:
    if index.nlevels == 1 and index.hasnans:
        raise DataError(f"{where}: a row label is missing; give every row the id of its sample")
    if index.has_duplicates:
        twice = index[index.duplicated()].tolist()[0]
        cure = "keep one row per sample, or reset_index(drop=True) if the labels mean nothing"
        raise DataError(f"{where}: row label {twice!r} appears twice; {cure}")


def _check_matchable(labelled: Mapping[str, Any], frames: Mapping[str, Any], allow_disjoint: bool) -> None:
    if len(labelled) < len(frames):
        raise DataError(
            f"views {sorted(labelled)} have row labels that differ, but {sorted(set(frames) - set(labelled))} have "
            "none, so the rows cannot be matched; give every view an index of sample ids"
        )
    for name, index in labelled.items():
        others = {other: labels for other, labels in labelled.items() if other != name}
        if any(len(index.intersection(labels)) for labels in others.values() if labels.nlevels == index.nlevels):
            continue
        kind = index.nlevels, index.inferred_type
        of_a_kind = any((labels.nlevels, labels.inferred_type) == kind for labels in others.values())
        pairs = {other: read_alike(index.tolist(), labels.tolist()) for other, labels in others.items()}
        if allow_disjoint and of_a_kind and not any(pairs.values()):
            continue
        for one, labels in labelled.items():
            if not len(labels):
                raise DataError(f"view {one!r} has no rows; leave it out")
        other = next((other for other, alike in pairs.items() if alike), next(iter(others)))
        cure = in_words(pairs[other], name, other) if pairs[other] else "give all the same kind of sample ids"
        raise DataError(
            f"view {name!r} shares no row label with any other view ({index.tolist()[0]!r} against "
            f"{others[other].tolist()[0]!r} in {other!r}); {cure}"
        )


def checked_ids(ids: Any, n: int) -> NDArray[Any]:
    """One id per sample, each once."""
    is_time = isinstance(ids, np.ndarray) and ids.dtype.kind in "mM"  # of which tolist makes bare numbers
    try:
        if isinstance(ids, (str, set, dict)) or len(ids) != n or len(getattr(ids, "shape", (n,))) != 1:
            raise TypeError
        listed = ids.tolist() if hasattr(ids, "tolist") and not is_time else list(ids)
        list(map(hash, listed))
    except TypeError:
        raise DataError(f"ids must be a list of {n} names, one id per row; got {reprlib.repr(ids)}") from None
    seen: dict[Hashable, int] = {}
    for row, name in enumerate(listed):
        if is_missing(name):
            raise DataError(f"the id of row {row} is missing; give each sample an id of its own")
        if (first := seen.setdefault(name, row)) != row:
            raise DataError(f"id {name!r} appears twice, in rows {first} and {row}; give each sample an id of its own")
    return id_array(listed)


def as_labels(ids: NDArray[Any]) -> NDArray[Any]:
    """Ids that name samples: as objects where they are 0, 1, 2, ..., which `only_counted` takes for row numbers."""
    return ids.astype(object) if only_counted(ids) else ids


def is_missing(name: Any) -> bool:
    """Whether an id or a label stands for none: None, NaN, or pandas' NA, which cannot be compared."""
    try:
        return name is None or bool(name != name)
    except TypeError:
        return True


def check_written(ids: NDArray[Any]) -> None:
    """Refuse ids that differ but are written alike, such as 1 and "1": no file could tell them apart."""
    if ids.dtype != object:  # all of one type
        return
    seen: dict[str, Hashable] = {}
    for name in ids.tolist():
        other = seen.setdefault(str(name), name)
        if other != name:
            raise DataError(f"two ids are both written {str(name)!r}, {written(other)} and {written(name)}; {CURE}")


def id_array(names: Sequence[Hashable]) -> NDArray[Any]:
    """Names as an array that loses nothing: 1 and "1" are two ids, a tuple is one, and so is a number of 64 bits."""
    if len({type(name) for name in names}) == 1 and not isinstance(names[0], tuple):
        found = np.array(names)
        # NumPy takes zeros at the end of text for nothing
        is_whole = found.dtype.kind not in "US" or found.tolist() == list(names)
        if isinstance(names[0], float) or (found.dtype.kind != "f" and found.ndim == 1 and is_whole):
            return found
    kept = np.empty(len(names), dtype=object)
    kept[:] = names
    return kept


def checked_mask(
    mask: Any, ids: Sequence[Hashable] | NDArray[Any], names: Sequence[str], labels: Any = None
) -> NDArray[np.bool_]:
    """A boolean mask of shape (samples, views); True where a view may be looked at.

    Rows of an array are the samples in order, those of a data frame are matched by their labels. `labels` are the row
    labels that the views came with; None where they had none.
    """
    n = len(ids)
    if hasattr(mask, "iloc") and len(mask.shape) == 2:
        mask = _by_id(mask, ids, labels)
    columns = [str(column) for column in getattr(mask, "columns", [])]
    if columns and sorted(columns) == sorted(names):
        mask = np.asarray(mask)[:, [columns.index(name) for name in names]]
    elif columns and columns != [str(v) for v in range(len(names))]:
        raise DataError(f"the mask has columns {columns}, but the views are {list(names)}; name them alike")
    given = np.asarray(mask)
    if given.shape != (n, len(names)):
        need = f"{n} rows of {len(names)} views need ({n}, {len(names)})"
        raise DataError(f"the mask has shape {given.shape}, but {need}")
    if isinstance(mask, np.ma.MaskedArray) or given.dtype.kind not in "biuf" or not np.isin(given, (0, 1)).all():
        raise DataError("the mask holds values other than True/False (1/0); give True where a view is present")
    return given.astype(bool)


def _by_id(mask: Any, ids: Sequence[Hashable] | NDArray[Any], labels: Any) -> Any:
    """The rows of a data frame in the order of `ids`; one that counts its rows is in order already."""
    wanted = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    if not has_row_labels(mask) and (labels is None or not all(isinstance(label, int) for label in labels)):
        if labels is not None and len(mask) == len(wanted):
            _tell_counted("the mask", "the samples have", wanted)
        return mask
    _check_labels("the mask", mask.index)
    found = mask.index.tolist()
    place = {label: row for row, label in enumerate(found)}
    absent = [name for name in wanted if name not in place]
    if not absent and len(place) <= len(wanted):
        return mask.iloc[[place[name] for name in wanted]]
    if alike := read_alike(found, wanted):
        one, own = map(written, alike[0])
        raise DataError(f"the mask has row labels {one}, the samples have ids {own}; {_cure(*alike[0])}")
    if absent:
        what = f"no row for {len(absent):,} of {len(wanted):,} samples, such as {absent[0]!r}"
    else:
        known = set(wanted)
        extra = [label for label in place if label not in known]
        what = f"rows for {len(extra):,} samples that the views lack, such as {extra[0]!r}"
    cure = "give it the ids of the samples as index, or an array with their rows in order (mask.to_numpy())"
    raise DataError(f"the mask has {what}; {cure}")


def _tell_counted(what: str, others: str, ids: Sequence[Hashable]) -> None:
    found = f"{what} has row labels 0, 1, 2, ..., but {others} ids such as {ids[0]!r}"
    cure = "rows are matched by their order; give both the ids of their samples as index"
    warn(SuspiciousDataWarning(f"{found}, so {cure}"))


def read_alike(first: Iterable[Hashable], second: Iterable[Hashable]) -> list[tuple[Hashable, Hashable]]:
    """Ids that each side has alone, and which differ only in how they are written."""
    ours, theirs = list(first), list(second)
    common = set(ours) & set(theirs)
    known = {_as_in_r(name): name for name in ours if name not in common}
    others = [(_as_in_r(name), name) for name in theirs if name not in common]
    return [(known[plain], name) for plain, name in others if plain in known]


def _as_in_r(name: Hashable) -> str:
    """An id plainly, without zeros before numbers in it, and as R's make.names leaves it: TCGA-1 is TCGA.1, 17 is X17.

    A sign between a letter and a digit is not there: s-01 is s1.
    """
    text = re.sub(r"[\W_]", ".", _without_zeros(plainly(re.sub(r"^X(?=\d)", "", str(name).strip()))))
    return re.sub(r"(?<=[^\W\d_])\.(?=\d)", "", text)


def _without_zeros(text: str) -> str:
    """An id without zeros before any number in it: P007 is P7, but 1.05 is one number, and not 1.5."""
    return text if re.fullmatch(r"\d+\.\d+", text) else re.sub(r"(?<!\d)0+(?=\d)", "", text)


_LIKE_DIGITS = str.maketrans("oil", "011")


def plainly(name: Hashable) -> str:
    """An id without blanks around it, zeros before it, capitals, signs without width, and the fraction of 17.0.

    Beside digits a letter O is a zero, and I and l are ones: they are typed for each other.
    """
    text = looks(str(name)).casefold().removesuffix(".0")
    if any(map(str.isdigit, text)):
        text = text.translate(_LIKE_DIGITS)
    return text.lstrip("0") or "0" if text.isdigit() else text


def written(name: Hashable) -> str:
    """How an id is written: as a number (17), or as text ('017')."""
    return f"as text ({shown(name)})" if isinstance(name, str) else f"as numbers ({name})"


def shown(name: Hashable) -> str:
    """An id in quotes; where it has signs that look like others, by their numbers."""
    return ascii(name) if isinstance(name, str) and looks(name) != name.strip() else repr(name)


def _cure(one: Hashable, other: Hashable) -> str:
    """What to do about ids that differ like these two."""
    ours, theirs = plainly(one), plainly(other)
    if ours != theirs and _without_zeros(ours) == _without_zeros(theirs):
        return CURE
    if ours != theirs:
        return "write ids with the same signs in all views (R: check.names = FALSE keeps them)"
    if not (isinstance(one, str) and isinstance(other, str)) or ours.isdigit():
        return CURE
    is_case = one.strip().casefold() == other.strip().casefold() and one.strip() != other.strip()
    return f"write ids alike in all views, {'with the same capitals' if is_case else 'sign for sign'}"


def in_words(pairs: Sequence[tuple[Hashable, Hashable]], first: str, second: str) -> str:
    """What is alike in two views, and the cure."""
    cure = _cure(*pairs[0])
    one, other = (written(name) if cure == CURE else f"such as {shown(name)}" for name in pairs[0])
    return (
        f"view {first!r} has ids {one}, view {second!r} {other}: {len(pairs):,} of them "
        f"differ only in how they are written; {cure}"
    )


def alike_in_views(names: Sequence[str], mask: NDArray[np.bool_], ids: Sequence[Hashable]) -> list[str]:
    """A line per cure for ids that a view has alone and that read like ids which another has alone."""
    found: dict[str, tuple[int, int, dict[frozenset[Hashable], tuple[Hashable, Hashable]]]] = {}
    for v, w in combinations(range(len(names)), 2):
        alone = ((mask[:, a] & ~mask[:, b]).nonzero()[0][:_MOST].tolist() for a, b in ((v, w), (w, v)))
        for pair in read_alike(*([ids[row] for row in rows] for rows in alone)):
            found.setdefault(_cure(*pair), (v, w, {}))[2].setdefault(frozenset(pair), pair)
    return [in_words(list(pairs.values()), names[v], names[w]) for v, w, pairs in found.values()]


def warn_of_few(shared: int, first: Collection[Hashable], second: Collection[Hashable], both: str) -> None:
    """Warn where two lists of ids, of `both`, have less than half of the shorter one in common."""
    if 2 * shared < min(len(first), len(second)):
        few = f"only {shared} of {len(first)} and {len(second)} ids are in both {both}"
        alike = [f"{shown(one)} and {shown(other)} read alike" for one, other in read_alike(first, second)[:1]]
        warn(SuspiciousDataWarning("; ".join([few, *alike, "spell ids alike in both"])))


Use = str | Mapping[str, str]
"""What of an object is the view: "X", "layers/NAME" or "obsm/NAME"; for all, or by the name of the view."""


@dataclass(frozen=True)
class AnnotatedTable:
    """One view of an AnnData object, or a frame of sparse columns: a matrix, the pandas Index of its rows, columns."""

    matrix: Any
    index: Any
    columns: Sequence[Hashable]

    @property
    def is_numbered(self) -> bool:
        """Whether the cells have no names of their own, so that AnnData called them "0", "1", "2", ..."""
        return self.index.tolist() == [str(cell) for cell in range(len(self.index))]

    def in_order(self, names: Any) -> AnnotatedTable:
        """One row per name; those that it lacks are missing."""
        if self.index.equals(names):
            return self
        rows = self.index.get_indexer(names)
        place = placed_rows if is_sparse(self.matrix) else placed_dense_rows
        return AnnotatedTable(place(self.matrix, rows), names, self.columns)


def opened(data: Any, use: Use | None = None) -> Any:
    """What was given as views, with tables by name instead of AnnData and MuData objects; the rest is left as it is."""
    if not all(isinstance(place, str) for place in (use.values() if isinstance(use, Mapping) else [use or "X"])):
        raise DataError(f"use={use!r}: give 'X', 'layers/NAME' or 'obsm/NAME', for all views or by view in a dict")
    if is_anndata(data):
        places = use if isinstance(use, Mapping) else {"view_0": use or "X"}
        return {str(name): _table(str(name), data, place) for name, place in places.items()}
    if is_mudata(data):
        if data.axis == 1:
            raise DataError(
                "the modalities of this MuData share features, not cells (axis=1), so none is a view of the others' "
                "cells; pass one of them"
            )
        views = objects = dict(data.mod)
    else:
        is_dict = isinstance(data, Mapping) and not hasattr(data, "shape")  # one kind of sparse matrix is a dict, too
        listed = data if isinstance(data, (list, tuple)) else ()
        views = dict(data) if is_dict else {f"view_{v}": view for v, view in enumerate(listed)}
        objects = {name: view for name, view in views.items() if is_annotated(view)}
    names = [str(name) for name in objects]
    if use is not None and (not names or not (isinstance(use, str) or set(use) <= set(names))):
        raise DataError(
            f"use={use!r} chooses parts of AnnData and MuData objects, of which there are {names}; "
            "name these, or leave it out"
        )
    tables = {name: _table(str(name), view, place_of(use, str(name))) for name, view in objects.items()}
    if not is_mudata(data):
        return views | tables if tables else data
    if not tables:
        raise DataError("this MuData has no modality; give it at least one")
    known = next(iter(tables.values())).index
    for table in tables.values():
        known = known.union(table.index, sort=False)
    joint = data.obs_names.intersection(known, sort=False)  # cells that no modality has are left out
    joint = joint.append(known.difference(joint, sort=False))  # cells that update() does not know of
    return {name: table.in_order(joint) for name, table in tables.items()}


def place_of(use: Use | None, name: str) -> str:
    """What of an object is the view of that name."""
    return use if isinstance(use, str) else (use or {}).get(name, "X")


def _table(name: str, data: Any, place: str) -> AnnotatedTable:
    """One matrix of an AnnData object; what a backed object holds is read."""
    if not is_anndata(data):
        raise DataError(f"view {name!r} is a whole {type(data).__name__}; pass it alone, its modalities are the views")
    if data.obs_names.has_duplicates:
        twice = data.obs_names[data.obs_names.duplicated()][0]
        raise DataError(f"view {name!r}: cell {twice!r} appears twice; keep one, or call obs_names_make_unique()")
    kinds, (kind, _, key) = ("layers", "obsm"), place.partition("/")
    found = getattr(data, kind).get(key) if kind in kinds else data.X if place == "X" else None
    if found is None:
        own = ["X"] * (data.X is not None) + [f"{kind}/{key}" for kind in kinds for key in getattr(data, kind)]
        raise DataError(f"view {name!r} has no {place!r}; it has {', '.join(own) or 'nothing'}; choose one")
    if hasattr(found, "iloc"):  # a data frame in obsm
        cells, names = frame_cells(found)
        return AnnotatedTable(cells, data.obs_names, names)
    where = f"view {name!r}, {place!r}"
    if hasattr(found, "backend"):  # a sparse matrix on disk
        found = found.to_memory()
    if is_sparse(found):
        check_sparse(where, found)
        found = canonical(found)
    elif isinstance(found, np.ndarray):
        found = filled(found) if isinstance(found, np.ma.MaskedArray) else np.asarray(found)
    elif type(found).__module__.startswith("h5py."):
        memory.require(found.dtype.itemsize * int(np.prod(found.shape)), where, "choose fewer features")
        found = found[()]
    else:
        kind = type(found).__name__
        raise DataError(f"{where} is a {kind}; make it a NumPy array or a sparse matrix of SciPy first")
    columns = range(found.shape[1]) if place.startswith("obsm/") else data.var_names.tolist()
    return AnnotatedTable(found, data.obs_names, columns)


def frame_cells(frame: Any) -> tuple[NDArray[Any], list[str]]:
    """The cells of a data frame in obsm, its text as categories, and the names of its columns."""
    encoded = exact_frame(encoded_frame(frame))
    return encoded.to_numpy(), [str(column) for column in encoded.columns]


def placed_dense_rows(matrix: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """The rows of an array, NaN for row -1."""
    placed = np.full((len(rows), *matrix.shape[1:]), np.nan, dtype=np.result_type(matrix.dtype, np.float32))
    placed[rows >= 0] = matrix[rows[rows >= 0]]
    return placed
