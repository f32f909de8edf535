"""What was given is sorted out: which views there are, whose rows belong together, ids and masks."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.annotated import AnnotatedTable
from viewfuse.data.digits import exact_frame
from viewfuse.data.given import has_row_labels, is_sparse_frame
from viewfuse.data.sparse_tables import reindexed
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.utils.console import warn

CURE = "write ids alike in all views, as text with all their zeros, say (pandas: dtype=str)"
_MOST = 50_000
"""Ids of a view that are looked at; who misspells ids does not begin after so many."""


def aligned(given: dict[str, Any], *, allow_disjoint: bool = False) -> tuple[dict[str, Any], Sequence[Hashable] | None]:
    """Join labelled frames by the union of their row labels, in the order of first appearance.

    With `allow_disjoint` a frame may share no label with others, unless its labels are others' spelled otherwise.
    Returns the views, and the labels where there are any.
    """
    frames = {name: view for name, view in given.items() if view is not None}
    labelled = {name: view.index for name, view in frames.items() if has_row_labels(view)}
    if any(index.dtype.kind in "iu" for index in labelled.values()):
        # 0, 1, 2, ... next to other whole numbers are labels, too.
        labelled = {name: view.index for name, view in frames.items() if hasattr(view, "iloc")}
    for name, index in labelled.items():
        _check_labels(f"view {name!r}", index)
    indexes = list(labelled.values())
    if all(index.equals(indexes[0]) for index in indexes):
        _tell_unlabelled(labelled, frames)
        return given, indexes[0] if indexes else None
    _check_matchable(labelled, frames, allow_disjoint)
    union = list(dict.fromkeys(label for index in indexes for label in index))
    return {name: _in_order(view, union) for name, view in given.items()}, union


def _tell_unlabelled(labelled: Mapping[str, Any], frames: Mapping[str, Any]) -> None:
    """Warn of a frame that counts its rows beside one with ids: its index may have been forgotten."""
    counted = [name for name, view in frames.items() if hasattr(view, "iloc") and name not in labelled]
    if labelled and counted:
        other, index = next(iter(labelled.items()))
        _tell_counted(f"view {counted[0]!r}", f"{other!r} has", index.tolist())


def _in_order(view: Any, labels: Sequence[Hashable]) -> Any:
    """A frame with one row per label, NaN where it has none."""
    if view is None:
        return None
    if isinstance(view, AnnotatedTable):
        return view.in_order(labels)
    return reindexed(view, labels) if is_sparse_frame(view) else exact_frame(view).reindex(labels)


def _check_labels(where: str, index: Any) -> None:
    if index.nlevels == 1 and index.hasnans:
        raise DataError(f"{where}: a row label is missing; give every row the id of its sample")
    if index.has_duplicates:
        twice = index[index.duplicated()].tolist()[0]
        raise DataError(
            f"{where}: row label {twice!r} appears twice; keep one row per sample, "
            "or reset_index(drop=True) if the labels mean nothing"
        )


def _check_matchable(labelled: Mapping[str, Any], frames: Mapping[str, Any], allow_disjoint: bool) -> None:
    if len(labelled) < len(frames):
        raise DataError(
            f"views {sorted(labelled)} have row labels that differ, but {sorted(set(frames) - set(labelled))} have "
            "none, so the rows cannot be matched; give every view an index of sample ids"
        )
    for name, index in labelled.items():
        others = {other: labels for other, labels in labelled.items() if other != name}
        of_a_kind = [labels for labels in others.values() if _kind(labels) == _kind(index)]
        if any(len(index.intersection(labels)) for labels in others.values() if labels.nlevels == index.nlevels):
            continue
        pairs = {other: read_alike(index.tolist(), labels.tolist()) for other, labels in others.items()}
        if allow_disjoint and of_a_kind and not any(pairs.values()):
            continue
        other = next((other for other, alike in pairs.items() if alike), next(iter(others)))
        cure = in_words(pairs[other], name, other) if pairs[other] else "give all the same kind of sample ids"
        raise DataError(
            f"view {name!r} shares no row label with any other view ({index.tolist()[0]!r} against "
            f"{others[other].tolist()[0]!r} in {other!r}); {cure}"
        )


def _kind(index: Any) -> tuple[int, str]:
    """What the labels of a pandas Index are: text, whole numbers, ..., or tuples of so many."""
    return index.nlevels, index.inferred_type


def checked_ids(ids: Any, n: int) -> NDArray[Any]:
    """One id per sample, each once."""
    is_list = hasattr(ids, "__len__") and not isinstance(ids, (str, set, dict)) and len(ids) == n
    if not is_list or not _are_names(ids):
        raise DataError(f"ids must be a list of {n} names, one id per row; got {reprlib.repr(ids)}")
    is_time = isinstance(ids, np.ndarray) and ids.dtype.kind in "mM"  # of which tolist makes bare numbers
    listed = ids.tolist() if hasattr(ids, "tolist") and not is_time else list(ids)
    seen: dict[Hashable, int] = {}
    for row, name in enumerate(listed):
        if name is None or name != name:
            raise DataError(f"the id of row {row} is missing; give each sample an id of its own")
        if name in seen:
            raise DataError(
                f"id {name!r} appears twice, in rows {seen[name]} and {row}; give each sample an id of its own"
            )
        seen[name] = row
    return id_array(listed)


def check_order(ids: Any, labels: Sequence[Hashable] | None) -> None:
    """Refuse ids that are the row labels of the views in another order: each sample would be called like another."""
    if labels is None or ids is None or len(ids) != len(labels):
        return
    named, found = list(ids), list(labels)
    if named != found and set(named) == set(found):
        raise DataError(
            "ids are the row labels of the views in another order; leave ids out, as the samples have their labels"
        )


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
        if isinstance(names[0], float) or (found.dtype.kind != "f" and found.ndim == 1 and _is_whole(found, names)):
            return found
    kept = np.empty(len(names), dtype=object)
    kept[:] = names
    return kept


def _is_whole(found: NDArray[Any], names: Sequence[Hashable]) -> bool:
    """Whether an array still has what stood at the ends of text: NumPy takes zeros there for nothing."""
    return found.dtype.kind not in "US" or found.tolist() == list(names)


def _are_names(ids: Any) -> bool:
    """Whether each of the ids can be one; a tuple is a label of several levels."""
    if hasattr(ids, "shape"):
        return len(ids.shape) == 1
    try:
        return all(hash(name) is not None for name in ids)
    except TypeError:
        return False


def checked_mask(
    mask: Any, ids: Sequence[Hashable] | NDArray[Any], names: Sequence[str], labels: Any = None
) -> NDArray[np.bool_]:
    """A boolean mask of shape (samples, views); True where a view may be looked at.

    Parameters
    ----------
    mask : array, whose rows are the samples in order, or a data frame, whose rows are matched by their labels
    ids : of the samples
    names : of the views
    labels : pandas Index or list of the row labels that the views came with; None where they had none
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
        raise DataError(
            f"the mask has shape {given.shape}, but {n} rows of {len(names)} views need ({n}, {len(names)})"
        )
    if isinstance(mask, np.ma.MaskedArray) or given.dtype.kind not in "biuf" or not np.isin(given, (0, 1)).all():
        raise DataError("the mask holds values other than True/False (1/0); give True where a view is present")
    return given.astype(bool)


