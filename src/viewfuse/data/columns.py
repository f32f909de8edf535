"""Columns of new samples are matched with those that a model was fitted on: by name where both have names.

Columns of values of a category (`viewfuse.data.categories`) are no columns of their own: one that is not there is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.categories import categories_in, category_of
from viewfuse.data.digits import is_number
from viewfuse.data.given import is_sparse
from viewfuse.data.sparse_tables import with_columns
from viewfuse.errors import DataError, IgnoredColumnsWarning
from viewfuse.utils.console import some, warn

MOST_ABSENT = 0.2
"""Share of a view's columns that may be absent; their cells are empty."""
_LISTED = 20


class Matching(NamedTuple):
    """Where the columns of a model stand in new samples.

    Attributes
    ----------
    places : int64 array of shape (columns of the model,), -1 where a column is absent; None where all stand in order
    ignored : columns that the model does not know
    zero, others : absent columns of categories that new samples have values of, and of categories that they lack
    """

    places: NDArray[np.int64] | None = None
    ignored: Sequence[Hashable] = ()
    zero: Sequence[int] = ()
    others: Sequence[int] = ()


def match_columns(
    view: str, given: Sequence[Hashable], fitted: Sequence[Hashable], plain: Collection[str] = ()
) -> Matching:
    """Match by name, 7 like "7"; where one side has no names there must be as many columns in both, in one order.

    `plain` are no categories, though columns are called like their values, such as "dose = 1": they hold other numbers.
    """
    if list(given) == list(fitted):
        return Matching()
    if isinstance(given, range):
        _check_count(view, given, fitted)
    names = _spelled_alike(given, fitted)
    if set(names) != set(fitted) and (_are_nameless(given, fitted) or _are_nameless(fitted, given)):
        _check_count(view, given, fitted)
        return Matching()
    known = set(fitted)
    place = {name: p for p, name in enumerate(names)}
    _check_once(view, [name for name in names if name in known], "the new samples")
    _check_once(view, fitted, "the model")
    places = np.array([place.get(name, -1) for name in fitted], dtype=np.int64)
    own, theirs = (
        {name: places for name, places in categories_in(columns).items() if name not in plain}
        for columns in (names, fitted)
    )
    _check_kinds(view, {*own} & known - {*names}, {*theirs} & {*names} - known)
    whole = dict.fromkeys(category_of(name) if category_of(name) in theirs else name for name in fitted)
    _check_absent(view, [name for name in whole if name not in place and name not in own], given, len(whole))
    absent = [(name, c) for name, columns in theirs.items() for c in columns if places[c] < 0]
    _warn_of_absent(view, [name for name in theirs if name not in own])
    zero, others = ([c for name, c in absent if (name in own) is known] for known in (True, False))
    unknown = [name for name in names if name not in known and category_of(name) not in theirs]
    _warn_of_values(view, {name: [names[c] for c in own[name]] for name in theirs if name in own}, known)
    return Matching(places, unknown, zero, others)


def _check_kinds(view: str, text: Collection[Hashable], numbers: Collection[Hashable]) -> None:
    """Refuse text where a model knows numbers, and the reverse."""
    for names, here, there in ((text, "text", "numbers"), (numbers, "numbers", "text")):
        if names:
            column = f"view {view!r}, column {min(map(str, names))!r}"
            raise DataError(f"{column} holds {here}, but {there} when the model was fitted; write it as then")


def _warn_of_absent(view: str, categories: Sequence[Hashable]) -> None:
    """Warn of categories that are not there: their values would count as none without a word."""
    if categories:
        what = f"categories of the model are not there ({some(categories)}), so all samples count as none of their"
        warn(IgnoredColumnsWarning(f"view {view!r}: {what} values; are the columns called alike?"))


