"""NumPy archives and folders of NumPy arrays, decided from their headers."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from viewfuse.data.sparse_tables import check_sparse
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.io.safety import Allowance, bytes_of, guarded, npy_header
from viewfuse.io.source import Contents, FileView
from viewfuse.utils.console import warn

_LONGEST_HEADER = 65_536
NOT_VIEWS = ("labels", "ids", "mask")
LABELS = ("Y", "gt", "truelabel", "truth", "labels", "label", "gnd", "y", "target", "ground_truth")
"""What labels are called."""
_CLASSES = ("classes", "onehot", "one_hot")
"""What labels are called that have one column per class; a short list of the classes may be called so, too."""
_SHOWN = 6
_PLACES = ("shape", "indices", "indptr")
SPARSE = {"format", "data", *_PLACES}
"""What a file holds that scipy.sparse.save_npz wrote."""


def read_npz(path: Path) -> Contents:
    """The views in a .npz file; pickles, bombs and headers that lie are refused before any data are read."""
    allowance, seen = Allowance(path, "store it uncompressed with numpy.savez"), set[str]()
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in seen:
                raise DataError(f"{path}: {name!r} is there twice; write it again with numpy.savez")
            seen.add(name)
            allowance.take(member.file_size)
            with archive.open(member) as file:
                shape, _, dtype = npy_header(file)
            if dtype.hasobject:
                fault = f"{path}: {name!r} holds Python objects, which could run code; store it as numbers or text"
                raise DataError(fault)
            claimed, held = bytes_of(shape, dtype), member.file_size
            if not 0 <= held - claimed <= _LONGEST_HEADER:
                raise DataError(f"{path}: {name!r} claims {claimed:,} bytes but holds {held:,}; write it again")
    with np.load(path, allow_pickle=False) as data:
        arrays = {name: data[name] for name in data.files}
    return _contents(path, {"view_0": _sparse(path, arrays)} if set(arrays) >= SPARSE else arrays)


def _sparse(path: Path, parts: Mapping[str, NDArray[Any]]) -> Any:
    """The one matrix in a file of SciPy, by rows."""
    from scipy import sparse

    kind, shape = parts["format"].item(), tuple(parts["shape"].tolist())
    kind = kind.decode() if isinstance(kind, bytes) else kind
    fits = len(shape) == 2 and min(shape) >= 0 and parts["data"].dtype.kind in "fiub"
    if not fits or kind not in ("csr", "csc") or any(parts[name].dtype.kind not in "iu" for name in _PLACES):
        raise DataError(f"{path} holds a sparse matrix that is not read; save it as a csr_array of real numbers")
    Allowance(path, "give it fewer columns").take(8 * sum(shape))
    build = sparse.csr_array if kind == "csr" else sparse.csc_array
    matrix = build((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    check_sparse(str(path), matrix)
    return matrix.tocsr()


def read_npy_folder(folder: Path) -> Contents:
    """The views in a folder of .npy files, one per view, as memory maps."""
    arrays = {}
    for path in sorted(folder.glob("*.npy")):
        if not path.is_file():
            raise DataError(f"{path} is no file; leave only arrays in the folder")
        with guarded(path):
            arrays[path.stem] = npy.open_memmap(path, mode="r")
    return _contents(folder, arrays)


def _contents(path: Path, arrays: Mapping[str, Any]) -> Contents:
    """The arrays called view_0, view_1, ... in that order; where there are none, all 2-D ones but labels."""
    tables = [name for name, array in arrays.items() if name not in NOT_VIEWS and array.ndim == 2]
    numbered = in_order(name for name in arrays if re.fullmatch(r"view_\d+", name))
    plain = numbered or [name for name in tables if not (_is_label_name(name) and _may_be_classes(arrays[name]))]
    n = arrays[plain[0]].shape[0] if plain and arrays[plain[0]].ndim else -1
    labels = [name for name, array in arrays.items() if _is_label_name(name) and _is_column(array, n)]
    names = plain or tables  # what is called like labels is a view where nothing else is
    if not names:
        raise DataError(f"{path} holds no 2-D array; store one array of shape (samples, columns) per view")
    for name in names:
        if arrays[name].ndim != 2:
            shape = arrays[name].shape
            raise DataError(f"{path}: {name!r} has shape {shape}; a view has two dimensions, (samples, columns)")
    views = [FileView(path, name, arrays[name], range(arrays[name].shape[1])) for name in names]
    known = ["labels"] if "labels" in arrays else labels[:1]
    left = [name for name in arrays if name not in (*NOT_VIEWS, *names, *known)]
    reasons = {name: _why_left_out(name, arrays[name], n, known) for name in left}
    warn_left_out(path, {name: why for name, why in reasons.items() if why})
    own = arrays[known[0]] if known else None
    if own is not None and _is_column(own, n):
        own = np.ravel(own)
    return Contents(views, ids=arrays.get("ids"), mask=arrays.get("mask"), labels=own)


def _is_label_name(name: str) -> bool:
    return name.lower() in map(str.lower, (*LABELS, *_CLASSES))


def _may_be_classes(array: Any) -> bool:
    """Whether it could hold labels: one per sample, or 0 and 1 in one column per class."""
    return 1 in array.shape or bool(np.isin(array, (0, 1)).all())


def _is_column(array: Any, n: int) -> bool:
    """Whether there is one value for each of n samples."""
    return array.shape in ((n,), (n, 1), (1, n))


def _why_left_out(name: str, array: Any, n: int, labels: Sequence[str]) -> str:
    """Why an array beside views of n samples is no part of the data; empty where it says nothing of samples."""
    if _is_label_name(name) and array.ndim == 2 and not _is_column(array, n):
        return f"called like labels, but of shape {array.shape}; call it otherwise if it is a view"
    if _is_label_name(name):
        return f"{labels[0]!r} holds the labels" if labels else f"of shape {array.shape}, not one label per sample"
    if array.ndim == 2:
        return "the views are those called view_0, view_1, ..."
    return f"of shape {array.shape}, not (samples, columns)" if n in array.shape else ""


def warn_left_out(path: Path, reasons: Mapping[str, str]) -> None:
    """Warn of arrays that are no part of the data, each with its reason."""
    if reasons:
        listed = "; ".join(f"{name!r} ({why})" for name, why in list(reasons.items())[:_SHOWN])
        more = "; ..." if len(reasons) > _SHOWN else ""
        fault = f"{path}: {len(reasons)} array(s) are left out: {listed}{more}"
        warn(SuspiciousDataWarning(f"{fault}; store what matters as views"))


def in_order(names: Iterable[str]) -> list[str]:
    """Names that end in numbers, in the order of these."""
    return sorted(names, key=lambda name: int(re.findall(r"\d+", name)[-1]))
