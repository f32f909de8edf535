"""NumPy archives and folders of NumPy arrays, decided from their headers."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from viewfuse.errors import DataError
from viewfuse.readers.limits import bytes_of, refuse_growth
from viewfuse.readers.source import FileView, Source

NOT_VIEWS = ("labels", "ids", "mask")


def read_npz(path: Path) -> Source:
    """The views in a .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_headers(path, archive)
        with np.load(path, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"{path} is no readable .npz file ({_reason(error)}); write it again with numpy.savez"
        ) from None
    return _source(path, arrays)


def read_npy_folder(folder: Path) -> Source:
    """The views in a folder of .npy files, one per view, as memory maps."""
    arrays = {}
    for path in folder.glob("*.npy"):
        try:
            arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError) as error:
            raise DataError(
                f"{path} is no readable .npy file ({_reason(error)}); write it again with numpy.save, as numbers"
            ) from None
    return _source(folder, dict(sorted(arrays.items())))


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _source(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Source:
    names = _pick_views(arrays)
    if not names:
        raise DataError(f"{path} holds no 2-D array; store one array of shape (samples, columns) per view")
    for name in names:
        if arrays[name].ndim != 2:
            shape = arrays[name].shape
            raise DataError(f"{path}: {name!r} has shape {shape}; a view has two dimensions, (samples, columns)")
    views = [FileView(path, name, arrays[name], range(arrays[name].shape[1])) for name in names]
    return Source(views, ids=arrays.get("ids"), mask=arrays.get("mask"), labels=arrays.get("labels"))


def _pick_views(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """The arrays called view_0, view_1, ... in that order; where there are none, all 2-D ones."""
    numbered = [name for name in arrays if re.fullmatch(r"view_\d+", name)]
    if numbered:
        return in_order(numbered)
    return [name for name, array in arrays.items() if name not in NOT_VIEWS and array.ndim == 2]


def in_order(names: Iterable[str]) -> list[str]:
    """Names that end in numbers, in the order of these."""
    return sorted(names, key=lambda name: int(re.findall(r"\d+", name)[-1]))


def _check_headers(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse pickles, bombs and headers that lie, without reading any data."""
    total = 0
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        with archive.open(member) as file:
            shape, dtype = _header(file)
        if dtype.hasobject:
            raise DataError(f"{path}: {name!r} holds Python objects, which could run code; store it as numbers or text")
        claimed = bytes_of(shape, dtype)
        if not 0 <= member.file_size - claimed <= 65_536:
            raise DataError(f"{path}: {name!r} claims {claimed:,} bytes but holds {member.file_size:,}; write it again")
        total += claimed
    refuse_growth(path, total, "store it uncompressed with numpy.savez")


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype
