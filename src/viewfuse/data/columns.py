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
    names, known = _spelled_alike(given, fitted), set(fitted)
    nameless = set(names) != known and (_are_nameless(given, fitted) or _are_nameless(fitted, given))
    if (isinstance(given, range) or nameless) and len(given) != len(fitted):
        raise DataError(
            f"view {view!r} has {len(given)} columns, but the model was fitted on {len(fitted)}; "
            "give the same columns in the same order, or with their names in any order"
        )
    if nameless:
        return Matching()
    for whose, columns in (("the new samples", [name for name in names if name in known]), ("the model", fitted)):
        if twice := [name for name, count in Counter(columns).items() if count > 1]:
            raise DataError(
                f"view {view!r}: two columns of {whose} are called {twice[0]!r}, so they cannot be matched by name; "
                "give the same columns in the same order"
            )
    place = {name: p for p, name in enumerate(names)}
    places = np.array([place.get(name, -1) for name in fitted], dtype=np.int64)
    own, theirs = (
        {name: places for name, places in categories_in(columns).items() if name not in plain}
        for columns in (names, fitted)
    )
    for here, there, wrong in (
        ("text", "numbers", {*own} & known - {*names}),
        ("numbers", "text", {*theirs} & {*names} - known),
    ):
        if wrong:
            column = f"view {view!r}, column {min(map(str, wrong))!r}"
            raise DataError(f"{column} holds {here}, but {there} when the model was fitted; write it as then")
    whole = dict.fromkeys(category_of(name) if category_of(name) in theirs else name for name in fitted)
    absent = [name for name in whole if name not in place and name not in own]
    if len(absent) > MOST_ABSENT * len(whole):
        raise DataError(
            f"view {view!r} lacks {len(absent):,} of the {len(whole):,} columns that the model was fitted on, more "
            f"than {MOST_ABSENT:.0%}: {some(absent, _LISTED)}; it has {some(given)}; are the columns called alike?"
        )
    _warn_of_categories(view, {name: [names[c] for c in own[name]] if name in own else None for name in theirs}, known)
    gaps = [(name in own, c) for name, columns in theirs.items() for c in columns if places[c] < 0]
    zero, others = ([c for is_there, c in gaps if is_there is wanted] for wanted in (True, False))
    unknown = [name for name in names if name not in known and category_of(name) not in theirs]
    return Matching(places, unknown, zero, others)


def _warn_of_categories(
    view: str, values: Mapping[str, Sequence[Hashable] | None], known: Collection[Hashable]
) -> None:
    """Warn of categories that are not there, of which no value is known, or one in other capitals: they count as none.

    `values` are those that the new samples have of each category of the model.
    """
    if gone := [name for name, own in values.items() if own is None]:
        what = f"categories of the model are not there ({some(gone)}), so all samples count as none of their"
        warn(IgnoredColumnsWarning(f"view {view!r}: {what} values; are the columns called alike?"))
    alike = {str(one).casefold(): one for one in known}
    for name, own in values.items():
        strange = [one for one in own or () if one not in known]
        spelled = [one for one in strange if str(one).casefold() in alike]
        if own is not None and len(strange) == len(own):
            what = f"no value of the category {name!r} that these samples have ({some(own)}) is known to the model"
            warn(IgnoredColumnsWarning(f"view {view!r}: {what}, so they count as none; are they spelled alike?"))
        elif spelled:
            what = f"{spelled[0]!r} is not known to the model, so it counts as none"
            other = alike[str(spelled[0]).casefold()]
            warn(IgnoredColumnsWarning(f"view {view!r}: {what}, but {other!r} is; spell both alike"))


def _spelled_alike(given: Sequence[Hashable], fitted: Sequence[Hashable]) -> Sequence[Hashable]:
    """The names of new samples as the model has them: files have text where a data frame may have numbers."""
    own, known = set(given), set(fitted)
    texts = {str(name): name for name in fitted if name not in own and isinstance(name, (str, Real))}
    alike = {name: texts.get(str(name), name) for name in own - known if isinstance(name, (str, Real))}
    return [alike.get(name, name) for name in given]


def _are_nameless(columns: Sequence[Hashable], others: Sequence[Hashable]) -> bool:
    """Whether columns have no names to match with those of the other side.

    Those of an array have none. Those of a data frame that was made of one are 0, 1, 2, ..., which are names beside
    other numbers.
    """
    counted, too = (list(one) == list(range(len(one))) for one in (columns, others))
    return isinstance(columns, range) or (counted and (too or not any(map(is_number, others))))


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
