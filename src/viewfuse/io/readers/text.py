"""CSV and TSV files, packed or not, with an id column: one view each, or one wide file of several (`blocks`).

Cells are numbers, also with decimal commas, yes and no, dates and categories; any other text is refused. What a column
holds is decided by its first cells, and all others must be of the same kind: one "yes" among numbers is a mistake.
"""

from __future__ import annotations

import csv
import gzip
import re
import reprlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise
from math import nan
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np
from numpy.typing import NDArray

from viewfuse.data import precision
from viewfuse.data.categories import DROP, TOO_MANY, TextValues, is_nothing, is_value, names_with_values, with_values
from viewfuse.data.precision import is_number, text_as_numbers
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.io.formulas import unmarked
from viewfuse.io.isolated.jobs import Blocks, ReadJob, called
from viewfuse.io.safety import Allowance, Spool
from viewfuse.io.source import FileView, ending_of, view_of
from viewfuse.utils import memory
from viewfuse.utils.console import some, tell, warn
from viewfuse.utils.settings import Setting

DELIMITERS = {".csv": ",", ".tsv": "\t", ".csv.gz": ",", ".tsv.gz": "\t"}
_CELLS_AT_A_TIME = 30_000
_LONGEST_LINE = 16_000_000
_QUOTED = re.compile('"[^"]*"')
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?", re.ASCII)
_COMMA = re.compile(r"\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*", re.ASCII)
ID_NAME = re.compile(r"(^|[\W_])ids?$|(?-i:[a-z]I[Dd]s?$)", re.IGNORECASE)
"""How columns of ids are called."""
_NO_ID = "name the column of ids in the header, which R's write.table leaves out (col.names = NA writes it)"
_IN_UTF16 = " looks like UTF-16, but text is read as UTF-8; save it as UTF-8 (in a spreadsheet: CSV UTF-8)"
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}\.\d{3}\s*", re.ASCII)
_SHOWN = 6
_SECONDS = 86_400
_MANY = 6
"""So many numbers in rising or falling order are names, such as wavelengths; fewer may be in order by chance."""


def read_text(job: ReadJob) -> list[FileView]:
    """The views of one file; with `blocks` several, and columns that belong to none are not looked at."""
    path, reading = job.path, job.reading
    try:
        how: Any = {"newline": "", "encoding": "utf-8-sig"}
        is_packed = path.suffix.lower() == ".gz"
        with gzip.open(path, "rt", **how) if is_packed else path.open(**how) as file:
            lines = _lines(path, file)
            first, usual = next(lines, ""), DELIMITERS[ending_of(path)]
            bare = _QUOTED.sub("", first)
            sign = ";" if usual == "," and bare.count(";") > bare.count(usual) else usual
            names, rows = _names_and_rows(job, csv.reader(chain([first], lines), delimiter=sign, strict=True))
            place = 0 if reading.id_column is None else names.index(reading.id_column)
            columns, unread = reading.chosen(path, names[:place] + names[place + 1 :])
            views = {view_of(path): columns}
            if reading.blocks is not None:
                views = pick_columns(path, columns, reading.blocks)
            wanted = [column for found in views.values() for column in found]
            chosen = set(wanted)
            check_repeated(path, [name for name in names if name in chosen])
            ids, cells = _read_rows(path, rows, names, place, wanted, sign)
    except (UnicodeDecodeError, csv.Error) as error:
        if isinstance(error, UnicodeDecodeError) and error.object.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise DataError(f"{path}{_IN_UTF16}") from None
        raise DataError(f"{path} cannot be read as text ({error}); save it as UTF-8 {path.suffix}") from None
    fractions = any("." in name.rstrip("0").rstrip(".") for name in ids)
    if reading.id_column is None and fractions and all(map(is_number, ids)):
        fault = f"{path}: the first column {names[0]!r} holds measurements, not ids; name the column of ids with "
        raise DataError(fault, Setting("id_column"), ", or add one")
    firsts = accumulate(map(len, views.values()), initial=0)
    parts = [cells.part(first, len(own)) for first, own in zip(firsts, views.values(), strict=False)]
    if sign == ";":
        cells.warn_of_thousands()
    if said := ["separated by ';'"] * (sign == ";") + cells.said():
        tell(f"{path}: {', '.join(said)}")
    if reading.header is False and not cells.texts:
        parts = [(cells.table, range(len(wanted)))]
    return [FileView(path, view, *part, ids, unread) for view, part in zip(views, parts, strict=True)]


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """The lines of a file, of which none may fill the memory by itself, nor all of a packed one together."""
    allowance = Allowance(path, "unpack it first") if path.suffix.lower() == ".gz" else None
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), 1):
        if allowance is not None:
            allowance.take(len(line))
        if number == 1 and "\0" in line.strip("\0"):
            raise DataError(f"{path}{_IN_UTF16}")
        if len(line) == _LONGEST_LINE:
            fault = f"{path}, line {number} has {_LONGEST_LINE:,} letters or more, so this seems to be no table"
            raise DataError(f"{fault}; check how its lines end")
        yield line


