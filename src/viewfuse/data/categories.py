"""Categories: a text column of few values becomes one column of 0 and 1 per value, called "brand = Acme".

These names are all that a model needs to know: a value that it has no column for, and an empty cell, are none of its
values. So are values that hardly any sample of a fit has. A category counts as much as one number, however many values
it has (`viewfuse.data.scaling`).

Columns of new samples are matched with those of a model by name, where both have names; a value that is not there is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.input_types import Mask, Names, id_key, is_sparse, looks
from viewfuse.data.precision import Offset, is_number
from viewfuse.data.sparse_tables import with_columns
from viewfuse.errors import DataError, IgnoredColumnsWarning
from viewfuse.utils.console import some, warn
from viewfuse.utils.settings import Setting

MOST_VALUES = 256
"""Different texts of a column: more are names or remarks, and would fill the memory with columns."""
FEWEST = 3
"""Samples of a value that has a column: what fewer have in common sets no cluster apart."""
WORDS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
"""Values of columns that become one column of 1 and 0, in small letters."""
NOTHING = frozenset({
    "", "na", "nan", "null", "none", "n/a",
    "not available", "not reported", "'--", "[not available]", "[not applicable]", "[not evaluated]", "[unknown]",
    "[discrepancy]",
})  # fmt: skip
"""What an empty cell may be written as, in small letters; below the first line as in clinical tables of TCGA."""
_SIGN = " = "
MOST_ABSENT = 0.2
"""Share of a model's columns that may be absent in new samples; their cells are empty."""
_LISTED = 20
TOO_MANY = f" has more than {MOST_VALUES} different texts, too many for a category; "
DROP: tuple[str | Setting, ...] = (
    "leave it out with ", Setting("drop"), ", or name it with ", Setting("id_column"), " if it holds ids",
)  # fmt: skip


def is_nothing(cell: str) -> bool:
    """Whether text stands for an empty cell."""
    return cell.strip().lower() in NOTHING


def is_value(cell: str) -> bool:
    """Whether text may be the value of a category: it begins with a letter; 5%, 1_1 and 2,50 are numbers gone wrong."""
    return cell.strip()[:1].isalpha() and not is_number(cell)


def category_of(column: Hashable) -> str | None:
    """The category that a column is a value of; None of any other column."""
    name, sign, _ = column.partition(_SIGN) if isinstance(column, str) else ("", "", "")
    return name if sign and name else None


def categories_in(columns: Names) -> dict[str, list[int]]:
    """Per category the places of its columns."""
    found: dict[str, list[int]] = {}
    for place, column in enumerate(() if isinstance(columns, range) else columns):
        if (name := category_of(column)) is not None:
            found.setdefault(name, []).append(place)
    return found


def blocks_of(columns: Names, array: Any, present: Mask) -> list[list[int]]:
    """Per category of a view the places of its columns, where these hold nothing but 0 and 1."""
    if is_sparse(array):
        return []
    return [places for places in categories_in(columns).values() if np.isin(array[present][:, places], (0, 1)).all()]