def _by_id(mask: Any, ids: Sequence[Hashable] | NDArray[Any], labels: Any) -> Any:
    """The rows of a data frame in the order of `ids`; one that counts its rows is in order already."""
    wanted = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    counts = not has_row_labels(mask)
    if counts and (labels is None or not all(isinstance(label, int) for label in labels)):
        if labels is not None and len(mask) == len(wanted):
            _tell_counted("the mask", "the samples have", wanted)
        return mask
    _check_labels("the mask", mask.index)
    place = {label: row for row, label in enumerate(mask.index.tolist())}
    absent = [name for name in wanted if name not in place]
    if absent or len(place) > len(wanted):
        raise DataError(_unmatched(absent, list(place), wanted))
    return mask.iloc[[place[name] for name in wanted]]


def _tell_counted(what: str, others: str, ids: Sequence[Hashable]) -> None:
    found = f"{what} has row labels 0, 1, 2, ..., but {others} ids such as {ids[0]!r}"
    cure = "rows are matched by their order; give both the ids of their samples as index"
    warn(SuspiciousDataWarning(f"{found}, so {cure}"))


def _unmatched(absent: Sequence[Hashable], labels: Sequence[Hashable], ids: Sequence[Hashable]) -> str:
    """Why a mask does not belong to the samples, and the cure."""
    alike = read_alike(labels, ids)
    if alike:
        found, own = alike[0]
        return f"the mask has row labels {written(found)}, the samples have ids {written(own)}; {CURE}"
    if absent:
        what = f"the mask has no row for {len(absent):,} of {len(ids):,} samples, such as {absent[0]!r}"
    else:
        known = set(ids)
        extra = [label for label in labels if label not in known]
        what = f"the mask has rows for {len(extra):,} samples that the views lack, such as {extra[0]!r}"
    return f"{what}; give it the ids of the samples as index, or an array with their rows in order (mask.to_numpy())"


