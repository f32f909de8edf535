"""Which files the shards of a data set are, and where results may go."""

from __future__ import annotations

import os
from glob import glob, has_magic
from os import PathLike
from pathlib import Path
from typing import Any

from viewfuse.errors import CannotWrite, DataError


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
