"""CSV and TSV files, packed or not, with an id column: one view each, or one wide file of several (`blocks`)."""

from __future__ import annotations

import csv
import gzip
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate, chain, count, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.categories import is_nothing
from viewfuse.data.digits import (
    EXACT,
    ROWS_THAT_VARY,
    SAMPLED,
    TOO_CLOSE,
    are_fewer_as_floats,
    is_number,
    whole_numbers,
)
from viewfuse.errors import DataError
from viewfuse.io.csv_text import unmarked
from viewfuse.io.isolated.jobs import ReadJob
from viewfuse.io.readers.cells import Cells
from viewfuse.io.safety import Allowance, Spool
from viewfuse.io.source import FileView, ending_of, view_of
from viewfuse.utils.console import some, tell
from viewfuse.utils.settings import Setting

DELIMITERS = {".csv": ",", ".tsv": "\t", ".csv.gz": ",", ".tsv.gz": "\t"}
_CELLS_AT_A_TIME = 30_000
_LONGEST_LINE = 16_000_000
Lines = Sequence[Sequence[str]]
_QUOTED = re.compile('"[^"]*"')
_MANY = 6
"""So many numbers in rising or falling order are names, such as wavelengths; fewer may be in order by chance."""
Blocks = Mapping[str, str | Sequence[str]]
"""Per view the names of its columns, or a pattern such as "rna_*"."""


def read_text(job: ReadJob) -> list[FileView]:
    """The views of one file; with `blocks` several, and columns that belong to none are not looked at."""
    path, id_column, blocks = job.path, job.id_column, job.blocks
    try:
        how: Any = {"newline": "", "encoding": "utf-8-sig"}
        is_packed = path.suffix.lower() == ".gz"
        with gzip.open(path, "rt", **how) if is_packed else path.open(**how) as file:
            lines, sign = _separated(path, file)
            names, rows = _names_and_rows(job, lines)
            place = 0 if id_column is None else names.index(id_column)
            every = names[:place] + names[place + 1 :]
            columns = job.chosen(every)
            views = {view_of(path): columns} if blocks is None else pick_columns(path, columns, blocks)
            places = _places(path, names, views)
            wanted = [places[column] for found in views.values() for column in found]
            ids, table, reader = _read_rows(path, rows, names, place, wanted, sign)
            if id_column is None:
                _check_measurements(path, names[0], ids)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as text ({error}); save it as UTF-8 {path.suffix}") from None
    if job.header is False and not reader.texts:
        return [FileView(path, view_of(path), table, range(table.shape[1]), ids)]
    kept = set(columns)
    unread = tuple(name for name in every if name not in kept)
    firsts = accumulate(map(len, views.values()), initial=0)
    parts = [reader.part(table, first, len(own)) for first, own in zip(firsts, views.values(), strict=False)]
    return [FileView(path, view, *part, ids, unread) for view, part in zip(views, parts, strict=True)]


