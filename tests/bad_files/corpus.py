"""Files that must be refused in one line. Each function writes one; its name is the file's, its parameter the folder.

`BAD` maps the name of a file to its writer and to words that the answer must contain: the place, or the cure.
"""

from __future__ import annotations

import io
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import mudata
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from anndata import AnnData
from scipy import io as matlab
from scipy import sparse

Writer = Callable[[Path], None]
BAD: dict[str, tuple[Writer, str]] = {}
BOMBS: list[str] = []
GIB = 2**30


def bad(name: str, words: str, *, bomb: bool = False) -> Callable[[Writer], Writer]:
    def register(writer: Writer) -> Writer:
        assert name not in BAD, name
        BAD[name] = writer, words
        if bomb:
            BOMBS.append(name)
        return writer

    return register


class Payload:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("code-ran",)


# Text


TEXTS = {
    "empty.csv": (b"", "needs a header"),
    "only_header.csv": (b"id,x\n", "has a header but no rows"),
    "one_column.csv": (b"id\na\nb\n", "needs a header with a column of ids and one of numbers"),
    "blank_lines.csv": (b"\n\n\n\n", "needs a header"),
    "spaces.csv": (b"   \n", "needs a header"),
    "twice.csv": (b"id,x\na,1\nb,2\na,3\n", "id 'a' appears twice, in data rows 1 and 3"),
    "no_id.csv": (b"id,x\na,1\n,2\n", "data row 2 has no id"),
    "long_row.csv": (b"id,x\na,1\nb,1,5\n", "data row 2 has 3 cells instead of 2"),
    "short_row.csv": (b"id,x,y\na,1,2\nb,1\n", "data row 2 has 2 cells instead of 3"),
    "text.csv": (b"id,x,stage\na,1,II\nb,1,2\n", "id 'a', column 'stage': 'II' is not a number"),
    "decimal_comma.csv": (b'id,x\na,"1,5"\n', "id 'a', column 'x': '1,5' is not a number; write 1.5"),
    "percent.csv": (b"id,x\na,5%\n", "'5%' is not a number"),
    "semicolons.tsv": (b"id;x\na;1\n", "its first line, 'id;x', is separated by ';'; save it with"),
    "points_and_commas.csv": (b"id;x;y\na;1,5;2.5\n", "'1,5' and '2.5' stand in one file; write all numbers alike"),
    "yes_among_numbers.csv": (b"id,x\na,1\nb,yes\n", "id 'b', column 'x': 'yes' is not a number"),
    "number_among_yes.csv": (b"id,x\na,yes\nb,2\n", "id 'a', column 'x': 'yes' is not a number, unlike other cells"),
    "no_such_day.csv": (b"id,x\na,2024-02-30\n", "id 'a', column 'x': '2024-02-30' is no date"),
    "not_packed.csv.gz": (b"id,x\na,1\n", "is no readable .gz file"),
    "tabs.csv": (b"id\tx\na\t1\n", "is separated by tabs; call the file .tsv"),
    "commas.tsv": (b"id,x\na,1\n", "is separated by ','; call the file .csv"),
    "infinite.csv": (b"id,x\na,inf\n", "column 0 ('x'): the value is inf"),
    "too_large.csv": (b"id,x\na,1e300\n", "1e+300 is too large for 32-bit floats"),
    "numbers_as_ids.csv": (b"TP53,x\n831.84,1\n847.61,2\n", "column 'TP53' holds measurements, not ids"),
    "dots.csv": (b'id,x\na,"1.234,5"\n', "'1.234,5' is not a number; write 1.5"),
    "all_missing.csv": (b"id,x\na,NA\n", "has no view at all"),
    "open_quote.csv": (b'id,x\na,"1\n', "cannot be read as text"),
    "latin1.csv": ("id,x\nM\xfcller,1\n".encode("latin-1"), "save it as UTF-8"),
    "utf16.csv": ("id,x\na,1\n".encode("utf-16"), "save it as UTF-8"),
    "binary.csv": (bytes(range(256)) * 20, "cannot be read as text"),
    "zeros.csv": (bytes(4096), "needs a header"),
    "huge_cell.csv": (b"id,x\na," + b"1" * 200_000 + b"\n", "cannot be read as text (field larger than field limit"),
    "same_columns.csv": (b"id,x,x\na,1,2\n", "two columns are called 'x'"),
    "excel.csv": (b"PK\x03\x04\x14\x00\x06\x00\x08\x00\x00\x00!\x00\xff\xfe", "cannot be read as text"),
    "html.csv": (b"<html><body>Please log in</body></html>\n", "needs a header"),
    "formula.csv": (b"id,x\na,=1+1\n", "'=1+1' is not a number"),
    "tiny_steps.csv": (b"id,x\n" + b"".join(b"%d,%d\n" % (i, 2**60 + i) for i in range(20)),
                       "differ by less than 32-bit floats can tell"),
}  # fmt: skip
for _name, (_content, _words) in TEXTS.items():
    bad(_name, _words)(lambda path, content=_content: path.write_bytes(content))


# NumPy


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def zipped(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def zip_bomb(path: Path, *names: str, head: bytes, block: bytes, times: int) -> None:
    """Members with a head and many equal blocks; a block is packed once, where zipfile would take seconds."""
    packer, crc = zlib.compressobj(1, zlib.DEFLATED, -15), zlib.crc32(head)
    packed = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    packed += (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)) * times + packer.flush()
    for _ in range(times):
        crc = zlib.crc32(block, crc)
    facts, members, directory = (crc, len(packed), len(head) + times * len(block)), b"", b""
    for name in map(str.encode, names):
        places = (len(name), 0, 0, 0, 0, 0, len(members))
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 33, *facts, *places) + name
        members += struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 33, *facts, len(name), 0) + name + packed
    ending = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(names), len(names), len(directory), len(members), 0)
    path.write_bytes(members + directory + ending)


BYTES = {
    "empty.npz": (b"", "is no readable .npz file"),
    "no_zip.npz": (b"PK\x03\x04 no zip at all", "is no readable .npz file"),
    "array_as.npz": (b"\x93NUMPY\x01\x00", "is no readable .npz file"),
    "empty.mat": (b"", "is no MATLAB file"),
    "text.mat": (b"x = [1 2 3];\n" * 20, "is no MATLAB file"),
    "empty.parquet": (b"", "is no readable .parquet file"),
    "text.parquet": (b"id,x\na,1\n", "is no readable .parquet file"),
    "magic.parquet": (b"PAR1" + bytes(100) + b"PAR1", "is no readable .parquet file"),
    "empty.h5mu": (b"", "is no readable .h5mu file"),
    "text.h5mu": (b"MuData", "is no readable .h5mu file"),
    "text.h5ad": (b"AnnData", "is no readable .h5ad file"),
    "header_only.h5mu": (b"\x89HDF\r\n\x1a\n" + bytes(100), "is no readable .h5mu file"),
    "data.xlsx": (b"PK", ".xlsx files are not read; save it as CSV (UTF-8)"),
    "data.pkl": (b"\x80\x04K\x01.", ".pkl files are not read; give one .npz"),
}
for _name, (_content, _words) in BYTES.items():
    bad(_name, _words)(lambda path, content=_content: path.write_bytes(content))


@bad("pickle.npz", "'view_0' holds Python objects, which could run code")
def _(path):
    np.savez(path, view_0=np.array([[Payload()]], dtype=object))


@bad("pickled_ids.npz", "'ids' holds Python objects")
def _(path):
    np.savez(path, view_0=np.ones((2, 2)), ids=np.array([Payload(), Payload()], dtype=object))


@bad("pickled_labels.npz", "'labels' holds Python objects")
def _(path):
    np.savez(path, view_0=np.ones((1, 2)), labels=np.array([Payload()], dtype=object))


@bad("liar.npz", "'view_0' claims 70,368,744,177,664 bytes but holds", bomb=True)
def _(path):
    zipped(path, {"view_0.npy": header((2**43, 2)) + b"few"})


@bad("negative.npz", "is no readable .npz file")
def _(path):
    zipped(path, {"view_0.npy": header((2, 2)).replace(b"(2, 2)", b"(-2,2)") + bytes(16)})


@bad("bomb.npz", "would grow from", bomb=True)
def _(path):
    zip_bomb(path, "view_0.npy", head=header((2**16, 2**10)), block=bytes(2**20), times=2**8)


@bad("many_bombs.npz", "would grow from", bomb=True)
def _(path):
    zip_bomb(path, *(f"view_{v}.npy" for v in range(16)), head=header((2**11, 2**10)), block=bytes(2**20), times=2**3)


@bad("cut.npz", "is no readable .npz file")
def _(path):
    whole = io.BytesIO()
    np.savez(whole, a=np.random.default_rng(0).normal(size=(50, 3)))
    path.write_bytes(whole.getvalue()[:-200])


@bad("flipped.npz", "is no readable .npz file")
def _(path):
    whole = io.BytesIO()
    np.savez(whole, a=np.random.default_rng(0).normal(size=(50, 3)))
    content = bytearray(whole.getvalue())
    content[700] ^= 1
    path.write_bytes(content)


@bad("no_views.npz", "holds no 2-D array")
def _(path):
    np.savez(path, labels=np.arange(3))


@bad("twice_inside.npz", "'view_0' is there twice")
def _(path):
    content = header((1, 1)) + bytes(4)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("view_0.npy", content)
        archive.writestr("view_0.npy", content)


@bad("long_header.npz", "would grow from", bomb=True)
def _(path):
    start = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**27)
    zip_bomb(path, "view_0.npy", head=start, block=b" " * 2**20, times=2**7)


@bad("cut_header.npz", "is no readable .npz file")
def _(path):
    content = header((1, 2))
    zipped(path, {"view_0.npy": content.replace(b"), }", b"    ")})


@bad("many_empty_rows.npz", "0 feature(s)", bomb=True)
def _(path):
    zipped(path, {"view_0.npy": header((10**8, 0))})


@bad("text_mask.npz", "'mask' has shape (3, 1) and holds <U3")
def _(path):
    np.savez(path, view_0=np.ones((3, 2)), mask=np.full((3, 1), "yes"))


@bad("no_letters.npz", "is no readable .npz file")
def _(path):
    np.savez(path, view_0=np.ones((1, 1)), ids=np.array([2**31 - 1], dtype=np.uint32).view("<U1"))


@bad("cube.npz", "'view_0' has shape (2, 2, 2); a view has two dimensions")
def _(path):
    np.savez(path, view_0=np.ones((2, 2, 2)))


@bad("uneven.npz", "differing row counts ('view_0' has 3, 'view_1' has 4)")
def _(path):
    np.savez(path, view_0=np.ones((3, 2)), view_1=np.ones((4, 2)))


@bad("short_ids.npz", "'ids' has shape (2,), but the views have 3 rows")
def _(path):
    np.savez(path, view_0=np.ones((3, 2)), ids=["a", "b"])


@bad("short_labels.npz", "'labels' has shape (2,), but the views have 3 rows")
def _(path):
    np.savez(path, view_0=np.ones((3, 2)), labels=[0, 1])


@bad("double_ids.npz", "id 'a' appears twice, in rows 0 and 1")
def _(path):
    np.savez(path, view_0=np.ones((2, 2)), ids=["a", "a"])


@bad("wrong_mask.npz", "'mask' has shape (2, 5) and holds bool, but 3 rows of 1 views need (3, 1)")
def _(path):
    np.savez(path, view_0=np.ones((3, 2)), mask=np.ones((2, 5), dtype=bool))


@bad("odd_mask.npz", "the mask holds values other than True/False")
def _(path):
    np.savez(path, view_0=np.ones((3, 2)), mask=np.full((3, 1), 7))


@bad("masked_out.npz", "row 0 and 2 more have no view at all")
def _(path):
    np.savez(path, view_0=np.ones((3, 2)), mask=np.zeros((3, 1), dtype=bool))


@bad("infinite.npz", "view 'a', row 1, column 0: the value is inf")
def _(path):
    np.savez(path, a=np.array([[1.0], [np.inf]]))


@bad("words.npz", "holds text, not real numbers")
def _(path):
    np.savez(path, view_0=np.array([["one", "two"]]))


@bad("complex.npz", "Complex data not supported")
def _(path):
    np.savez(path, view_0=np.ones((3, 2)) * 1j)