def read_alike(first: Iterable[Hashable], second: Iterable[Hashable]) -> list[tuple[Hashable, Hashable]]:
    """Ids that each side has alone, and which differ only in how they are written."""
    ours, theirs = list(first), list(second)
    common = set(ours) & set(theirs)
    known = {plainly(name): name for name in ours if name not in common}
    others = [(plainly(name), name) for name in theirs if name not in common]
    return [(known[plain], name) for plain, name in others if plain in known]


def plainly(name: Hashable) -> str:
    """An id without blanks around it, zeros before it, capitals, and the fraction of 17.0."""
    text = str(name).strip().casefold().removesuffix(".0")
    return text.lstrip("0") or "0" if text.isdigit() else text


def written(name: Hashable) -> str:
    """How an id is written: as a number (17), or as text ('017')."""
    return f"as text ({name!r})" if isinstance(name, str) else f"as numbers ({name})"


def in_words(pairs: Sequence[tuple[Hashable, Hashable]], first: str, second: str) -> str:
    """What is alike in two views, and the cure."""
    one, other = pairs[0]
    return (
        f"view {first!r} has ids {written(one)}, view {second!r} {written(other)}: {len(pairs):,} of them "
        f"differ only in how they are written; {CURE}"
    )


def alike_in_views(names: Sequence[str], mask: NDArray[np.bool_], ids: Sequence[Hashable]) -> list[str]:
    """A line for every two views of which each has ids alone that read like ids of the other."""
    lines = []
    for v, first in enumerate(names):
        for w in range(v + 1, len(names)):
            alone = ((mask[:, a] & ~mask[:, b]).nonzero()[0][:_MOST].tolist() for a, b in ((v, w), (w, v)))
            pairs = read_alike(*([ids[row] for row in rows] for rows in alone))
            lines += [in_words(pairs, first, names[w])] if pairs else []
    return lines


def warn_of_few(shared: int, first: Collection[Hashable], second: Collection[Hashable], both: str) -> None:
    """Warn where two lists of ids, of `both`, have less than half of the shorter one in common."""
    if 2 * shared < min(len(first), len(second)):
        few = f"only {shared} of {len(first)} and {len(second)} ids are in both {both}"
        alike = [f"{one!r} and {other!r} read alike" for one, other in read_alike(first, second)[:1]]
        warn(SuspiciousDataWarning("; ".join([few, *alike, "spell ids alike in both"])))