def _separated(path: Path, file: TextIO) -> tuple[Iterator[list[str]], str]:
    """The lines as cells, and what separates them: a semicolon where it divides the first line of a .csv into more."""
    lines, usual = _lines(path, file), DELIMITERS[ending_of(path)]
    first = next(lines, "")
    bare = _QUOTED.sub("", first)
    sign = ";" if usual == "," and bare.count(";") > bare.count(usual) else usual
    return csv.reader(chain([first], lines), delimiter=sign, strict=True), sign


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a file, of which none may fill the memory by itself, nor all of a packed one together."""
    allowance = Allowance(path, "unpack it first") if path.suffix.lower() == ".gz" else None
    for number in count(1):
        line = file.readline(_LONGEST_LINE)
        if allowance is not None:
            allowance.take(len(line))
        if len(line) == _LONGEST_LINE:
            raise DataError(
                f"{path}, line {number} has {_LONGEST_LINE:,} letters or more, so this seems to be no table; "
                "check how its lines end"
            )
        if not line:
            return
        yield line


def _names_and_rows(job: ReadJob, lines: Iterator[list[str]]) -> tuple[list[str], Iterator[list[str]]]:
    """Names of all columns, numbers where there is no header, and the lines of samples."""
    path, first = job.path, next(lines, [])
    names = [unmarked(name) for name in _trimmed(first)]
    if job.header is False:
        for option in ("only", "drop", "id_column", "blocks"):
            if getattr(job, option) not in (None, (), []):
                fault = f"{path}: ", Setting(option), " names columns, but with "
                raise DataError(*fault, Setting("header", False), " they have no names; leave one out")
    _check_first_line(path, names, job.id_column)
    if job.header is False:
        return [str(place) for place in range(len(first))], chain([first], lines)
    second = next(lines, [])
    if job.header is None and job.id_column is None:
        check_names(path, names, second)
    return names, chain([second], lines)


def _check_first_line(path: Path, header: list[str], id_column: str | None) -> None:
    if not "".join(header).strip():
        raise DataError(f"{path} is empty; it needs a header with a column of ids and one of numbers")
    if len(header) < 2:
        raise DataError(f"{path}: its first line, {_first_line_fault(path, header)}")
    if id_column is not None and id_column not in header:
        raise DataError(f"{path} has no column {id_column!r}; it has {some(header, 8)}")


def _first_line_fault(path: Path, header: list[str]) -> str:
    """What is wrong with a first line of one cell, and what to do."""
    line, sign = "".join(header), DELIMITERS[ending_of(path)]
    shown = f"{reprlib.repr(line)},"
    if "\t" in line and sign != "\t":
        return f"{shown} is separated by tabs; call the file .tsv"
    for other in ";,|":
        if other in line and other != sign:
            cure = "call the file .csv" if other == "," else f"save it with {sign!r} between the columns"
            return f"{shown} is separated by {other!r}; {cure}"
    return (
        f"{shown} has one column, but it needs a header with a column of ids and one of numbers; "
        f"write the names of the columns there, with {sign!r} between them"
    )


def _places(path: Path, header: list[str], views: dict[str, list[str]]) -> dict[str, int]:
    """Where each column stands; those that are asked for must have names of their own."""
    counts = Counter(header)
    for column in (column for found in views.values() for column in found):
        if counts[column] > 1:
            raise DataError(f"{path}: two columns are called {column!r}; give each a name of its own")
    return {column: place for place, column in enumerate(header)}


def _read_rows(
    path: Path, lines: Iterator[list[str]], header: list[str], place: int, wanted: list[int], sign: str
) -> tuple[list[str], NDArray[np.float64], Cells]:
    """Ids, the wanted columns, and what read them, a few lines at a time; empty lines are passed over."""
    ids: list[str] = []
    spool, digits, columns = Spool(len(wanted)), Digits(), [header[c] for c in wanted]
    reader = Cells(path, columns, commas=sign != ",")
    take = itemgetter(*wanted) if len(wanted) > 1 else lambda row: (row[wanted[0]],)
    filled = (_trimmed(line, len(header)) for line in lines if any(cell.strip() for cell in line))
    while block := list(islice(filled, max(1, _CELLS_AT_A_TIME // len(header)))):
        _check_ragged(path, block, len(header), len(ids))
        names = [unmarked(row[place]) for row in block]
        cells = [take(row) for row in block]
        numbers = reader.numbers(cells, names)
        digits.look(numbers, lambda c, cells=cells: (row[c] for row in cells))  # type: ignore[misc]
        spool.add(numbers)
        ids += names
    if not ids:
        raise DataError(f"{path} has a header but no rows; it needs at least one row")
    table = spool.table()
    digits.check(path, columns, table)
    if said := ["separated by ';'"] * (sign == ";") + reader.said():
        tell(f"{path}: {', '.join(said)}")
    return ids, table, reader


def _check_measurements(path: Path, column: str, ids: list[str]) -> None:
    if all(is_number(name) for name in ids) and any("." in name.rstrip("0").rstrip(".") for name in ids):
        raise DataError(
            f"{path}: the first column {column!r} holds measurements, not ids; name the column of ids with ",
            Setting("id_column"),
            ", or add one",
        )


def _trimmed(line: list[str], width: int = 1) -> list[str]:
    """A line without the empty cells that spreadsheets leave at its end, beyond `width`."""
    end = len(line)
    while end > width and not line[end - 1].strip():
        end -= 1
    return line[:end]


def _check_ragged(path: Path, rows: Lines, width: int, before: int) -> None:
    for row, cells in enumerate(rows):
        if len(cells) != width:
            raise DataError(
                f"{path}, data row {before + row + 1} has {len(cells)} cells instead of {width}; "
                "check quotes and delimiters"
            )


def check_names(path: Path, first: Sequence[str], second: Sequence[str]) -> None:
    """Ask about a first line that looks like a sample; `first` and `second` are lines that begin with the id."""
    names = [cell for cell in first[1:] if not is_nothing(cell)]
    numeric = bool(names) and all(is_number(name) for name in names)
    if numeric and not _are_labels([float(name) for name in names]):
        found = f"has numbers where the names of columns belong ({some(names)})"
    elif not numeric and is_number(first[0]) and second and is_number(second[0]):
        found = f"begins with a number like the ids below it ({some([first[0], second[0]])})"
    else:
        return
    without, with_names = Setting("header", False), Setting("header", True)
    raise DataError(f"{path}: its first line {found}; ", without, " reads it as a sample, ", with_names, " as names")


def _are_labels(numbers: Sequence[float]) -> bool:
    """Whether numbers may be names: they count, as pandas numbers columns, or many of them are in order."""
    steps = [after - before for before, after in pairwise(numbers)]
    if numbers[0] in (0, 1) and all(step == 1 for step in steps):
        return True
    return len(numbers) >= _MANY and (all(step > 0 for step in steps) or all(step < 0 for step in steps))


def pick_columns(path: Path, columns: Sequence[str], blocks: Blocks) -> dict[str, list[str]]:
    """Per view its columns: in the order of the file for a pattern, in that of the list for a list."""
    known = dict.fromkeys(columns)
    chosen = {view: _matching(path, known, view, wanted) for view, wanted in blocks.items()}
    owner: dict[str, str] = {}
    for view, found in chosen.items():
        for column in found:
            if column in owner:
                raise DataError(
                    f"{path}: column {column!r} belongs to blocks {owner[column]!r} and {view!r}; narrow one of them"
                )
            owner[column] = view
    return chosen


def _matching(path: Path, columns: Collection[str], view: str, wanted: str | Sequence[str]) -> list[str]:
    if isinstance(wanted, str):
        found = [column for column in columns if fnmatchcase(column, wanted)]
    else:
        absent = [column for column in wanted if column not in columns]
        if absent:
            raise DataError(
                f"{path}: block {view!r} names {absent[0]!r}, but the columns are {some(columns, 6)}; correct the name"
            )
        found = list(wanted)
    if not found:
        raise DataError(
            f"{path}: no column matches block {view!r} ({wanted!r}); the columns are {some(columns, 6)}; "
            "correct the pattern"
        )
    return found


class Digits:
    """Looks at the blocks of a table as they are read; most have no such numbers, and cost next to nothing."""

    def __init__(self) -> None:
        self._seen: dict[int, set[int]] = {}

    def look(self, block: NDArray[np.float64], exact: Callable[[int], Iterable[Any]]) -> None:
        """Look at rows of shape (rows, columns); `exact` gives the cells of a column as the file has them."""
        for column in np.flatnonzero((np.abs(block) >= EXACT).any(axis=0)).tolist():
            seen = self._seen.setdefault(column, set())
            if len(seen) < SAMPLED:
                seen.update(whole_numbers(exact(column)))

    def check(self, path: Path, columns: Sequence[Any], table: NDArray[np.float64]) -> None:
        """Refuse a column whose whole numbers differ, but not as floats."""
        for column, seen in self._seen.items():
            if are_fewer_as_floats(seen) and np.isfinite(table[:, column]).sum() >= ROWS_THAT_VARY:
                raise DataError(f"{path}, column {columns[column]!r}: {TOO_CLOSE}; ids belong into the column of ids")