@bad("no_rows.npz", "0 sample(s)")
def _(path):
    np.savez(path, view_0=np.ones((0, 2)))


@bad("no_columns.npz", "0 feature(s)")
def _(path):
    np.savez(path, view_0=np.ones((3, 0)))


@bad("no_arrays", "is a folder without .npy")
def _(path):
    path.mkdir()
    (path / "readme.txt").write_text("nothing")


@bad("pickled_arrays", "a.npy is no readable .npy file")
def _(path):
    path.mkdir()
    np.save(path / "a.npy", np.array([[Payload()]], dtype=object), allow_pickle=True)


@bad("lying_arrays", "a.npy is no readable .npy file", bomb=True)
def _(path):
    path.mkdir()
    (path / "a.npy").write_bytes(header((2**43, 2)) + b"few")


# MATLAB


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def version_5(path: Path, *elements: bytes) -> None:
    start = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    path.write_bytes(start + b"".join(elements))


def matrix(name: bytes, shape: tuple[int, int], data: bytes, kind: int = 6) -> bytes:
    flags = element(6, struct.pack("<II", kind, 0))
    return element(14, flags + element(5, struct.pack("<ii", *shape)) + element(1, name) + element(9, data))


@bad("bomb.mat", "would grow from", bomb=True)
def _(path):
    packer = zlib.compressobj(9)
    inside = matrix(b"X1", (2**13, 2**14), b"")
    packed = packer.compress(struct.pack("<II", 14, GIB) + inside[8:-8] + struct.pack("<II", 9, GIB - 80))
    packed += packer.flush(zlib.Z_FULL_FLUSH)
    packed += (packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)) * 2**10  # blocks are alike
    version_5(path, struct.pack("<II", 15, len(packed)) + packed)


@bad("liar.mat", "a matrix claims the shape (1073741824, 1024), but has", bomb=True)
def _(path):
    version_5(path, matrix(b"X1", (2**30, 2**10), bytes(64)))


@bad("hidden_bomb.mat", "a matrix claims the shape (8192, 8192), but has 1,000 bytes", bomb=True)
def _(path):
    packer = zlib.compressobj(9)
    inside = matrix(b"X1", (2**13, 2**13), b"")
    packed = packer.compress(struct.pack("<II", 14, 1000) + inside[8:-8] + struct.pack("<II", 9, 2**29))
    packed += packer.flush(zlib.Z_FULL_FLUSH)
    packed += (packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)) * 2**9
    version_5(path, struct.pack("<II", 15, len(packed)) + packed)


@bad("far_end.mat", "byte 136: a part of 4,294,967,288 bytes goes beyond the end", bomb=True)
def _(path):
    version_5(path, struct.pack("<II", 14, 2**32 - 8) + bytes(64))


@bad("garbage.mat", "goes beyond the end")
def _(path):
    version_5(path, np.random.default_rng(0).bytes(400))


@bad("cut.mat", "goes beyond the end")
def _(path):
    matlab.savemat(path, {"X1": np.random.default_rng(0).normal(size=(30, 4))}, do_compression=True)
    path.write_bytes(path.read_bytes()[:-300])


@bad("wild_sparse.mat", "'X1' is a sparse matrix whose indices lead out of it")
def _(path):
    wild = sparse.csc_matrix(np.eye(20, 3))
    wild.indices[0] = 50_000_000
    matlab.savemat(path, {"X1": wild, "X2": np.ones((20, 2))})


@bad("unknown_part.mat", "a part of kind 200 with 8 bytes does not fit there")
def _(path):
    flags, shape = element(6, struct.pack("<II", 6, 0)), element(5, struct.pack("<ii", 1, 1))
    version_5(path, element(14, flags + shape + element(1, b"X1") + element(200, bytes(8))))


@bad("deep.mat", "cells are nested more than 5 deep")
def _(path):
    cell = b""
    for _ in range(200):
        head = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 1)) + element(1, b"X")
        cell = element(14, head + (cell or matrix(b"", (1, 1), bytes(8))))
    version_5(path, cell)


