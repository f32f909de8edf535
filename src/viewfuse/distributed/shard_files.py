"""The files of a sharded data set: which they are, where results may go, and how far a run over them is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from glob import glob, has_magic
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm.auto import tqdm

from viewfuse.errors import CannotWrite, DataError
from viewfuse.utils.console import is_live, tell

_SECONDS_BETWEEN = 30.0
"""Between two lines, where there is no bar."""


class ShardProgress:
    """Shows files, rows per second and the time left; used as a context manager.

    How many rows files have is not known before they are opened, so the time left follows from their bytes.

    Parameters
    ----------
    sizes : bytes of every file that is to be done
    shown : whether anything is shown at all
    """

    def __init__(self, sizes: Sequence[int], *, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        has_bar = shown and is_live()
        form = "predicting {percentage:3.0f}%|{bar}| {desc}"
        self._bar = tqdm(total=sum(sizes), disable=not has_bar, leave=False, delay=1e-9, bar_format=form)
        self._has_lines = shown and not has_bar
        self._files, self._all_files, self._all_bytes = 0, len(sizes), sum(sizes)
        self._rows = self._bytes = 0
        self._clock, self._began = clock, clock()
        self._shown_at = self._began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._bar.close()

    def advance(self, rows: int, n_bytes: int, files: int = 0) -> None:
        """So many more are done."""
        self._rows, self._bytes, self._files = self._rows + rows, self._bytes + n_bytes, self._files + files
        self._bar.set_description_str(str(self), refresh=False)
        self._bar.update(n_bytes)
        if self._has_lines and self._clock() - self._shown_at >= _SECONDS_BETWEEN:
            self._shown_at = self._clock()
            tell(self)

    def __str__(self) -> str:
        seconds = max(self._clock() - self._began, 1e-9)
        left = seconds * (self._all_bytes - self._bytes) / max(self._bytes, 1)
        files = f"{self._files} of {self._all_files} files, {self._rows:,} rows"
        return f"{files}, {self._rows / seconds:,.0f} rows/s, {_spelled(left)} left"


def _spelled(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def check_apart(paths: Any, out: Path) -> None:
    """Refuse results among the shards, where the next call would read its own labels, and around the shards."""
    place = Path(os.path.realpath(out))
    for folder in filter(Path.is_dir, _given(paths)):
        if Path(os.path.realpath(folder)) in (place, *place.parents):
            raise CannotWrite(
                f"{out} is in {folder}, all files of which are read, so its labels would be read next time; "
                "give an --out elsewhere"
            )
    for file in found_shards(paths):
        if place in Path(os.path.realpath(file)).parents:
            raise CannotWrite(f"{out} holds {file}, which is read; give another --out")


def _given(paths: Any) -> list[Path]:
    return [Path(one) for one in ([paths] if isinstance(paths, (str, PathLike)) else paths)]


def found_shards(paths: Any) -> list[Path]:
    """The files that are meant, in the order of their names."""
    files: list[Path] = []
    for one in _given(paths):
        files += _inside(one) if one.is_dir() else [one] if one.exists() else _matching(one)
    if not files:
        raise DataError("no file was given; give a folder of Parquet files, a pattern, or the files")
    return sorted({path.absolute() for path in files})


def _inside(folder: Path) -> list[Path]:
    """The shards in a folder and below, but for hidden ones."""
    parts = {path: path.relative_to(folder).parts for path in folder.rglob("*.parquet")}
    found = [path for path, names in parts.items() if not any(name.startswith((".", "_")) for name in names)]
    if not found:
        raise DataError(f"{folder} is a folder without .parquet files; give the folder that has them")
    return found


def _matching(pattern: Path) -> list[Path]:
    """The files that a pattern means."""
    found = [Path(name) for name in glob(str(pattern))]
    if not found:
        wrong = "means no file; check the pattern" if has_magic(str(pattern)) else "does not exist; check the path"
        raise DataError(f"{pattern} {wrong}")
    return found
