"""Files become Views. What a file claims is checked from its headers before its data are read.

The way of the data: files, each read by its module here, give `FileView`s; a `Source` joins these; Views come out of
it, all samples at once or a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

from viewfuse.errors import DataError
from viewfuse.readers.blocks import Blocks
from viewfuse.readers.h5mu import Use, read_h5mu
from viewfuse.readers.npz import read_npy_folder, read_npz
from viewfuse.readers.parquet import read_parquet
from viewfuse.readers.source import Source
from viewfuse.readers.text import DELIMITERS, read_text
from viewfuse.views import Views

AnyPath = str | PathLike[str]
TABLES = (*DELIMITERS, ".parquet")
WHOLE = (".npz", ".mat", ".h5mu")


def read_views(
    paths: AnyPath | Sequence[AnyPath],
    *,
    id_column: str | None = None,
    blocks: Blocks | None = None,
    use: Use | None = None,
) -> Views:
    """Read views from files.

    Parameters
    ----------
    paths : a file, a folder, or a list of files
        - .npz: one 2-D array per view, called view_0, view_1, ... or anything; with `ids`, a boolean `mask` of shape
          (samples, views) and `labels` where they are wanted. A folder of .npy files: the same, as memory maps.
        - .csv, .tsv, .parquet: one file per view, called like the file, with a column of ids by which the files are
          joined; an id that a file lacks is a missing view. In Parquet a column of lists is a view by itself.
        - .mat, of version 5 or 7.3: a cell array X of matrices, or matrices X1, X2, ...
        - .h5mu: one view per modality.
    id_column : name of the column of ids in .csv, .tsv and .parquet files; by default the first one
    blocks : for one wide table: per view a pattern of its columns ("rna_*") or a list of them
    use : for .h5mu: per modality "X" (the default), "layers/NAME" or "obsm/NAME"

    Returns
    -------
    Views
    """
    return open_source(paths, id_column=id_column, blocks=blocks, use=use).read()


def read_chunks(
    paths: AnyPath | Sequence[AnyPath],
    size: int = 10_000,
    *,
    id_column: str | None = None,
    blocks: Blocks | None = None,
    use: Use | None = None,
) -> Iterator[Views]:
    """Read the samples of files in order, at most `size` at a time: for prediction from files larger than memory.

    The other parameters are those of `read_views`.
    """
    yield from open_source(paths, id_column=id_column, blocks=blocks, use=use).chunks(size)


def open_source(
    paths: AnyPath | Sequence[AnyPath],
    *,
    id_column: str | None = None,
    blocks: Blocks | None = None,
    use: Use | None = None,
) -> Source:
    """Open files as `read_views` does, without making Views of them yet."""
    files = _files([Path(path) for path in ([paths] if isinstance(paths, (str, PathLike)) else paths)])
    endings = {file.suffix.lower() for file in files}
    if endings <= set(TABLES):
        _refuse_unused(use=use)
        return _open_tables(files, id_column, blocks)
    if len(files) > 1 or not endings <= {*WHOLE, ".npy"}:
        listed = ", ".join(map(str, files))
        raise DataError(
            f"{listed}: cannot be read together; give one {', '.join(WHOLE)} file, a folder of .npy files, or one "
            f"{', '.join(TABLES)} file per view"
        )
    _refuse_unused(id_column=id_column, blocks=blocks, **({} if endings == {".h5mu"} else {"use": use}))
    if endings == {".npz"}:
        return read_npz(files[0])
    if endings == {".mat"}:
        from viewfuse.readers.mat import read_mat  # SciPy takes a while to import, for nothing in most cases

        return read_mat(files[0])
    return read_h5mu(files[0], use) if endings == {".h5mu"} else read_npy_folder(files[0].parent)


def _files(paths: Sequence[Path]) -> list[Path]:
    """The files; a folder stands for its tables, or for the first of its arrays."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            arrays = sorted(path.glob("*.npy"))
            tables = sorted(file for file in path.iterdir() if file.suffix.lower() in TABLES)
            found += arrays[:1] or tables
            if not found:
                raise DataError(f"{path} is a folder without .npy or {', '.join(TABLES)} files; give the files")
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"{path} is no file; check the path")
    if not found:
        raise DataError("no file was given; give the path of at least one")
    return found


def _open_tables(files: Sequence[Path], id_column: str | None, blocks: Blocks | None) -> Source:
    names = [file.stem for file in files]
    if len(set(names)) < len(names):
        raise DataError(f"two files are called alike: {', '.join(map(str, files))}; a view is called like its file")
    if blocks is not None and len(files) > 1:
        raise DataError(f"blocks cut one wide file into views, but {len(files)} files were given; give one")
    readers = {".parquet": read_parquet}
    views = [view for file in files for view in readers.get(file.suffix.lower(), read_text)(file, id_column, blocks)]
    return Source(views)


def _refuse_unused(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise DataError(f"{name} has no meaning for this kind of file; leave it out")