@bad("struct_in_cell.mat", "a cell holds a struct, which is not read")
def _(path):
    cells = np.empty((1, 1), dtype=object)
    cells[0, 0] = {"a": 1}
    matlab.savemat(path, {"X": cells})


@bad("huge_cell.mat", "a matrix claims the shape (67108864, 1), but has", bomb=True)
def _(path):
    head = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 2**26, 1)) + element(1, b"X")
    version_5(path, element(14, head))


@bad("either_way.mat", "the shapes do not tell how many samples there are (X1 (20, 30), X2 (30, 20))")
def _(path):
    matlab.savemat(path, {"X1": np.ones((20, 30)), "X2": np.ones((30, 20))})


@bad("other_labels.mat", "'labels' has shape (7,), but the views have 3 rows")
def _(path):
    matlab.savemat(path, {"X1": np.ones((3, 2)), "Y": np.arange(7)})


@bad("nothing_known.mat", "it needs a cell array X of matrices, or matrices X1, X2, ...; it has answer")
def _(path):
    matlab.savemat(path, {"answer": np.ones((3, 3))})


@bad("no_common.mat", "the shapes do not tell how many samples there are (X1 (3, 2), X2 (5, 4))")
def _(path):
    matlab.savemat(path, {"X1": np.ones((3, 2)), "X2": np.ones((5, 4))})


@bad("strings.mat", "holds no views")
def _(path):
    matlab.savemat(path, {"X": np.array(["a", "b"], dtype=object)})


@bad("infinite.mat", "view 'X1', row 0, column 0: the value is inf")
def _(path):
    matlab.savemat(path, {"X1": np.full((3, 2), np.inf)})


def version_73(path: Path) -> h5py.File:
    return h5py.File(path, "w")


@bad("bomb73.mat", "would grow from", bomb=True)
def _(path):
    with version_73(path) as file:
        file.create_dataset("X1", (2**15, 2**15), dtype="f4", chunks=(2**10, 2**10), compression="gzip", fillvalue=0)


@bad("one_for_all73.mat", "would grow from", bomb=True)
def _(path):
    with version_73(path) as file:
        cell = file.create_dataset("#refs#/a", (2**11, 2**10), dtype="f8", chunks=True, compression="gzip")
        references = file.create_dataset("X", (60, 1), dtype=h5py.ref_dtype)
        references[:, 0] = [cell.ref] * 60


@bad("tall_sparse73.mat", "would grow from", bomb=True)
def _(path):
    with version_73(path) as file:
        group = file.create_group("X1")
        group.attrs["MATLAB_sparse"] = np.uint64(2**50)
        group["data"], group["ir"], group["jc"] = np.ones(2), np.array([0, 1]), np.array([0, 1, 2])


@bad("many_cells73.mat", "'/X' has 5,000 cells; at most 1,000 can be views")
def _(path):
    with version_73(path) as file:
        cell = file.create_dataset("#refs#/a", data=np.ones((2, 2)))
        file.create_dataset("X", (5000, 1), dtype=h5py.ref_dtype)[:, 0] = [cell.ref] * 5000


@bad("text_cells73.mat", "holds no views")
def _(path):
    with version_73(path) as file:
        cell = file.create_dataset("#refs#/a", data=np.ones((2, 5), dtype="u2"))
        cell.attrs["MATLAB_class"] = np.bytes_("char")
        file.create_dataset("names", (2, 1), dtype=h5py.ref_dtype)[:, 0] = [cell.ref] * 2


@bad("elsewhere73.mat", "leads to another file; store the data in the file itself")
def _(path):
    with version_73(path) as file:
        file["X1"] = h5py.ExternalLink("/etc/hostname", "/x")


@bad("external73.mat", "has its data in another file")
def _(path):
    with version_73(path) as file:
        file.create_dataset("X1", (2, 2), dtype="u1", external=[("/etc/hostname", 0, 4)])


def hidden_group(path: Path) -> h5py.Group:
    """A sparse matrix that only a reference leads to."""
    file = version_73(path)
    group = file.create_group("X1")
    group.attrs["MATLAB_sparse"] = np.uint64(2)
    file.create_dataset("X", (1, 1), dtype=h5py.ref_dtype)[0, 0] = group.ref
    unlink(group)
    return group


