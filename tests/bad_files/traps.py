"""More files that must be refused in one line: they crash, swell or never end a reader that is not on its guard."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bad_files.corpus import bad, element, header, matrix, modality, version_5

LONG = "x" * 1_000_000


@bad("complex_flag.mat", "is no readable .mat file")
def _(path):
    """A real matrix whose flags say that it is complex: SciPy reads an imaginary part that is not there."""
    flags = element(6, struct.pack("<II", 6 | 1 << 11, 0))
    version_5(
        path, element(14, flags + element(5, struct.pack("<ii", 2, 2)) + element(1, b"X1") + element(9, bytes(32)))
    )


@bad("one_long_id.parquet", "does not fit into memory")
def _(path):
    """Thousands of ids that share one long text."""
    ids = pa.DictionaryArray.from_arrays(np.zeros(3000, dtype=np.int32), [LONG])
    pq.write_table(pa.table({"id": ids, "x": np.arange(3000.0)}), path, compression="zstd")


@bad("repeated.parquet", "would grow from")
def _(path):
    """One number, five million times."""
    column = pa.repeat(pa.scalar(1.0), 5_000_000)
    pq.write_table(pa.table({"id": pa.repeat(pa.scalar(1), 5_000_000), "x": column}), path, row_group_size=5_000_000)


@bad("deep_metadata.parquet", "is no readable .parquet file")
def _(path):
    """What pandas stored is JSON that is nested without an end."""
    table = pa.table({"id": ["a"], "x": [1.0]}).replace_schema_metadata({"pandas": "[" * 100_000})
    pq.write_table(table, path)


@bad("odd_metadata.parquet", "is no readable .parquet file")
def _(path):
    table = pa.table({"id": ["a"], "x": [1.0]}).replace_schema_metadata({"pandas": json.dumps(["no", "dict"])})
    pq.write_table(table, path)


@bad("nested_lists.parquet", "holds lists of list")
def _(path):
    pq.write_table(pa.table({"id": ["a"], "x": [[[1.0]]]}), path)


@bad("one_long_name.h5mu", "memory allocation failed")
def _(path):
    """All names of cells lead to one long text in the file."""
    with h5py.File(path, "w") as file:
        group = modality(file)
        group["X"] = np.ones((3000, 2))
        frames = {"mod/rna/obs": 3000, "mod/rna/var": 2, "obs": 0}
        for name, n in frames.items():
            frame = file.require_group(name)
            frame.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
            frame.attrs["column-order"] = np.array([], dtype="f8")
            names = frame.create_dataset("_index", data=[LONG, *map(str, range(1, n))][:n], dtype=h5py.string_dtype())
            names.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
        place = file["mod/rna/obs/_index"].id.get_offset()
    with path.open("r+b") as raw:
        raw.seek(place)
        first = raw.read(16)
        raw.seek(place)
        raw.write(first * 3000)


@bad("circle.h5ad", "is no readable .h5ad file")
def _(path):
    """A group that lies in itself."""
    with h5py.File(path, "w") as file:
        for part in ("obs", "var", "X"):
            file.create_group(part)
        file["X/again"] = file["X"]
        file["obs/again"] = file["/"]


@bad("soft_circle.h5mu", "is no readable .h5mu file")
def _(path):
    with h5py.File(path, "w") as file:
        modality(file)["X"] = h5py.SoftLink("/mod/rna/Y")
        file["mod/rna/Y"] = h5py.SoftLink("/mod/rna/X")


@bad("many_members.npz", "holds no 2-D array")
def _(path):
    content = header((0,))
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(1_500):
            archive.writestr(f"x{number}.npy", content)


@bad("overlapping.npz", "is no readable .npz file")
def _(path):
    """Two members that lie in the same place, as in a bomb that needs no recursion."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", header((1, 1)) + bytes(4))
        archive.writestr("b.npy", header((1, 1)) + bytes(4))
    data = bytearray(path.read_bytes())
    second = data.rfind(b"PK\x01\x02")
    data[second + 42 : second + 46] = bytes(4)
    path.write_bytes(data)


@bad("deep_header.npz", "is no readable .npz file")
def _(path):
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 30_000 + "}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode())


@bad("deep_cells.mat", "cells are nested more than")
def _(path):
    """Cells in cells in cells."""
    inside = matrix(b"", (1, 1), bytes(8))
    for depth in range(200):
        flags = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 1))
        inside = element(14, flags + element(1, b"X" if depth == 199 else b"") + inside)
    version_5(path, inside)


@bad("negative.mat", "a matrix claims the shape")
def _(path):
    version_5(path, matrix(b"X1", (-1, -1), bytes(8)))


@bad("sparse_liar.mat", "is no readable .mat file")
def _(path):
    """A sparse matrix without its parts."""
    flags = element(6, struct.pack("<II", 5, 2**31 - 1)) + element(5, struct.pack("<ii", 2, 2)) + element(1, b"X1")
    version_5(path, element(14, flags + element(5, bytes(8))))


@bad("no_line_ends.csv", "check how its lines end")
def _(path):
    path.write_bytes(b"id,x\na,1\nb," + b"1," * 8_000_000)


def found_files() -> list[Path]:
    """What `make fuzz` found and kept, packed."""
    return sorted((Path(__file__).parent / "found").glob("*.xz"))
