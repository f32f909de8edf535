"""Categories: a text column of few values becomes one column of 0 and 1 per value, called "brand = Acme".

These names are all that a model needs to know: a value that it has no column for, and an empty cell, are none of its
values. So are values that hardly any sample of a fit has. A category counts as much as one number, however many values
it has (`viewfuse.data.scaling`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.digits import is_number
from viewfuse.data.given import is_sparse
from viewfuse.errors import DataError
from viewfuse.utils.settings import Setting

MOST_VALUES = 256
"""Different texts of a column: more are names or remarks, and would fill the memory with columns."""
FEWEST = 3
"""Samples of a value that has a column: what fewer have in common sets no cluster apart."""
WORDS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
"""Values of columns that become one column of 1 and 0, in small letters."""
NOTHING = ("", "na", "nan", "null", "none", "n/a")
"""What an empty cell may be written as, in small letters."""
_SIGN = " = "


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


def categories_in(columns: Sequence[Hashable]) -> dict[str, list[int]]:
    """Per category the places of its columns."""
    found: dict[str, list[int]] = {}
    for place, column in enumerate(() if isinstance(columns, range) else columns):
        if (name := category_of(column)) is not None:
            found.setdefault(name, []).append(place)
    return found


def blocks_of(columns: Sequence[Hashable], array: Any, present: NDArray[np.bool_]) -> list[list[int]]:
    """Per category of a view the places of its columns, where these hold nothing but 0 and 1."""
    if is_sparse(array):
        return []
    return [places for places in categories_in(columns).values() if np.isin(array[present][:, places], (0, 1)).all()]


def plain_in(columns: Sequence[Hashable], array: Any, present: NDArray[np.bool_]) -> set[str]:
    """What is no category, though columns are called like its values: they hold other numbers than 0 and 1."""
    blocks = blocks_of(columns, array, present)
    return {name for name, places in categories_in(columns).items() if places not in blocks}


class TextValues:
    """Gives the different texts of a column numbers, in the order in which they come."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, cell: str) -> float | None:
        """The number of a text; None for one text too many."""
        if cell not in self._codes and len(self._codes) == MOST_VALUES:
            return None
        return float(self._codes.setdefault(cell, len(self._codes)))

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
    """Rows in which the columns `found`, of codes, are replaced by the columns of their values.

    A row without any number or text stays empty.
    """
    parts = [found[c].numbers(table[:, c]) if c in found else table[:, c : c + 1] for c in range(table.shape[1])]
    wide = np.concatenate(parts, axis=1)
    wide[np.isnan(table).all(axis=1)] = np.nan
    return wide


def names_with_values(columns: Sequence[Hashable], found: Mapping[int, TextValues]) -> list[Hashable]:
    """The names of the columns that `with_values` gives."""
    check_apart(columns, [columns[c] for c in found])
    return [name for c, own in enumerate(columns) for name in (found[c].columns(own) if c in found else [own])]


def check_apart(columns: Sequence[Hashable], texts: Sequence[Hashable]) -> None:
    """Refuse columns of text beside one that is called like a value of theirs, as "brand = Acme" is beside "brand"."""
    known = set(map(str, texts))
    if alike := [name for name in columns if category_of(name) in known]:
        text = category_of(alike[0])
        raise DataError(f"column {alike[0]!r} is called like a value of the text column {text!r}; rename one of them")


def with_words(
    array: Any, present: NDArray[np.bool_], columns: Sequence[Hashable], known: Sequence[Hashable]
) -> tuple[Any, Sequence[Hashable]]:
    """New samples that say yes or no only, or nothing, where a model knows other values: with columns of its values.

    `present`, of shape (samples,), are those that have the view.
    """
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
        if getattr(kind, "kind", "O") != "O":
            continue
        there = view.iloc[:, c].notna().to_numpy()
        cells = [_stripped(cell) if one else None for cell, one in zip(view.iloc[:, c].tolist(), there, strict=True)]
        if (str(kind) == "category" and there.any()) or _is_text(cells, there.any()):
            found[c] = _coded(view.columns[c], cells)
    if not found:
        return view
    check_apart(view.columns, [view.columns[c] for c in found])
    from pandas import DataFrame, concat

    parts, empty = [view.iloc[:, [c]] for c in range(view.shape[1])], view.isna()
    for c, (values, codes) in found.items():
        parts[c] = DataFrame(values.numbers(codes), index=view.index, columns=values.columns(view.columns[c]))
        empty.isetitem(c, np.isnan(codes))
    wide, gone = concat(parts, axis=1), empty.all(axis=1)
    return wide.mask(gone) if gone.any() else wide


def encoded_rows(
    rows: Sequence[Sequence[Any] | None], columns: Sequence[Hashable]
) -> tuple[Sequence[Sequence[Any] | None], Sequence[Hashable]]:
    """Rows of cells, None for one that is missing, whose columns of text are replaced."""
    there = [row for row in rows if row is not None]
    has_text = any(isinstance(cell, str) for row in there for cell in row)
    if not has_text or any(len(row) != len(columns) for row in there):
        return rows, columns  # what is ragged is refused elsewhere
    names: list[Hashable] = []
    texts: list[Hashable] = []
    parts: list[list[list[Any]]] = []
    for name, cells in zip(columns, zip(*there, strict=True), strict=True):
        found = [_stripped(cell) for cell in cells]
        if _is_text(found, any(isinstance(cell, str) for cell in cells)):
            values, codes = _coded(name, found)
            texts.append(name)
            names += values.columns(name)
            parts.append(values.numbers(codes).tolist())
        else:
            names.append(name)
            parts.append([[cell] for cell in cells])
    check_apart(columns, texts)
    wide = iter([[x for part in own for x in part] for own in zip(*parts, strict=True)])
    encoded: list[Sequence[Any] | None] = [None if row is None else next(wide) for row in rows]
    for place, row in enumerate(rows):
        if row is not None and all(_stripped(cell) is None for cell in row):
            encoded[place] = [None] * len(names)
    return encoded, names


def _coded(name: Hashable, cells: Sequence[Any]) -> tuple[TextValues, NDArray[np.float64]]:
    """The different texts of a column, and their numbers, NaN for None."""
    values = TextValues()
    codes = [np.nan if cell is None else values.code(str(cell)) for cell in cells]
    if None in codes:
        raise DataError(too_many(f"column {name!r}"), *DROP)
    return values, np.array(codes, dtype=np.float64)


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


def too_many(column: str) -> str:
    """What is wrong with a column of names or remarks."""
    return f"{column} has more than {MOST_VALUES} different texts, too many for a category; "


DROP: tuple[str | Setting, ...] = (
    "leave it out with ", Setting("drop"), ", or name it with ", Setting("id_column"), " if it holds ids",
)  # fmt: skip