def _warn_of_values(view: str, values: Mapping[str, Sequence[Hashable]], known: Collection[Hashable]) -> None:
    """Warn of categories none of whose values the model knows, and of values that it knows in other capitals."""
    alike = {str(one).casefold(): one for one in known}
    for name, own in values.items():
        if not any(one in known for one in own):
            what = f"no value of the category {name!r} that these samples have ({some(own)}) is known to the model"
            warn(IgnoredColumnsWarning(f"view {view!r}: {what}, so they count as none; are they spelled alike?"))
        elif other := [one for one in own if one not in known and str(one).casefold() in alike]:
            what = (
                f"{other[0]!r} is not known to the model, so it counts as none, but {alike[str(other[0]).casefold()]!r}"
            )
            warn(IgnoredColumnsWarning(f"view {view!r}: {what} is; spell both alike"))


def _spelled_alike(given: Sequence[Hashable], fitted: Sequence[Hashable]) -> Sequence[Hashable]:
    """The names of new samples as the model has them: files have text where a data frame may have numbers."""
    own, known = set(given), set(fitted)
    texts = {str(name): name for name in fitted if name not in own and _is_written(name)}
    alike = {name: texts[str(name)] for name in own - known if _is_written(name) and str(name) in texts}
    return [alike.get(name, name) for name in given]


def _is_written(name: Hashable) -> bool:
    """Whether a name stands in a file as Python writes it."""
    return isinstance(name, (str, Real))


def _are_nameless(columns: Sequence[Hashable], others: Sequence[Hashable]) -> bool:
    """Whether columns have no names to match with those of the other side.

    Those of an array have none. Those of a data frame that was made of one are 0, 1, 2, ..., which are names beside
    other numbers.
    """
    if isinstance(columns, range):
        return True
    return _count(columns) and (_count(others) or not any(map(is_number, others)))


def _count(columns: Sequence[Hashable]) -> bool:
    return list(columns) == list(range(len(columns)))


def matched(array: Any, present: NDArray[np.bool_], matching: Matching) -> tuple[Any, NDArray[np.bool_]]:
    """A view of shape (samples, columns) with the columns of the model, and who has it.

    Cells of absent columns are empty; who has values in other columns only lacks the view.
    """
    if matching.places is None:
        return array, present
    if is_sparse(array):
        return with_columns(array, matching.places, present), present
    found = array[:, matching.places]
    found[:, matching.places < 0] = np.nan
    found[:, matching.zero] = 0
    present = present & ~np.isnan(found).all(axis=1)
    found[:, matching.others] = 0
    found[~present] = 0
    found.flags.writeable = False
    return found, present


def warn_of_ignored(ignored: Mapping[str, Sequence[Hashable]]) -> None:
    """Warn once of columns that are ignored."""
    listed = [f"{view} {len(names):,} ({some(names)})" for view, names in ignored.items() if names]
    if listed:
        what = f"columns that the model was not fitted on are ignored: {'; '.join(listed)}"
        warn(IgnoredColumnsWarning(what))


def _check_count(view: str, given: Sequence[Hashable], fitted: Sequence[Hashable]) -> None:
    if len(given) != len(fitted):
        raise DataError(
            f"view {view!r} has {len(given)} columns, but the model was fitted on {len(fitted)}; "
            "give the same columns in the same order, or with their names in any order"
        )


def _check_once(view: str, names: Collection[Hashable], whose: str) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(
            f"view {view!r}: two columns of {whose} are called {twice!r}, so they cannot be matched by name; "
            "give the same columns in the same order"
        )


def _check_absent(view: str, absent: Sequence[Hashable], given: Sequence[Hashable], width: int) -> None:
    if len(absent) <= MOST_ABSENT * width:
        return
    listed = ", ".join(map(repr, absent[:_LISTED]))
    more = f" and {len(absent) - _LISTED:,} more" if len(absent) > _LISTED else ""
    raise DataError(
        f"view {view!r} lacks {len(absent):,} of the {width:,} columns that the model was fitted on, more than "
        f"{MOST_ABSENT:.0%}: {listed}{more}; it has {some(given)}; are the columns called alike?"
    )
