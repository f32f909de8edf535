"""Files become Views. What a file claims is checked from its headers before its data are read."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from viewfuse.errors import DataError
from viewfuse.readers.npz import read_npz
from viewfuse.readers.text import DELIMITERS, read_tables
from viewfuse.views import Views

AnyPath = str | PathLike[str]


def read_views(paths: AnyPath | Sequence[AnyPath], *, id_column: str | None = None) -> Views:
    """Read views from one .npz file, or from one CSV or TSV file per view.

    Parameters
    ----------
    paths : the file, or a list of files
        A .npz file holds one 2-D array per view, called view_0, view_1, ... or anything. It may hold `ids`, a boolean
        `mask` of shape (samples, views), and `labels`, which are left alone. A .csv or .tsv file is one view, called
        like the file: a header, and a column of ids by which the files are joined; an id that a file lacks is a
        missing view.
    id_column : name of the column of ids in text files; by default the first one

    Returns
    -------
    Views
    """
    files = [Path(path) for path in ([paths] if isinstance(paths, (str, PathLike)) else paths)]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is no file; check the path")
    endings = {file.suffix.lower() for file in files}
    if endings == {".npz"} and len(files) == 1:
        return read_npz(files[0])
    if endings and endings <= set(DELIMITERS):
        return read_tables(files, id_column)
    raise DataError(
        f"{', '.join(map(str, files)) or 'no file'}: cannot be read; "
        f"give one .npz, or one {' or '.join(DELIMITERS)} per view"
    )