def unlink(group: h5py.Group) -> None:
    """Take a group out of the tree; a link to itself keeps it in the file."""
    group["itself"] = group
    del group.file[group.name]


@bad("hidden_elsewhere73.mat", "leads to another file; store the data in the file itself")
def _(path):
    group = hidden_group(path)
    with group.file:
        for part in ("jc", "ir", "data"):
            group[part] = h5py.ExternalLink("other.mat", f"/{part}")


@bad("hidden_soft73.mat", "'data' is a link to another place")
def _(path):
    group = hidden_group(path)
    with group.file:
        for part in ("jc", "ir", "data"):
            group[part] = h5py.SoftLink("/nowhere")


@bad("virtual73.mat", "has its data in another file")
def _(path):
    layout = h5py.VirtualLayout((2, 2), dtype="f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (2, 2))
    with version_73(path) as file:
        file.create_virtual_dataset("X1", layout)


@bad("circle73.mat", "holds no views")
def _(path):
    with version_73(path) as file:
        group = file.create_group("a")
        group["back"] = file["/"]


@bad("broken_sparse73.mat", "'X1' is a sparse matrix whose indices lead out of it")
def _(path):
    with version_73(path) as file:
        group = file.create_group("X1")
        group.attrs["MATLAB_sparse"] = np.uint64(3)
        group["data"], group["ir"], group["jc"] = np.ones(2), np.array([0, 99]), np.array([0, 1, 2])


# Parquet


@bad("bomb.parquet", "would grow from", bomb=True)
def _(path):
    column = pa.array(np.zeros(2**20))
    pq.write_table(pa.table({f"x{c}": column for c in range(8)}), path, compression="zstd")


@bad("list_bomb.parquet", "would grow from", bomb=True)
def _(path):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2**22)), 2**7)
    pq.write_table(pa.table({"id": range(2**15), "e": lists}), path, compression="zstd", use_dictionary=False)


@bad("same_columns.parquet", "two columns are called 'x'")
def _(path):
    pq.write_table(pa.table([["a"], [1.0], [2.0]], names=["id", "x", "x"]), path)


@bad("words.parquet", "id 'a', column 'stage': 'II' is not a number, unlike other cells")
def _(path):
    pq.write_table(pa.table({"id": ["a", "b"], "x": [1.0, 2.0], "stage": ["II", "3"]}), path)


@bad("one_column.parquet", "needs a column of ids and one of numbers")
def _(path):
    pq.write_table(pa.table({"id": ["a"]}), path)


@bad("no_rows.parquet", "has no rows")
def _(path):
    pq.write_table(pa.table({"id": pa.array([], pa.string()), "x": pa.array([], pa.float64())}), path)


@bad("float_ids.parquet", "column 'x' holds no ids but double values")
def _(path):
    pq.write_table(pa.table({"x": [1.5, 2.5], "y": [1.0, 2.0]}), path)


@bad("null_id.parquet", "data row 2 has no id")
def _(path):
    pq.write_table(pa.table({"id": ["a", None], "y": [1.0, 2.0]}), path)


@bad("twice.parquet", "id 'a' appears twice, in data rows 1 and 2")
def _(path):
    pq.write_table(pa.table({"id": ["a", "a"], "y": [1.0, 2.0]}), path)


@bad("ragged.parquet", "column 'e', data row 2: 1 numbers instead of 2")
def _(path):
    pq.write_table(pa.table({"id": ["a", "b"], "e": [[1.0, 2.0], [3.0]]}), path)


@bad("no_lists.parquet", "column 'e': every list is empty")
def _(path):
    pq.write_table(pa.table({"id": ["a"], "e": pa.array([None], pa.list_(pa.float32()))}), path)


@bad("lists_of_words.parquet", "column 'e' holds lists of string")
def _(path):
    pq.write_table(pa.table({"id": ["a"], "e": [["x"]]}), path)


@bad("cut.parquet", "is no readable .parquet file")
def _(path):
    pq.write_table(pa.table({"id": ["a", "b"], "y": [1.0, 2.0]}), path)
    path.write_bytes(path.read_bytes()[:-20])


# MuData


