"""Whether the first line of a text table holds the names of its columns, or is a sample already."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from viewfuse.data.numerals import is_number
from viewfuse.errors import DataError
from viewfuse.utils.settings import Setting

NOTHING = ("", "na", "nan", "null", "none", "n/a")
"""What an empty cell may be written as, in small letters."""
_MANY = 6
"""So many numbers in rising or falling order are names, such as wavelengths; fewer may be in order by chance."""


def check_names(path: Path, first: Sequence[str], second: Sequence[str]) -> None:
    """Ask about a first line that looks like a sample; `first` and `second` are lines that begin with the id."""
    names = [cell for cell in first[1:] if cell.strip().lower() not in NOTHING]
    numeric = bool(names) and all(is_number(name) for name in names)
    if numeric and not _are_labels([float(name) for name in names]):
        found = f"has numbers where the names of columns belong ({_some(names)})"
    elif not numeric and is_number(first[0]) and second and is_number(second[0]):
        found = f"begins with a number like the ids below it ({_some([first[0], second[0]])})"
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


def _some(cells: Sequence[str]) -> str:
    return ", ".join(reprlib.repr(cell) for cell in cells[:3]) + (", ..." if len(cells) > 3 else "")


def check_nameless(path: Path, **by_name: object) -> None:
    """Refuse options that name columns of a file that has no names of columns."""
    for option, value in by_name.items():
        if value is not None:
            fault = f"{path}: ", Setting(option), " names columns, but with "
            raise DataError(*fault, Setting("header", False), " they have no names; leave one out")