class TextValues:
    """Gives the different texts of a column numbers, in the order in which they come."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, cell: Hashable) -> float | None:
        """The number of a text; None for one text too many."""
        cell = id_key(cell)
        if cell not in self._codes and len(self._codes) == MOST_VALUES:
            return None
        return float(self._codes.setdefault(cell, len(self._codes)))

    def codes(self, cells: Sequence[Any], where: str) -> NDArray[np.float64]:
        """The numbers of many, NaN for None; too many different ones are refused."""
        codes = [np.nan if cell is None else self.code(cell) for cell in cells]
        if None in codes:
            raise DataError(f"{where}{TOO_MANY}", *DROP)
        return np.array(codes, dtype=np.float64)

    @property
    def are_words(self) -> bool:
        """Whether all mean yes or no."""
        return all(text.lower() in WORDS for text in self._codes)

    def columns(self, name: Hashable) -> list[str]:
        """The names of the columns that it becomes."""
        return [str(name)] if self.are_words else [f"{name}{_SIGN}{text}" for text in sorted(self._codes)]

    def numbers(self, codes: NDArray[np.float64]) -> NDArray[np.float64]:
        """The columns themselves, of shape (rows, columns), given the codes of rows, NaN where they are empty."""
        if self.are_words:
            known = np.array([*(WORDS[text.lower()] for text in self._codes), np.nan])
            return known[np.where(np.isnan(codes), -1, codes).astype(np.int64)][:, None]
        order = [self._codes[text] for text in sorted(self._codes)]
        return (codes[:, None] == np.array(order)).astype(np.float64)


def with_values(table: NDArray[np.float64], found: Mapping[int, TextValues]) -> NDArray[np.float64]:
    """Rows in which the columns `found`, of codes, are replaced by those of their values; empty rows stay empty."""
    parts = [found[c].numbers(table[:, c]) if c in found else table[:, c : c + 1] for c in range(table.shape[1])]
    wide = np.concatenate(parts, axis=1)
    wide[np.isnan(table).all(axis=1)] = np.nan
    return wide


def names_with_values(columns: Names, found: Mapping[int, TextValues]) -> list[Hashable]:
    """The names of the columns that `with_values` gives; "brand = Acme" beside a text column "brand" is refused."""
    known = {str(columns[c]) for c in found}
    if alike := [name for name in columns if category_of(name) in known]:
        text = category_of(alike[0])
        raise DataError(f"column {alike[0]!r} is called like a value of the text column {text!r}; rename one of them")
    return [name for c, own in enumerate(columns) for name in (found[c].columns(own) if c in found else [own])]


def with_words(array: Any, present: Mask, columns: Names, known: Names) -> tuple[Any, Names]:
    """New samples that say yes or no only, or nothing, where a model knows other values: with columns of its values."""
    other = set(columns) - set(known)
    values = {name: places for name, places in categories_in(known).items() if name in other}
    for name, places in values.items():
        texts = [str(known[place]).removeprefix(name + _SIGN) for place in places]
        place, words = list(columns).index(name), [text for text in texts if text.lower() in WORDS]
        own = array[:, [place]]
        if np.isnan(own[present]).all():
            array = np.array(array)
            array[:, place] = 0
            columns = [known[places[0]] if one == name else one for one in columns]
        elif words and np.isin(own[~np.isnan(own)], (0, 1)).all():
            found = (own == [WORDS[text.lower()] for text in words]).astype(array.dtype)
            array = np.concatenate([array, found[:, 1:]], axis=1)
            array[:, place] = found[:, 0]
            first, *more = (f"{name}{_SIGN}{text}" for text in words)
            columns = [*(first if one == name else one for one in columns), *more]
    return array, columns


def encoded_frame(view: Any) -> Any:
    """A data frame whose columns of text, or of pandas' type category, are replaced."""
    found: dict[int, tuple[TextValues, NDArray[np.float64]]] = {}
    for c, kind in enumerate(view.dtypes if len(view.shape) == 2 else ()):
        if getattr(kind, "kind", "O") not in "OU":  # text of Arrow is of kind U
            continue
        there = view.iloc[:, c].notna().to_numpy()
        cells = [_stripped(cell) if one else None for cell, one in zip(view.iloc[:, c].tolist(), there, strict=True)]
        if (str(kind) == "category" and there.any()) or _is_text(cells, there.any()):
            values = TextValues()
            found[c] = values, values.codes(cells, f"column {view.columns[c]!r}")
    if not found:
        return view
    from pandas import DataFrame, concat

    names = names_with_values(list(view.columns), {c: values for c, (values, _) in found.items()})
    parts, empty = [view.iloc[:, [c]] for c in range(view.shape[1])], view.isna()
    for c, (values, codes) in found.items():
        parts[c] = DataFrame(values.numbers(codes), index=view.index)
        empty.isetitem(c, np.isnan(codes))
    wide, gone = concat(parts, axis=1).set_axis(names, axis=1), empty.all(axis=1)
    return wide.mask(gone) if gone.any() else wide


def encoded_rows(rows: Sequence[Sequence[Any] | None], columns: Names) -> tuple[Sequence[Sequence[Any] | None], Names]:
    """Rows of cells, None for one that is missing, whose columns of text are replaced."""
    there = [row for row in rows if row is not None]
    has_text = any(isinstance(cell, str) for row in there for cell in row)
    if not has_text or any(len(row) != len(columns) for row in there):
        return rows, columns  # what is ragged is refused elsewhere
    table = np.array(there, dtype=object)
    found, parts = {}, [table[:, [c]] for c in range(len(columns))]
    for c, cells in enumerate(table.T.tolist()):
        stripped = [_stripped(cell) for cell in cells]
        if _is_text(stripped, any(isinstance(cell, str) for cell in cells)):
            found[c] = TextValues()
            codes = found[c].codes(stripped, f"column {columns[c]!r}")
            parts[c] = found[c].numbers(codes).astype(object)
    names, wide = names_with_values(columns, found), np.concatenate(parts, axis=1)
    wide[[all(_stripped(cell) is None for cell in row) for row in there]] = None
    encoded = iter(wide.tolist())
    return [None if row is None else next(encoded) for row in rows], names


def _stripped(cell: Any) -> Any:
    """A cell without blanks around its text, None where that stands for nothing, as in files."""
    if not isinstance(cell, str):
        return cell
    return None if is_nothing(cell) else cell.strip()


def _is_text(cells: Sequence[Any], has_text: bool) -> bool:
    """Whether cells, None where they are empty, are values of a category, or text that stands for nothing."""
    known = [cell for cell in cells if cell is not None]
    if not known:
        return has_text
    return all(isinstance(cell, str) and not is_number(cell) for cell in known) and is_value(known[0])


