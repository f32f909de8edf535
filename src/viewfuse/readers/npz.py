"""NumPy archives, decided from their headers."""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from viewfuse.errors import DataError
from viewfuse.views import Views

NOT_VIEWS = ("labels", "ids", "mask")
_MOST_BYTES_PER_BYTE = 100
_SMALL = 100_000_000
"""Arrays below this size may be compressed as well as they like; larger ones are taken for a bomb beyond the ratio."""


def read_npz(path: Path) -> Views:
    """Views from a .npz file; `ids` and `mask` are used, `labels` are not."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_headers(path, archive)
        with np.load(path, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files if name != "labels"}
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} is no readable .npz file ({reason}); write it again with numpy.savez") from None
    views = _pick_views(arrays)
    if not views:
        raise DataError(f"{path} holds no 2-D array; store one array of shape (samples, columns) per view")
    try:
        return Views(views, ids=arrays.get("ids"), mask=arrays.get("mask"))
    except DataError as error:
        raise type(error)(f"{path}: {error}") from None


def _pick_views(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays called view_0, view_1, ... in that order; where there are none, all 2-D ones."""
    numbered = [name for name in arrays if re.fullmatch(r"view_\d+", name)]
    if numbered:
        return {name: arrays[name] for name in sorted(numbered, key=lambda name: int(name.removeprefix("view_")))}
    return {name: array for name, array in arrays.items() if name not in NOT_VIEWS and array.ndim == 2}


def _check_headers(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse pickles, bombs and headers that lie, without reading any data."""
    total = 0
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        with archive.open(member) as file:
            shape, dtype = _header(file)
        if dtype.hasobject:
            raise DataError(f"{path}: {name!r} holds Python objects, which could run code; store it as numbers or text")
        claimed = math.prod(shape) * dtype.itemsize
        if not 0 <= member.file_size - claimed <= 65_536:
            raise DataError(f"{path}: {name!r} claims {claimed:,} bytes but holds {member.file_size:,}; write it again")
        total += claimed
    if total > max(_SMALL, _MOST_BYTES_PER_BYTE * path.stat().st_size):
        raise DataError(
            f"{path} would grow from {path.stat().st_size:,} to {total:,} bytes; "
            "if that is right, store it uncompressed with numpy.savez"
        )


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype
