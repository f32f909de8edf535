"""Results as files: tables that a spreadsheet can open without harm, and arrays, written block by block.

They also go back into AnnData and MuData, objects and files: to each cell by its name, never by its place.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.alignment import placed_dense_rows
from viewfuse.data.input_types import is_annotated, is_mudata
from viewfuse.data.views import Views
from viewfuse.errors import CannotWrite, DataError, SettingError
from viewfuse.io.formulas import write_harmless
from viewfuse.io.isolated import client
from viewfuse.io.isolated.jobs import ReadJob
from viewfuse.io.isolated.process import POSSIBLE
from viewfuse.io.safety import guarded
from viewfuse.utils.atomic import write_file, writing
from viewfuse.utils.console import needed

Parts = Iterable[tuple[Views, NDArray[np.float32]]]
"""Samples, a few at a time, each time with their results of shape (samples, width)."""


OUTLIER = -1
"""The label of samples that belong to no cluster, where outliers are to have one."""
_LABEL_COLUMNS = ("id", "label", "confidence", "uncertain", "novelty", "outlier", "views_present")
KEY = "viewfuse"


class Judged(NamedTuple):
    """What is said of samples; all but `chances` are of shape (samples,).

    Attributes
    ----------
    labels : int64, the clusters; `OUTLIER` where outliers are to have none
    chances : float32 of shape (samples, clusters)
    uncertain : boolean, whether a sample could be in more than one cluster
    novelty : float64, how far it lies from training samples
    outlier : boolean, whether it lies far from all of these
    far : boolean, whether it has a value far outside of their range
    """

    labels: NDArray[np.int64]
    chances: NDArray[np.float32]
    uncertain: NDArray[np.bool_]
    novelty: NDArray[np.float64]
    outlier: NDArray[np.bool_]
    far: NDArray[np.bool_] = np.zeros(0, dtype=bool)


Names = Mapping[int, str]
"""Of clusters, by number; those of a model without names are empty."""
NO_NAMES: Names = MappingProxyType({})


def write_labels(path: Path, views: Views, judged: Judged, names: Names = NO_NAMES) -> None:
    """One line per sample: id, label, its name if there are names, and what else is said of it; its views."""
    _write_rows(path, *named_rows(_LABEL_COLUMNS, _labels(views, judged), names))


def write_predictions(path: Path, parts: Iterable[tuple[Views, Judged]], names: Names = NO_NAMES) -> None:
    """As `write_labels`, a few samples at a time, and whether these are far outside of what the model was fitted on."""
    rows = (
        (*row, int(is_far))
        for views, judged in parts
        for row, is_far in zip(_labels(views, judged), judged.far, strict=True)
    )
    _write_rows(path, *named_rows((*_LABEL_COLUMNS, "out_of_range"), rows, names))


def _labels(views: Views, judged: Judged) -> Iterator[Sequence[Any]]:
    names = np.array(views.names)
    present = (" ".join(names[mask]) for mask in views.mask)
    sure = (f"{one:.4f}" for one in judged.chances.max(axis=1))
    marks = judged.uncertain.astype(int).tolist(), (f"{one:.4f}" for one in judged.novelty)
    outlier = judged.outlier.astype(int).tolist()
    return zip(views.ids.tolist(), judged.labels.tolist(), sure, *marks, outlier, present, strict=True)


def named_rows(
    header: Sequence[str], rows: Iterable[Sequence[Any]], names: Names
) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
    """Header and rows with a column "name" behind "label"; the same where there are no names."""
    if not names:
        return header, map(tuple, rows)
    place = header.index("label") + 1
    named = ((*row[:place], names.get(int(row[place - 1]), ""), *row[place:]) for row in rows)
    return (*header[:place], "name", *header[place:]), named


def write_history(path: Path, history: Mapping[str, Sequence[Any]]) -> None:
    """One line per epoch."""
    _write_rows(path, tuple(history), zip(*history.values(), strict=True))


class Sheet(NamedTuple):
    """A table without pandas, how its fractions are written, and how many columns a page of a paper is to have."""

    header: Sequence[str]
    rows: Iterable[tuple[Any, ...]]
    digits: str = ".4f"
    printed: int | None = None


_MOST_PRINTED = 60
"""Rows of a table that a page of a paper may hold."""


def write_sheets(folder: Path, sheets: Mapping[str, Sheet], *, latex: bool = False) -> None:
    """Tables as CSV files, by name, and if asked for those of few rows also as LaTeX, with their printed columns."""
    for name, sheet in sheets.items():
        digits = sheet.digits
        rows: Any = ([format(cell, digits) if isinstance(cell, float) else cell for cell in row] for row in sheet.rows)
        rows = list(rows) if latex else rows
        _write_rows(folder / name, sheet.header, rows)
        if latex and len(rows) <= _MOST_PRINTED and sheet.printed != 0:
            header, *cells = ([str(cell) for cell in row[: sheet.printed]] for row in (sheet.header, *rows))
            text = as_latex(header, cells, name)
            write_file((folder / name).with_suffix(".tex"), text.encode())


def write_embedding(path: Path, n: int, width: int, parts: Parts) -> None:
    """Embeddings of `n` samples as .npy, .csv or .parquet, by the ending of `path`; the last two with ids."""
    columns = [f"z{c}" for c in range(width)]
    if path.suffix == ".csv":
        samples = (pair for views, part in parts for pair in zip(views.ids.tolist(), part, strict=True))
        _write_rows(path, ("id", *columns), ((name, *map(str, row)) for name, row in samples))
    elif path.suffix == ".parquet":
        arrow, parquet = needed("pyarrow", "io", path), needed("pyarrow.parquet", "io", path)
        with writing(path) as temporary, ExitStack() as stack:
            writer = None
            for views, part in parts:
                table = arrow.table({"id": views.ids.tolist(), **dict(zip(columns, part.T, strict=True))})
                writer = writer or stack.enter_context(parquet.ParquetWriter(temporary, table.schema))
                writer.write_table(table)
    elif path.suffix == ".npy":
        with writing(path) as temporary, temporary.open("wb") as file:
            facts = {"descr": "<f4", "fortran_order": False, "shape": (n, width)}
            np.lib.format.write_array_header_1_0(file, facts)
            for _, part in parts:
                file.write(np.ascontiguousarray(part, dtype="<f4").data)
    else:
        raise CannotWrite(f"{path}: an embedding is written as .npy, .csv or .parquet; give one of these endings")


def write_views(folder: Path, names: Sequence[str], parts: Iterable[Views]) -> None:
    """One CSV file per view with ids and columns, block by block, as `read_views` takes them."""
    with ExitStack() as stack:
        temporaries = [stack.enter_context(writing(folder / name)) for name in file_names(names, ".csv")]
        files = [stack.enter_context(path.open("w", newline="", encoding="utf-8")) for path in temporaries]
        for number, views in enumerate(parts):
            for file, array, columns in zip(files, views.dense().arrays, views.columns, strict=True):
                rows = ((name, *map(str, row)) for name, row in zip(views.ids.tolist(), array, strict=True))
                header = [] if number else [("id", *(str(column) for column in columns))]
                write_harmless(file, [*header, *rows])


def file_names(names: Sequence[str], ending: str) -> list[str]:
    """Files called like views, each once, without anything that could lead out of their folder."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.,+ -]", "_", name).lstrip(".") or "view"
        taken = {other.lower() for other in found}  # some systems take a and A for one name
        tries = (f"{plain}{number}{ending}" for number in ("", *(f"_{i}" for i in range(2, len(names) + 2))))
        found.append(next(name for name in tries if name.lower() not in taken))
    return found


def as_json(facts: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that it does not know become text."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(facts), indent=indent, allow_nan=False)


def _write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with writing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_harmless(file, [header])
        write_harmless(file, rows)


class Results(NamedTuple):
    """What is known of some samples.

    Attributes
    ----------
    ids, labels : arrays of shape (samples,)
    probabilities : float32 array of shape (samples, clusters)
    embedding : float32 array of shape (samples, embedding)
    places : float32 array of shape (samples, 2): where samples lie on the map, NaN where they do not; of shape (0, 2)
        where there is no map
    """

    ids: NDArray[Any]
    probabilities: NDArray[np.float32]
    embedding: NDArray[np.float32]
    labels: NDArray[np.int64]
    places: NDArray[np.float32] = np.empty((0, 2), dtype=np.float32)


def annotate(data: Any, results: Results, key: str = KEY) -> None:
    """Set obs[key], obs[f"{key}_confidence"], obsm[f"X_{key}"] and, with a map, obsm[f"X_{key}_map"] of an object.

    The clusters are categories "0", "1", ...; cells without a result, and outliers that are to have no cluster, get
    none of these; the former get NaN for all else.
    """
    if not is_annotated(data):
        raise DataError(f"results are written into AnnData and MuData objects; a {type(data).__name__} is none")
    if not isinstance(key, str) or not key or "/" in key:
        raise SettingError(f"key must be a name without '/', such as {KEY!r}; got {key!r}")
    if is_mudata(data) and not all(part.obs_names.isin(data.obs_names).all() for part in data.mod.values()):
        raise DataError("a modality has cells that the MuData does not know of; call its update() first")
    columns, tables = _by_cell(_rows(data.obs_names.tolist(), results.ids), results, key)
    for name, values in columns.items():
        data.obs[name] = values
    for name, table in tables.items():
        data.obsm[name] = table


def write_annotated(source: Path, target: Path, results: Results, *, trusted: bool = False) -> None:
    """A copy of the .h5mu or .h5ad file `source` at `target` with the results in it, as `annotate` sets them.

    Another process opens it, as it does when files are read, unless it is `trusted`.
    """
    with writing(target) as temporary, TemporaryDirectory() as folder:
        shutil.copyfile(source, temporary)
        names = np.array([str(name) for name in results.ids.tolist()])
        np.savez(Path(folder) / "results.npz", **results._replace(ids=names)._asdict())
        job = ReadJob(source, copy=str(temporary.absolute()), results=str(Path(folder) / "results.npz"))
        if trusted or not POSSIBLE:
            annotate_copy(job)
        else:
            client.read_isolated(job)


def annotate_copy(job: ReadJob) -> None:
    """Write results, which lie in a .npz file, into the copy of an .h5mu or .h5ad file."""
    anndata, h5py = needed("anndata.io", "omics", job.path), needed("h5py", "omics", job.path)
    with guarded(job.path), np.load(str(job.results)) as arrays, h5py.File(job.copy, "r+") as file:
        results = Results(**arrays)
        rows = _rows(anndata.read_elem(file["obs"]).index.tolist(), results.ids)
        if "mod" in file and (rows >= 0).sum() < len(results.ids):
            raise DataError(f"{job.path}: 'obs' lacks a cell that a modality has; update it with mudata's update()")
        columns, tables = _by_cell(rows, results, KEY)
        for name, values in columns.items():
            anndata.write_elem(file["obs"], name, values)
        before = [str(name) for name in file["obs"].attrs.get("column-order", ())]
        file["obs"].attrs["column-order"] = list(dict.fromkeys([*before, *columns]))
        for name, table in tables.items():
            anndata.write_elem(file.require_group("obsm"), name, table)


def _rows(cells: Sequence[str], ids: NDArray[Any]) -> NDArray[np.int64]:
    """Per cell the row of its result, or -1."""
    names = [str(name) for name in ids.tolist()]
    row = {name: place for place, name in enumerate(names)}
    if len(row) < len(names):
        raise DataError("two samples have ids that are written alike, such as 1 and '1'; cells are known by name only")
    rows = np.array([row.get(cell, -1) for cell in cells], dtype=np.int64)
    if (rows < 0).all():
        raise DataError(
            f"none of the cells, such as {cells[:1]}, is among the samples with results, such as {names[:1]}; "
            "samples that the model was not fitted on are predicted by annotate(data, data)"
        )
    return rows


def _by_cell(
    rows: NDArray[np.int64], results: Results, key: str
) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """What obs gets, and what obsm gets, by name: clusters with confidence, and the embedding with a map, if any."""
    from pandas import Categorical

    labels = np.where(rows < 0, -1, results.labels[rows])  # -1 is no category, and `OUTLIER`
    clusters = [str(cluster) for cluster in range(results.probabilities.shape[1])]
    confidence = placed_dense_rows(results.probabilities.max(axis=1), rows)
    columns = {key: Categorical.from_codes(labels, categories=clusters), f"{key}_confidence": confidence}
    places = {f"X_{key}_map": placed_dense_rows(results.places, rows)} if len(results.places) else {}
    return columns, {f"X_{key}": placed_dense_rows(results.embedding, rows), **places}


_SPECIAL = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$",
    "\N{MINUS SIGN}": r"$-$",
})  # fmt: skip
_NUMBER = re.compile(r"[-+\u2212]?[\d.,]+(e[-+]\d+| ± [\d.]+)?|-|")
_POWER = re.compile(r"e(-?)\+?0*(\d+)$")


def as_latex(header: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> str:
    """A tabular; columns of numbers are aligned at the right, and the title is a comment.

    Numbers have a true minus and powers of ten; the hyphen of a text stays one.
    """
    layout = "".join("r" if all(_NUMBER.fullmatch(row[c]) for row in rows) else "l" for c in range(len(header)))
    lines = [" & ".join(map(escaped, header)) + r" \\"]
    for row in rows:
        cells = list(map(escaped, row))
        for c, cell in enumerate(row):
            if cell != "-" and _NUMBER.fullmatch(cell):
                cells[c] = _POWER.sub(r"$\\cdot 10^{\1\2}$", escaped(re.sub("^-", "\N{MINUS SIGN}", cell)))
        lines.append(" & ".join(cells) + r" \\")
    comment = " ".join(title.split())
    return "\n".join([
        f"% {comment}", rf"\begin{{tabular}}{{{layout}}}", r"\toprule", lines[0], r"\midrule", *lines[1:],
        r"\bottomrule", r"\end{tabular}", "",
    ])  # fmt: skip


def escaped(text: str) -> str:
    """Text in which LaTeX sees no commands; control characters, which it refuses, are blanks."""
    return "".join(sign if sign.isprintable() else " " for sign in text).translate(_SPECIAL)
