"""Files become Views. What a file claims is checked from its headers before its data are read.

The way of the data: files, each read by its module here, give `FileView`s; a `FileSource` joins these; Views come out
of it, all samples at once or a few at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from viewfuse.data.alignment import Use
from viewfuse.data.categories import categories_in, category_of
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.io.isolated import client
from viewfuse.io.isolated.jobs import AS_USUAL, Blocks, Reading, ReadJob, called
from viewfuse.io.isolated.process import ENDINGS, POSSIBLE
from viewfuse.io.readers.hdf5 import h5ad_places, read_annotated
from viewfuse.io.readers.npz import read_npy_folder, read_npz
from viewfuse.io.readers.parquet import read_parquet
from viewfuse.io.readers.text import DELIMITERS, read_text
from viewfuse.io.safety import guarded
from viewfuse.io.source import Contents, FileSource, FileView, check_matching, ending_of, view_of, with_pattern
from viewfuse.io.writers import annotate_copy
from viewfuse.utils.console import tell
from viewfuse.utils.settings import Setting

__all__ = ["AS_USUAL", "Reading", "open_source", "parse", "read_chunks", "read_views"]
AnyPath = str | PathLike[str]
Paths = AnyPath | Sequence[AnyPath] | Mapping[str, AnyPath]
TABLES = (*DELIMITERS, ".parquet", ".h5ad")
WHOLE = (".npz", ".mat", ".h5mu")
_SHEETS = (".xlsx", ".xls", ".ods")
_POSSIBLE = f"give one {', '.join(WHOLE)} file, a folder of .npy files, or one {', '.join(TABLES)} file per view"
_OF_TABLES = ("id_column", "blocks", "header", "transpose", "only", "drop", "id_pattern")


def read_views(
    paths: Paths,
    *,
    id_column: str | None = None,
    blocks: Blocks | None = None,
    use: Use | None = None,
    header: bool | None = None,
    transpose: Sequence[str] = (),
    only: Sequence[str] = (),
    drop: Sequence[str] = (),
    id_pattern: str | None = None,
    allow_disjoint: bool = False,
    trusted: bool = False,
) -> Views:
    """Read views from files.

    Parameters
    ----------
    paths : a file, a folder, a list of files, or a dict of tables by the name of their view
        - .npz: one 2-D array per view, called view_0, view_1, ... or anything; with `ids`, a boolean `mask` of shape
          (samples, views) and `labels` where they are wanted; or the one sparse matrix that SciPy saved. A folder of
          .npy files: the same, as memory maps.
        - .csv, .tsv (also packed, .csv.gz), .parquet: one file per view, called like the file, with a column of ids by
          which the files are joined; an id that a file lacks is a missing view. In Parquet a column of lists is a view
          by itself. Text may have semicolons between the cells, with decimal commas; columns of yes and no (or true and
          false) become 1 and 0, ISO dates days since 1970, other text categories (`viewfuse.data.categories`).
        - .mat, of version 5 or 7.3: a cell array X of matrices, or matrices X1, X2, ...
        - .h5mu: one view per modality.
        - .h5ad: one file per view, called like the file; joined by the names of the cells, also with tables.
    id_column : name of the column of ids in .csv, .tsv and .parquet files; by default the first one
    blocks : for one wide table: per view a pattern of its columns ("rna_*") or a list of them
    use : for .h5mu and .h5ad: "X" (the default), "layers/NAME" or "obsm/NAME", for all views or by view in a dict.
        With a dict one .h5ad file alone can be several views: {"rna": "X", "protein": "obsm/protein"}.
    header : for .csv and .tsv: whether the first line holds the names of columns; False reads it as a sample. None:
        it does, and a line of numbers there is asked about
    transpose : names of views whose table has the samples in its columns, and the ids in its first line
    only, drop : columns of .csv, .tsv and .parquet files by name or pattern. Of a file that has a column of `only`, no
        others are read; those of `drop` are read in no file
    id_pattern : a regular expression: of ids in tables and .h5ad files its first group, or else what it matches, is
        the id, such as "[ACGT]+" of barcodes like AAACGT-1, or "(TCGA-..-....)" of longer ones
    allow_disjoint : whether tables may share no or hardly any ids, which is an error otherwise
    trusted : whether files are read in this process and without limits. By default another process reads what native
        libraries parse (.npz, .mat, .parquet, .h5ad, .h5mu), so that a damaged file cannot end, stop or fill this one;
        files that you wrote yourself a moment ago need no such guard

    Returns
    -------
    Views
        Sparse matrices of .h5mu, .h5ad, .mat and .npz files stay sparse.
    """
    reading = Reading(id_column, blocks, use, header, transpose, only, drop, id_pattern, allow_disjoint, trusted)
    return open_source(paths, reading).read()


def read_chunks(paths: Paths, size: int = 10_000, **options: Any) -> Iterator[Views]:
    """Read the samples of files in order, at most `size` at a time: for prediction from files larger than memory.

    The options are those of `read_views`.
    """
    yield from open_source(paths, Reading(**options, new_samples=True)).chunks(size)


def open_source(paths: Paths, reading: Reading = AS_USUAL) -> FileSource:
    """Open files as `read_views` does, without making Views of them yet."""
    given: Any = list(paths.values()) if isinstance(paths, Mapping) else paths
    given = given if isinstance(given, (list, tuple)) else [given]
    if kinds := sorted({type(one).__name__ for one in given if not isinstance(one, (str, PathLike))}):
        raise DataError(f"paths of files are read here, not {', '.join(kinds)}; pass objects to Views or fit")
    if isinstance(paths, Mapping):
        if reading.blocks is not None:
            raise DataError(Setting("blocks"), " cut one wide file into views; give it without a name")
        named = {name: Path(path) for name, path in paths.items()}
        for name, file in named.items():
            if not file.exists():
                raise DataError(f"{name}={file}: {file} is no file; check the path")
            if file.is_file():
                _check_kind(file)
            if ending_of(file) not in TABLES or not file.is_file():
                raise DataError(f"{name}={file}: only {', '.join(TABLES)} files can be named; give it without a name")
        return _open_tables(named, reading)
    files = [file for path in given for file in _files(Path(path))]
    if not files:
        raise DataError("no file was given; give the path of at least one")
    endings = {ending_of(file) for file in files}
    if endings <= set(TABLES):
        names = Counter(map(view_of, files))
        alike = [str(file) for file in files if names[view_of(file)] > 1]
        if alike:
            raise DataError(
                f"two files are called alike: {', '.join(alike)}; a view is called like its file, so rename one, or "
                f"name the view: NAME={alike[0]}"
            )
        return _open_tables(dict(zip(names, files, strict=True)), reading)
    for file in files:
        _check_kind(file)
    if len(files) > 1:
        raise DataError(f"{', '.join(map(str, files))}: cannot be read together; {_POSSIBLE}")
    _check_unused(reading, *_OF_TABLES, *(() if endings == {".h5mu"} else ("use",)))
    with guarded(files[0]):
        found = _read(ReadJob(files[0], Reading(use=reading.use)), reading.trusted)
        return FileSource(**vars(found))


def _check_kind(file: Path) -> None:
    """Refuse a file of a kind that is not read."""
    if ending_of(file) in _SHEETS:
        raise DataError(f"{file}: {file.suffix} files are not read; save it as CSV (UTF-8), one table per file")
    if ending_of(file) not in (*WHOLE, *TABLES, ".npy"):
        raise DataError(f"{file}: {file.suffix or 'such'} files are not read; {_POSSIBLE}")


def _read(job: ReadJob, trusted: bool) -> Contents:
    """Read a file: in another process where a native library parses it and the user does not trust it."""
    isolated = job.ending in ENDINGS and not trusted and POSSIBLE
    return client.read_isolated(job) if isolated else parse(job)


def _files(path: Path) -> list[Path]:
    """The file; of a folder its tables, or the first of its arrays."""
    with guarded(path):
        if path.is_dir():
            arrays = sorted(path.glob("*.npy"))
            tables = sorted(file for file in path.iterdir() if ending_of(file) in TABLES and file.is_file())
            if not arrays and not tables:
                raise DataError(f"{path} is a folder without .npy or {', '.join(TABLES)} files; give the files")
            if arrays and tables:
                both = f"{arrays[0].name} and {tables[0].name}"
                fault = f"{path} holds arrays and tables, such as {both}; give a folder of one kind, or the files"
                raise DataError(fault)
            return arrays[:1] or tables
        if not path.is_file():
            raise DataError(f"{path} is no file; check the path")
    if ending_of(path) == ".npy":
        raise DataError(f"{path} is one array; give the folder of the arrays, one .npy file per view")
    return [path]


def _open_tables(files: Mapping[str, Path], reading: Reading) -> FileSource:
    """The views of all files, those that are named in `transpose` turned."""
    endings, blocks = {ending_of(file) for file in files.values()}, reading.blocks
    if ".h5ad" not in endings:
        _check_unused(reading, "use")
    elif len(endings) == 1:
        _check_unused(reading, "id_column", "blocks", "only", "drop")
    if not endings & set(DELIMITERS):
        _check_unused(reading, "header")
    if blocks is not None and len(files) > 1:
        fault = f" cut one wide file into views, but {len(files)} files were given; give one"
        raise DataError(Setting("blocks"), fault)
    if blocks is not None and not blocks:
        raise DataError(Setting("blocks"), " names no view; give at least one, or leave it out")
    places = h5ad_places([name for name, file in files.items() if ending_of(file) == ".h5ad"], reading.use)
    views: list[FileView] = []
    for name, file in files.items():
        of_ids = reading.header is None and name in reading.transpose  # the first line may well hold numbers
        how = replace(reading, use=places.get(name), header=True if of_ids else reading.header)
        found = list(_read(ReadJob(file, how), reading.trusted).views)
        categories = [column for view in found for column in categories_in(view.columns)]
        if categories and ending_of(file) == ".parquet":  # text tables say it themselves
            tell(f"{file}: {', '.join(map(repr, categories))} as categories")
        if name != view_of(file):
            if len(found) > 1:
                own = ", ".join(view.name for view in found)
                raise DataError(f"{name}={file}: it holds several views ({own}); give it without a name")
            found = [replace(found[0], name=name)]
        views += found
    _check_chosen(reading, views)
    turned = [view.turned() if view.name in reading.transpose else view for view in views]
    matched = [with_pattern(view, reading.id_pattern) for view in turned]
    if not reading.allow_disjoint:
        check_matching(matched, new_samples=reading.new_samples)
    return FileSource(matched)


def _check_chosen(reading: Reading, views: Sequence[FileView]) -> None:
    """Refuse names of columns that no file has, and of views that are not there."""
    unread = {name for view in views for name in view.unread}
    read = {category_of(name) or str(name) for view in views for name in view.columns} if reading.only else set()
    for name, patterns, columns in (("only", reading.only, read | unread), ("drop", reading.drop, unread)):
        unknown = [one for one in patterns if not called(columns, one)]
        if unknown:
            raise DataError(Setting(name), f" names {unknown[0]!r}, but no file has such a column; correct the name")
    names = [view.name for view in views]
    if unknown := [name for name in reading.transpose if name not in names]:
        fault = f" names the view {unknown[0]!r}, but the views are {', '.join(names)}; name one of these"
        raise DataError(Setting("transpose"), fault)


def _check_unused(reading: Reading, *names: str) -> None:
    for name in names:
        if getattr(reading, name) not in (None, ()):
            raise DataError(Setting(name), " has no meaning for this kind of file; leave it out")


def parse(job: ReadJob) -> Contents:
    """What is in a file; of a .npy file, what is in its folder. Any error names the file.

    Nothing where results are written into a file; that is done here since it opens the file as well.
    """
    with guarded(job.path):
        if job.copy is not None:
            annotate_copy(job)
            return Contents([])
        if job.ending == ".npz":
            return read_npz(job.path)
        if job.ending == ".npy":
            return read_npy_folder(job.path.parent)
        if job.ending == ".mat":
            from viewfuse.io.readers.mat import read_mat  # SciPy takes a while to import, for nothing in most cases

            return read_mat(job.path)
        if job.ending in (".h5mu", ".h5ad"):
            return read_annotated(job.path, job.reading.use)
        return Contents(read_parquet(job) if job.ending == ".parquet" else read_text(job))