@bad("no_modalities.h5mu", "has no 'mod' and 'obs', so it is no .h5mu file")
def _(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.ones(3)


@bad("hollow.h5mu", "has the modalities []")
def _(path):
    with h5py.File(path, "w") as file:
        file.create_group("mod")
        file.create_group("obs")


@bad("elsewhere.h5mu", "leads to another file")
def _(path):
    with h5py.File(path, "w") as file:
        file.create_group("obs")
        file["mod/rna"] = h5py.ExternalLink("other.h5mu", "/mod/rna")


@bad("referenced_elsewhere.h5mu", "has its data in another file")
def _(path):
    with h5py.File(path, "w") as file:
        modality(file)["X"] = np.ones((3, 2))
        group = file.create_group("hidden")
        outside = group.create_dataset("x", (2,), dtype="u1", external=[("/etc/hostname", 0, 2)])
        file["mod/rna/X"].attrs["categories"] = outside.ref
        unlink(group)


def write_modality(path: Path, values) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mudata's own
        mudata.MuData({"rna": AnnData(values)}).write(path)


def modality(file: h5py.File) -> h5py.Group:
    file.create_group("obs")
    return file.create_group("mod/rna")


@bad("nothing.h5ad", "has no 'obs' and 'var', so it is no .h5ad file")
def _(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.ones(3)


@bad("old.h5ad", "is no readable .h5ad file")
def _(path):
    with h5py.File(path, "w") as file:
        file["X"] = np.ones((2, 2))
        for part in ("obs", "var"):
            file[part] = np.array([(b"a",), (b"b",)], dtype=[("index", "S1")])


@bad("elsewhere.h5ad", "leads to another file")
def _(path):
    with h5py.File(path, "w") as file:
        for part in ("obs", "var"):
            file.create_group(part)
        file["X"] = h5py.ExternalLink("other.h5ad", "/X")


@bad("bomb.h5ad", "would grow from", bomb=True)
def _(path):
    with h5py.File(path, "w") as file:
        for part in ("obs", "var"):
            file.create_group(part)
        file.create_dataset("X", (2**15, 2**15), dtype="f4", chunks=True, compression="gzip")


@bad("wild_sparse.h5ad", "is a sparse matrix whose indices lead out of it")
def _(path):
    AnnData(sparse.csr_matrix(np.eye(4, 3))).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        file["X/indices"][0] = 50_000_000


@bad("bomb.h5mu", "would grow from", bomb=True)
def _(path):
    with h5py.File(path, "w") as file:
        modality(file).create_dataset("X", (2**15, 2**15), dtype="f4", chunks=True, compression="gzip")


@bad("sparse_bomb.h5mu", "would grow from", bomb=True)
def _(path):
    with h5py.File(path, "w") as file:
        group = modality(file).create_group("X")
        for part in ("data", "indices", "indptr"):
            group.create_dataset(part, (2**30,), dtype="i4", chunks=True, compression="gzip")


@bad("names_bomb.h5mu", "would grow from", bomb=True)
def _(path):
    with h5py.File(path, "w") as file:
        group = modality(file)
        group["X"] = np.ones((3, 2))
        group.create_dataset("obs/_index", (2**27,), dtype="S8", chunks=True, compression="gzip")


@bad("wild_sparse.h5mu", "is a sparse matrix whose indices lead out of it")
def _(path):
    write_modality(path, sparse.csr_matrix(np.eye(4, 3)))
    with h5py.File(path, "r+") as file:
        file["mod/rna/X/indices"][0] = 50_000_000


@bad("more_rows.h5mu", "view 'rna' has 6 rows, but there are 4 ids")
def _(path):
    write_modality(path, np.eye(4, 3))
    with h5py.File(path, "r+") as file:
        attributes = dict(file["mod/rna/X"].attrs)
        del file["mod/rna/X"]
        file["mod/rna/X"] = np.ones((6, 3))
        file["mod/rna/X"].attrs.update(attributes)


@bad("no_matrix.h5mu", "modality 'rna' has no 'X'")
def _(path):
    with h5py.File(path, "w") as file:
        modality(file)


@bad("unnamed_cells.h5mu", "is no readable .h5mu file")
def _(path):
    with h5py.File(path, "w") as file:
        modality(file)["X"] = np.ones((3, 2))