class Matching(NamedTuple):
    """Where the columns of a model stand in new samples, -1 where one is absent; None where all stand in order.

    `ignored` are columns that the model does not know; `zero` and `others` are absent columns of categories that new
    samples have values of, and of categories that they lack.
    """

    places: NDArray[np.int64] | None = None
    ignored: Names = ()
    zero: Sequence[int] = ()
    others: Sequence[int] = ()


def match_columns(view: str, given: Names, fitted: Names, plain: Collection[str] = ()) -> Matching:
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
        listed = [*map(repr, absent[:_LISTED]), *["..."] * (len(absent) > _LISTED)]  # whole, to be compared
        raise DataError(
            f"view {view!r} lacks {len(absent):,} of the {len(whole):,} columns that the model was fitted on, more "
            f"than {MOST_ABSENT:.0%}: {', '.join(listed)}; it has {some(given)}; are the columns called alike?"
        )
    _warn_of_categories(view, {name: [names[c] for c in own[name]] if name in own else None for name in theirs}, known)
    gaps = [(name in own, c) for name, columns in theirs.items() for c in columns if places[c] < 0]
    zero, others = ([c for is_there, c in gaps if is_there is wanted] for wanted in (True, False))
    unknown = [name for name in names if name not in known and category_of(name) not in theirs]
    return Matching(places, unknown, zero, others)


def _warn_of_categories(view: str, values: Mapping[str, Names | None], known: Collection[Hashable]) -> None:
    """Warn of categories that are not there, of which no value is known, or one that looks like it: they count as none.

    `values` are those that the new samples have of each category of the model.
    """
    if gone := [name for name, own in values.items() if own is None]:
        what = f"categories of the model are not there ({some(gone)}), so all samples count as none of their"
        warn(IgnoredColumnsWarning(f"view {view!r}: {what} values; are the columns called alike?"))
    alike = {looks(str(one)).casefold(): one for one in known}
    for name, own in values.items():
        strange = [one for one in own or () if one not in known]
        spelled = [one for one in strange if looks(str(one)).casefold() in alike]
        if own is not None and len(strange) == len(own):
            what = f"no value of the category {name!r} that these samples have ({some(own)}) is known to the model"
            warn(IgnoredColumnsWarning(f"view {view!r}: {what}, so they count as none; are they spelled alike?"))
        elif spelled:
            what = f"{spelled[0]!r} is not known to the model, so it counts as none"
            other = alike[looks(str(spelled[0])).casefold()]
            warn(IgnoredColumnsWarning(f"view {view!r}: {what}, but {other!r} is; spell both alike"))


def _spelled_alike(given: Names, fitted: Names) -> Names:
    """The names of new samples as the model has them: files have text where a data frame may have numbers."""
    own, known = set(given), set(fitted)
    texts: dict[str, Any] = {id_key(one): one for one in fitted if one not in own and isinstance(one, (str, Real))}
    alike: dict[Any, Any] = {one: texts.get(id_key(one), one) for one in own - known if isinstance(one, (str, Real))}
    return [alike.get(name, name) for name in given]


def _are_nameless(columns: Names, others: Names) -> bool:
    """Whether columns have no names to match with those of the other side.

    Those of an array have none. Those of a data frame that was made of one are 0, 1, 2, ..., which are names beside
    other numbers.
    """
    counted, too = (list(one) == list(range(len(one))) for one in (columns, others))
    return isinstance(columns, range) or (counted and (too or not any(map(is_number, others))))


def conformed(
    view: str, array: Any, present: Mask, offset: Offset, given: Names, fitted: Names
) -> tuple[Any, Mask, Offset, Names]:
    """A view with the columns of the model, who has it, its offset, and the columns that are left out.

    Cells of absent columns are empty; who has values in other columns only lacks the view.
    """
    array, given = with_words(array, present, given, fitted)
    blocks = blocks_of(given, array, present)
    plain = {name for name, places in categories_in(given).items() if places not in blocks}
    matching = match_columns(view, given, fitted, plain)
    if matching.places is None:
        return array, present, offset, ()
    if not isinstance(offset, float):
        # A zero more, which is that of absent columns: their place is -1.
        offset = np.pad(offset, (0, array.shape[1] - len(offset) + 1))[matching.places]
    if is_sparse(array):
        return with_columns(array, matching.places, present), present, offset, matching.ignored
    found = array[:, matching.places]
    found[:, matching.places < 0] = np.nan
    found[:, matching.zero] = 0
    present = present & ~np.isnan(found).all(axis=1)
    found[:, matching.others] = 0
    found[~present] = 0
    found.flags.writeable = False
    return found, present, offset, matching.ignored