def _names_and_rows(job: ReadJob, lines: Iterator[list[str]]) -> tuple[list[str], Iterator[list[str]]]:
    """Names of all columns, numbers where there is no header, and the lines of samples."""
    path, reading, first = job.path, job.reading, next(lines, [])
    names = [unmarked(name) for name in _trimmed(first)]
    if reading.header is False:
        for option in ("only", "drop", "id_column", "blocks"):
            if getattr(reading, option) not in (None, (), []):
                fault = f"{path}: ", Setting(option), " names columns, but with "
                raise DataError(*fault, Setting("header", False), " they have no names; leave one out")
    if not "".join(names).strip():
        raise DataError(f"{path} is empty; it needs a header with a column of ids and one of numbers")
    if len(names) < 2:
        raise DataError(f"{path}: its first line, {_first_line_fault(path, names[0])}")
    if reading.id_column is not None and reading.id_column not in names:
        raise DataError(f"{path} has no column {reading.id_column!r}; it has {some(names, 8)}")
    if reading.header is False:
        return [str(place) for place in range(len(first))], chain([first], lines)
    second = next(lines, [])
    if reading.header is None and reading.id_column is None:
        _check_names(path, names, second)
    rows = chain([second], lines)
    is_sure = reading.id_column is not None or len(first) > len(names) or not names[0] or ID_NAME.search(names[0])
    return names, rows if is_sure else _unless_all_longer(path, names, rows)


def _unless_all_longer(path: Path, names: Sequence[str], lines: Iterator[list[str]]) -> Iterator[list[str]]:
    """The lines; refused if all have one cell more than the header: an empty last one, or ids without a name."""
    widths = set()
    for line in lines:
        if any(cell.strip() for cell in line):
            widths.add(len(line))
        yield line
    if widths == {len(names) + 1}:
        fault = f"{path}: all rows have {len(names) + 1} cells, but the header has {len(names)}"
        fault += ", so the ids may lack a name"
        raise DataError(f"{fault}; {_NO_ID}, or say that they are in {names[0]!r} with ", Setting("id_column"))


def _first_line_fault(path: Path, line: str) -> str:
    """What is wrong with a first line of one cell, and what to do."""
    sign, shown = DELIMITERS[ending_of(path)], f"{reprlib.repr(line)},"
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


def _read_rows(
    path: Path, lines: Iterator[list[str]], header: list[str], place: int, wanted: list[str], sign: str
) -> tuple[list[str], Cells]:
    """Ids and the wanted columns, read a few lines at a time; empty lines are passed over."""
    ids: list[str] = []
    reader = Cells(path, wanted, commas=sign != ",")
    position = {column: c for c, column in enumerate(header)}
    places = [position[column] for column in wanted]
    take: Callable[[list[str]], Any] = itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)
    filled = (_trimmed(line, len(header)) for line in lines if any(cell.strip() for cell in line))
    while block := list(islice(filled, max(1, _CELLS_AT_A_TIME // len(header)))):
        for row, cells in enumerate(block, len(ids) + 1):
            if len(cells) != len(header):
                fault = f"{path}, data row {row} has {len(cells)} cells instead of {len(header)}"
                no_id = f", or {_NO_ID}" if len(cells) == len(header) + 1 else ""
                raise DataError(f"{fault}; check quotes and delimiters{no_id}")
        names = [unmarked(row[place]) for row in block]
        reader.add_text([take(row) for row in block], names)
        ids += names
    if not ids:
        raise DataError(f"{path} has a header but no rows; it needs at least one row")
    return ids, reader


def _trimmed(line: list[str], width: int = 1) -> list[str]:
    """A line without the empty cells that spreadsheets leave at its end, beyond `width`."""
    end = len(line)
    while end > width and not line[end - 1].strip():
        end -= 1
    return line[:end]


def _check_names(path: Path, first: Sequence[str], second: Sequence[str]) -> None:
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


def check_repeated(path: Path, names: Sequence[str]) -> None:
    """Refuse two columns of one name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path}: two columns are called {twice[0]!r}; give each a name of its own")


def pick_columns(path: Path, columns: Sequence[str], blocks: Blocks) -> dict[str, list[str]]:
    """Per view its columns: in the order of the file for a pattern, in that of the list for a list."""
    chosen: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    known = dict.fromkeys(columns)
    there = some(known, 6)
    for view, wanted in blocks.items():
        if isinstance(wanted, str):
            found = called(known, wanted)
        else:
            found = list(wanted)
            if absent := [column for column in found if column not in known]:
                fault = f"{path}: block {view!r} names {absent[0]!r}, but the columns are {there}; correct the name"
                raise DataError(fault)
        if not found:
            fault = f"{path}: no column matches block {view!r} ({wanted!r}); the columns are {there}"
            raise DataError(f"{fault}; correct the pattern")
        for column in found:
            if column in owner:
                both = f"blocks {owner[column]!r} and {view!r}"
                raise DataError(f"{path}: column {column!r} belongs to {both}; narrow one of them")
            owner[column] = view
        chosen[view] = found
    return chosen


class Cells:
    """Collects the cells of some columns of a file as numbers, block by block.

    The different texts of a column of text are numbered (`texts`, by the number of the column), and become columns in
    the end. With `commas` 1,5 may stand for 1.5: where no comma separates cells.
    """

    def __init__(self, path: Path, columns: Sequence[Any], *, commas: bool = False) -> None:
        self._path, self._columns, self._commas, self._spool = path, columns, commas, Spool(len(columns))
        self._kinds: dict[int, str] = {}
        self._seen: dict[int, set[int]] = {}
        self.texts: dict[int, TextValues] = {}
        self._first: dict[int, tuple[Hashable, str]] = {}
        self._has_numbers = np.zeros(len(columns), dtype=bool)
        self._comma, self._dot, self._are_thousands = "", "", True

    def add_text(self, rows: Sequence[Sequence[str]], ids: Sequence[str]) -> None:
        """Append the cells of the samples `ids`; NaN where they are empty."""
        cells = self._with_dots(rows, ids) if self._commas else rows
        numbers = text_as_numbers(cells)
        if numbers is None:  # empty cells are rare enough to look for them only now
            cells = [["nan" if is_nothing(cell) else cell for cell in row] for row in cells]
            numbers = text_as_numbers(cells)
        if numbers is None or self._kinds:
            columns = enumerate(zip(*cells, strict=True))
            numbers = np.stack([self.column(c, column, ids) for c, column in columns], axis=1)
        else:
            self._has_numbers |= ~np.isnan(numbers).all(axis=0)
        self.add(numbers, lambda c: (row[c] for row in rows))

    def add(self, block: NDArray[np.float64], exact: Callable[[int], Iterable[Any]]) -> None:
        """Append rows, of shape (rows, columns); `exact` gives the cells of a column as the file has them."""
        for column in np.flatnonzero((np.abs(block) >= precision.EXACT).any(axis=0)).tolist():
            seen = self._seen.setdefault(column, set())
            if len(seen) < precision.SAMPLED:
                seen.update(precision.whole_numbers(exact(column)))
        self._spool.add(block)

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """All rows; whole numbers that differ in the file, but not as floats, are refused."""
        table = self._spool.table()
        del self._spool  # with its blocks
        for column, seen in self._seen.items():
            if precision.are_fewer_as_floats(seen) and np.isfinite(table[:, column]).sum() >= precision.ROWS_THAT_VARY:
                where = f"{self._path}, column {self._columns[column]!r}"
                raise DataError(f"{where}: {precision.TOO_CLOSE}; ids belong into the column of ids")
        return table

    def _with_dots(self, cells: Sequence[Sequence[str]], ids: Sequence[str]) -> Sequence[Sequence[str]]:
        """Cells with points for decimal commas; a file that has both is refused."""
        flat = [(name, c, cell) for name, row in zip(ids, cells, strict=True) for c, cell in enumerate(row)]
        for name, c, cell in flat:
            if _COMMA.fullmatch(cell):
                self._comma = self._comma or cell
            elif "." in cell and is_number(cell):
                self._dot = self._dot or cell
                self._are_thousands = self._are_thousands and _THOUSANDS.fullmatch(cell) is not None
            if self._comma and self._dot:
                fault = f"{self._comma!r} and {self._dot!r} stand in one file; write all numbers alike"
                raise DataError(f"{self._path}, id {name!r}, column {self._columns[c]!r}: {fault}")
        if not self._comma:
            return cells
        return [[cell.replace(",", ".") if _COMMA.fullmatch(cell) else cell for cell in row] for row in cells]

    def column(self, c: int, cells: Sequence[str], ids: Sequence[Hashable]) -> NDArray[np.float64]:
        """The cells of one column, by its number, as numbers, or as those of their texts."""
        there = [cell for cell in cells if not is_nothing(cell)]
        if there and c not in self._kinds and not self._has_numbers[c]:
            self._kinds[c] = _kind(there[0])
            self._first[c] = ids[cells.index(there[0])], there[0]
        kind, found = self._kinds.get(c, "number"), np.empty(len(cells))
        for row, cell in enumerate(cells):
            value: float | None = nan
            if is_nothing(cell):
                pass
            elif kind == "text":
                value = None if is_number(cell) else self.texts.setdefault(c, TextValues()).code(cell)
            elif kind == "number":
                value = float(cell) if is_number(cell) else None
            else:
                value = _days(cell.strip()) if _kind(cell) == kind else None
            if value is None:
                self._refuse(c, ids[row], cell, kind)
            found[row] = value
        return found

    def category(self, c: int, cells: Sequence[Any]) -> NDArray[np.float64]:
        """The cells of one column, which are values whatever they look like, as numbers of their texts."""
        known = [None if cell is None or is_nothing(str(cell)) else cell for cell in cells]
        return self.texts.setdefault(c, TextValues()).codes(known, f"{self._path}, column {self._columns[c]!r}")

    def _refuse(self, c: int, name: Hashable, cell: str, kind: str) -> NoReturn:
        """Say what is wrong with a cell unlike the others of its column: of text and numbers, with the text."""
        column, unlike = f"column {self._columns[c]!r}", "unlike other cells of the column; correct it, or empty it if"
        if kind == "text":
            if not is_number(cell):
                raise DataError(f"{self._path}, {column}{TOO_MANY}", *DROP)
            name, cell = self._first[c]
        fault: tuple[str | Setting, ...]
        if kind == "date":
            fault = (f"is no date, {unlike} nothing is known",)
        elif precision.is_too_small(cell):
            fault = ("is too small for 64-bit floats, it would be 0; rescale the column",)
        elif is_number(cell.replace(",", ".")) or is_number(cell.replace(".", "").replace(",", ".")):
            fault = ("is not a number; write 1.5 for one and a half, and 1234.5 without a sign for thousands",)
        elif kind == "text":
            fault = (f"is not a number, {unlike} nothing is known",)
        else:
            cure = "empty the cell if nothing is known, begin all with a letter if they are categories, "
            fault = f"is not a number; {cure}", *DROP
        raise DataError(f"{self._path}, id {name!r}, {column}: {cell!r} ", *fault)

    def part(self, first: int, width: int) -> tuple[NDArray[np.float64], Sequence[Hashable]]:
        """Some columns of the table, those of text replaced by columns of their values, and the names of all."""
        table, own = self.table, {c - first: texts for c, texts in self.texts.items() if first <= c < first + width}
        try:
            names = names_with_values(self._columns[first : first + width], own)
        except DataError as error:
            raise DataError(f"{self._path}: {error}") from None
        cut = table[:, first : first + width] if width < table.shape[1] else table  # a part of one on disk is copied
        if not own:
            return cut, names
        spool = Spool(len(names))
        for rows in memory.parts(len(cut)):
            spool.add(with_values(cut[rows], own))
        return spool.table(), names

    def warn_of_thousands(self) -> None:
        """Warn where the points in all numbers may be signs for thousands, in a table with semicolons."""
        if self._dot and self._are_thousands:
            cell = self._dot.strip()
            found = f"all numbers with a point are like {cell}, which is read as {cell} and not as "
            cure = "write them without a point if it stands for thousands"
            warn(SuspiciousDataWarning(f"{self._path}: {found}{cell.replace('.', '')}; {cure}"))

    def said(self) -> list[str]:
        """What was read in another way than as plain numbers, in words."""
        words, texts = ([c for c, own in sorted(self.texts.items()) if own.are_words is yes] for yes in (True, False))
        dates = [c for c, kind in sorted(self._kinds.items()) if kind == "date"]
        named = {"as 1 for yes and 0 for no": words, "as days since 1970": dates, "as categories": texts}
        kinds = [f"{some([self._columns[c] for c in own], _SHOWN)} {how}" for how, own in named.items() if own]
        return [f"{self._comma.strip()} is {self._comma.strip().replace(',', '.')}"] * bool(self._comma) + kinds


def _kind(cell: str) -> str:
    if _DATE.fullmatch(cell.strip()):
        return "date"
    return "text" if is_value(cell) else "number"


def _days(text: str) -> float | None:
    """Days since 1970, of a date in UTC where it names no other zone; None where there is no such day."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / _SECONDS
