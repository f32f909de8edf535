"""Every format, written by its real tool, comes back equal to the Views in memory; whole and in chunks."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import h5py
import mudata
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from anndata import AnnData
from anndata.io import read_h5ad
from hypothesis import given
from hypothesis import strategies as st
from scipy import io, sparse

from conftest import make_blobs
from test_readers import same
from viewfuse import DataError, NotEnoughMemory, SettingError, SuspiciousDataWarning, Views, read_chunks, read_views
from viewfuse.io import safety as spool_module
from viewfuse.io.readers import open_source, parquet
from viewfuse.io.writers import Results, write_annotated
from viewfuse.utils import memory

IDS = [f"p{i}" for i in range(20)]


@pytest.fixture
def views():
    return dict(zip(("rna", "protein"), make_blobs(20, 2, widths=(3, 4), missing=0.3)[0], strict=True))


@pytest.fixture
def full():
    return [np.nan_to_num(view) for view in make_blobs(20, 2, widths=(3, 4, 20), missing=0)[0]]


def assert_reads(expected: Views, paths, **options):
    assert same(read_views(paths, **options), expected)
    chunks = list(read_chunks(paths, 7, **options))
    assert [len(chunk) for chunk in chunks] == [7] * (len(expected) // 7) + [len(expected) % 7]
    for v in range(len(expected.names)):
        found = np.concatenate([chunk.dense().arrays[v] for chunk in chunks])
        assert np.array_equal(found.astype(np.float32), expected.arrays[v])
    assert np.array_equal(np.concatenate([chunk.mask for chunk in chunks]), expected.mask)
    assert [i for chunk in chunks for i in chunk.ids.tolist()] == expected.ids.tolist()


def test_folder_of_arrays_is_mapped(tmp_path, views):
    for name, view in views.items():
        np.save(tmp_path / f"{name}.npy", view)
    np.save(tmp_path / "ids.npy", IDS)
    np.save(tmp_path / "labels.npy", np.arange(20))
    expected = Views({name: views[name] for name in sorted(views)}, ids=IDS)
    assert_reads(expected, tmp_path)
    source = open_source(tmp_path)
    assert all(isinstance(view.values, np.memmap) for view in source.views)
    assert source.labels.tolist() == list(range(20))


def test_folder_of_numbered_arrays_with_mask(tmp_path, full):
    mask = np.ones((20, 3), dtype=bool)
    mask[4, 1] = False
    for v, view in enumerate(full):
        np.save(tmp_path / f"view_{v + 9}.npy", view)  # 9, 10, 11: not the order of the alphabet
    np.save(tmp_path / "mask.npy", mask)
    assert_reads(Views(dict(zip(("view_9", "view_10", "view_11"), full, strict=True)), mask=mask), tmp_path)


@pytest.mark.parametrize(
    ("turned", "compressed", "label"), [(False, True, "Y"), (True, False, "gt"), (True, True, "truelabel")]
)
def test_matlab_5_cells(tmp_path, full, turned, compressed, label):
    cells = np.empty((1, 3), dtype=object)
    cells[0] = [view.T if turned else view for view in full]
    labels = np.arange(20).reshape(-1, 1)
    io.savemat(tmp_path / "set.mat", {"X": cells, label: labels}, do_compression=compressed)
    assert_reads(Views(full), tmp_path / "set.mat")
    assert open_source(tmp_path / "set.mat").labels.tolist() == list(range(20))


@pytest.mark.parametrize("turned", [False, True])
def test_matlab_5_numbered_and_sparse(tmp_path, full, turned):
    full[2] = full[2][:, :19]  # with a square view and no labels nobody could tell rows from columns
    named = {f"X{v + 1}": view.T if turned else view for v, view in enumerate(full)}
    named["X1"] = sparse.csc_matrix(named["X1"].astype(np.float64))
    io.savemat(tmp_path / "set.mat", {**named, "Y": np.arange(20)})
    expected = Views(dict(zip(("X1", "X2", "X3"), full, strict=True)))
    assert_reads(expected, tmp_path / "set.mat")
    io.savemat(tmp_path / "unlabelled.mat", named)
    assert_reads(expected, tmp_path / "unlabelled.mat")
    assert [sparse.issparse(array) for array in read_views(tmp_path / "set.mat").arrays] == [True, False, False]


def save_as_matlab_73(path, variables):
    """As MATLAB does: arrays turned, cells as references into a group of their own, sparse matrices as groups."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            if isinstance(value, list):
                cells = [file.create_dataset(f"#refs#/{c}", data=cell.T) for c, cell in enumerate(value)]
                references = file.create_dataset(name, (len(cells), 1), dtype=h5py.ref_dtype)
                references[:, 0] = [cell.ref for cell in cells]
                references.attrs["MATLAB_class"] = np.bytes_("cell")
            elif sparse.issparse(value):
                group, columns = file.create_group(name), value.tocsc()
                group.attrs["MATLAB_sparse"] = np.uint64(value.shape[0])
                for part, data in (("data", columns.data), ("ir", columns.indices), ("jc", columns.indptr)):
                    group[part] = data
            else:
                file[name] = value.T
    content = bytearray(path.read_bytes())
    content[:124] = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jan 01 00:00:00 2024 HDF5".ljust(124)
    path.write_bytes(content)


@pytest.mark.parametrize("write", [io.savemat, save_as_matlab_73])
def test_variables_of_matlab_that_are_left_out_are_warned_of(tmp_path, full, write):
    named = {f"X{v + 1}": view for v, view in enumerate(full)}
    write(tmp_path / "set.mat", {**named, "Y": np.arange(20.0)[:, None], "rna": np.ones((20, 2)), "k": np.ones((1, 1))})
    said = r"set\.mat: 1 array\(s\) are left out: 'rna' \(of shape \(20, 2\), not called like the views\); store"
    with pytest.warns(SuspiciousDataWarning, match=said):
        assert open_source(tmp_path / "set.mat").names == ("X1", "X2", "X3")


def test_links_in_matlab_73(tmp_path, full):
    path = tmp_path / "set.mat"
    save_as_matlab_73(path, {"X1": sparse.csr_matrix(full[0]), "X2": full[1], "X3": full[2]})
    with h5py.File(path, "r+") as file:
        file["X1/more"] = h5py.SoftLink("/X1/jc")  # which is not read
    assert read_views(path).widths == tuple(view.shape[1] for view in full)
    with h5py.File(path, "r+") as file:
        file["X4"] = h5py.SoftLink("/nowhere")
    with pytest.raises(DataError, match="'X4' is a link to nothing"):
        read_views(path)
    with h5py.File(path, "r+") as file:
        del file["X4"], file["X1/jc"]
        file["X1/jc"] = h5py.SoftLink("/X1/more")
    with pytest.raises(DataError, match="link"):
        read_views(path)


def test_a_folder_with_an_array_that_is_none_is_named(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"abc")
    with pytest.raises(DataError, match=r"a\.npy") as told:
        read_views(tmp_path)
    assert "pickle" not in str(told.value)


def test_nothing_to_read_is_told():
    with pytest.raises(DataError, match="there is no view to read; name at least one file"):
        read_views({})


@pytest.mark.parametrize("turned", [False, True])
def test_matlab_73(tmp_path, full, turned):
    shown = [view.T if turned else view for view in full]
    labels = np.arange(20.0).reshape(-1, 1)
    save_as_matlab_73(tmp_path / "cells.mat", {"X": shown, "gt": labels})
    assert_reads(Views(full), tmp_path / "cells.mat")
    assert open_source(tmp_path / "cells.mat").labels.tolist() == list(range(20))
    numbered = {"X1": sparse.csr_matrix(shown[0]), "X2": shown[1], "X3": shown[2], "Y": labels}
    save_as_matlab_73(tmp_path / "numbered.mat", numbered)
    assert_reads(Views(dict(zip(("X1", "X2", "X3"), full, strict=True))), tmp_path / "numbered.mat")
    assert [sparse.issparse(array) for array in read_views(tmp_path / "numbered.mat").arrays] == [True, False, False]


@pytest.fixture
def frames(views):
    found = {}
    for shift, (name, view) in enumerate(views.items()):
        ids = [f"p{i + 5 * shift}" for i in range(20)]
        found[name] = pd.DataFrame(view, columns=[f"{name}_{c}" for c in range(view.shape[1])], index=ids).dropna()
    return found


def test_parquet_by_pandas_and_polars_joined_with_text(tmp_path, frames):
    frames["rna"].to_parquet(tmp_path / "rna.parquet")
    protein = frames["protein"]
    columns = {"id": protein.index.tolist(), **{c: protein[c].to_numpy() for c in protein}}
    pl.DataFrame(columns).write_parquet(tmp_path / "protein.parquet")
    protein.to_csv(tmp_path / "text.csv")
    assert_reads(Views(frames), [tmp_path / "rna.parquet", tmp_path / "protein.parquet"])
    mixed = [tmp_path / "rna.parquet", tmp_path / "text.csv"]
    assert_reads(Views({"rna": frames["rna"], "text": protein}), mixed)
    assert list(read_views(mixed).columns[0]) == ["rna_0", "rna_1", "rna_2"]


def test_whole_numbers_as_ids_stay_numbers_unless_a_file_has_text(tmp_path):
    for name, ids in (("a", [7, 3]), ("b", [3, 9])):
        pd.DataFrame({"id": ids, "x": [1.0, 2.0]}).to_parquet(tmp_path / f"{name}.parquet", index=False)
    assert read_views([tmp_path / "a.parquet", tmp_path / "b.parquet"]).ids.tolist() == [7, 3, 9]
    (tmp_path / "c.csv").write_text("id,y\n9,1\n")
    mixed = read_views([tmp_path / "a.parquet", tmp_path / "c.csv"], allow_disjoint=True)
    assert mixed.ids.tolist() == ["7", "3", "9"]


def test_a_folder_of_tables_is_its_tables(tmp_path, frames):
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index_label="id")
    assert_reads(Views({name: frames[name] for name in sorted(frames)}), tmp_path)


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_wide_files(tmp_path, frames, ending):
    wide = pd.concat(frames.values(), axis=1)
    wide.insert(1, "remark", "text is not looked at")
    path = tmp_path / f"wide{ending}"
    if ending == ".parquet":
        wide.to_parquet(path)
    else:
        wide.to_csv(path, index_label="id", sep="," if ending == ".csv" else "\t")
    expected = Views({"rna": wide[frames["rna"].columns], "protein": wide[frames["protein"].columns]})
    assert_reads(expected, path, blocks={"rna": "rna_*", "protein": list(frames["protein"].columns)})
    with pytest.raises(DataError, match=r"no column matches block 'x' \('x_\*'\); the columns are 'rna_0'"):
        read_views(path, blocks={"x": "x_*"})
    with pytest.raises(DataError, match="column 'rna_0' belongs to blocks 'a' and 'b'"):
        read_views(path, blocks={"a": "rna_*", "b": ["rna_0"]})
    with pytest.raises(DataError, match="block 'a' names 'rna_9', but the columns are"):
        read_views(path, blocks={"a": ["rna_9"]})


OLD_PYARROW = int(pa.__version__.split(".")[0]) < 26


@pytest.mark.parametrize(
    "kind",
    [
        "list",
        pytest.param("fixed", marks=pytest.mark.skipif(OLD_PYARROW, reason="pyarrow before 26 cannot read these")),
    ],
)
def test_parquet_columns_of_lists_are_views(tmp_path, views, kind):
    def column(view):
        width = view.shape[1]
        type_ = pa.list_(pa.float32(), width if kind == "fixed" else -1)
        return pa.array([None if np.isnan(row[0]) else row.tolist() for row in view], type=type_)

    table = pa.table({"id": IDS, "price": range(20), **{name: column(view) for name, view in views.items()}})
    pq.write_table(table, tmp_path / "items.parquet", row_group_size=6)
    with pytest.warns(SuspiciousDataWarning, match=r"1 column\(s\) beside those of lists are ignored: 'price'"):
        assert_reads(Views(views, ids=IDS), tmp_path / "items.parquet")
    only = read_views(tmp_path / "items.parquet", blocks={"picture": "rna", "price": "price"})
    assert only.widths == (3, 1)


@given(
    st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=40), st.integers(0, 39), st.sampled_from([1, 7, 64])
)
def test_gaps_of_parquet_are_where_they_were(cells, start, size):
    """Also in parts of a column, whose bits do not begin with a byte."""
    column = pa.array(cells, pa.int64())[start : start + size].cast("float64")
    part = pa.array(cells, pa.float64())[start : start + size]
    wanted = [np.nan if cell is None else cell for cell in cells[start : start + size]]
    for one in (column, part):
        assert np.array_equal(parquet._plain(one, np.nan, np.float64), wanted, equal_nan=True)


def test_parquet_with_gaps_is_read_without_pandas(tmp_path):
    """Which would take longer to import than the file to read, in the process of every file."""
    tables = {"cells": {"x": [1.5, None], "y": [None, 2]}, "lists": {"x": [[1.0, 2.0], None]}}
    for name, table in tables.items():
        pq.write_table(pa.table({"id": ["a", "b"], **table}), tmp_path / f"{name}.parquet")
    code = (
        "import sys; from viewfuse import read_views\n"
        "for path in sys.argv[1:]: read_views(path, trusted=True)\n"
        "sys.exit('pandas' in sys.modules)"
    )
    paths = [str(tmp_path / f"{name}.parquet") for name in tables]
    assert subprocess.run([sys.executable, "-c", code, *paths], check=False).returncode == 0


def test_lists_that_an_old_pyarrow_cannot_read_are_told_so(tmp_path, monkeypatch):
    """Before 26 it fails at the first list of fixed length that is not there."""
    pq.write_table(pa.table({"id": ["a"], "x": [[1.0, 2.0]]}), tmp_path / "items.parquet")

    def fail(*_, **__):
        raise pa.ArrowInvalid("Expected all lists to be of size=2 but index 2 had size=0")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    with pytest.raises(DataError, match=r"column 'x': pyarrow .* cannot read lists of fixed length .*; pyarrow 26 can"):
        read_views(tmp_path / "items.parquet", trusted=True)


def make_mudata(views, layer=False):
    """Two modalities whose cells overlap in part; one sparse."""
    rna, protein = (np.nan_to_num(view) for view in views.values())
    first = AnnData(sparse.csr_matrix(rna[:14]), obs=pd.DataFrame(index=IDS[:14]),
                    var=pd.DataFrame(index=["g0", "g1", "g2"]))  # fmt: skip
    second = AnnData(protein[9:], obs=pd.DataFrame(index=IDS[9:]), var=pd.DataFrame(index=list("abcd")))
    first.layers["counts"] = sparse.csc_matrix(rna[:14] + 1)
    second.obsm["X_pca"] = protein[9:, :2] * 2
    data = mudata.MuData({"rna": first, "protein": second})
    data.obs["batch"] = "one"
    return data


@pytest.mark.filterwarnings("ignore")  # of mudata's own
def test_h5mu_there_and_back(tmp_path, views):
    data = make_mudata(views)
    data.write(tmp_path / "cells.h5mu")
    rna, protein = (np.nan_to_num(view) for view in views.values())
    order = data.obs_names.tolist()
    expected = Views(
        {"rna": pd.DataFrame(rna[:14], index=IDS[:14]).reindex(order),
         "protein": pd.DataFrame(protein[9:], index=IDS[9:]).reindex(order)}
    )  # fmt: skip
    assert_reads(expected, tmp_path / "cells.h5mu")
    read = read_views(tmp_path / "cells.h5mu")
    assert list(read.columns[0]) == ["g0", "g1", "g2"]
    for found in (read, *read_chunks(tmp_path / "cells.h5mu", 7)):
        assert [sparse.issparse(array) for array in found.arrays] == [True, False]
    chosen = read_views(tmp_path / "cells.h5mu", use={"rna": "layers/counts", "protein": "obsm/X_pca"})
    assert sparse.issparse(chosen.arrays[0])
    assert np.array_equal(chosen.dense().arrays[0][expected.mask[:, 0]], rna[:14] + 1)
    assert np.array_equal(chosen.arrays[1][expected.mask[:, 1]], protein[9:, :2] * 2)

    shuffled = np.random.default_rng(0).permutation(20)
    sure, embedding = np.eye(20, dtype=np.float32), np.arange(40, dtype=np.float32).reshape(20, 2)
    results = Results(np.array(order)[shuffled], sure[shuffled], embedding[shuffled], shuffled)
    write_annotated(tmp_path / "cells.h5mu", tmp_path / "out.h5mu", results)
    back = mudata.read_h5mu(tmp_path / "out.h5mu")
    assert back.obs["viewfuse"].tolist() == [str(label) for label in range(20)]
    assert back.obs["viewfuse"].dtype == "category"
    assert back.obs["viewfuse_confidence"].tolist() == [1] * 20
    assert back.obs["batch"].tolist() == ["one"] * 20
    assert np.array_equal(back.obsm["X_viewfuse"], embedding)
    assert np.array_equal(back["rna"].X.toarray(), rna[:14])


@pytest.mark.filterwarnings("ignore")
def test_h5mu_mistakes(tmp_path, views):
    path = tmp_path / "cells.h5mu"
    make_mudata(views).write(path)
    with pytest.raises(DataError, match=r"has the modalities \['rna', 'protein'\], not \['atac'\]"):
        read_views(path, use={"atac": "X"})
    with pytest.raises(DataError, match=r"modality 'rna' has no 'obsm/X_pca'; it has X, layers/counts"):
        read_views(path, use={"rna": "obsm/X_pca"})
    with pytest.raises(DataError, match="id_column has no meaning for this kind of file"):
        read_views(path, id_column="x")


def test_many_rows_go_through_a_temporary_file(tmp_path, frames, monkeypatch):
    monkeypatch.setattr(spool_module, "_IN_MEMORY", 100)
    frames["rna"].to_csv(tmp_path / "rna.csv", index_label="id")
    frames["protein"].to_parquet(tmp_path / "protein.parquet")
    assert isinstance(open_source(tmp_path / "rna.csv").views[0].values, np.memmap)
    assert_reads(Views(frames), [tmp_path / "rna.csv", tmp_path / "protein.parquet"])


def test_sparse_views_are_made_dense_where_memory_allows(views, monkeypatch):
    values = np.nan_to_num(views["rna"])
    found = Views([sparse.csr_matrix(values)])
    assert np.array_equal(found.dense().arrays[0], values)
    monkeypatch.setattr(memory, "available", lambda: 100)
    words = (
        r"view 'view_0', a sparse matrix, as a table of 20 samples x 3 columns needs 240 bytes, but only 100 are free"
    )
    with pytest.raises(NotEnoughMemory, match=words):
        found.dense()


@pytest.mark.parametrize("build", [sparse.csr_array, sparse.csc_matrix])
def test_the_matrix_that_scipy_saves_is_one_view(tmp_path, full, build):
    sparse.save_npz(tmp_path / "set.npz", build(full[0]))
    assert_reads(Views([full[0]]), tmp_path / "set.npz")
    assert sparse.issparse(read_views(tmp_path / "set.npz").arrays[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indices": np.array([0, 7, 1])}, "is a sparse matrix whose indices lead out of it"),
        ({"indptr": np.array([0, 5, 2, 3])}, "no readable .npz file|indices lead out of it"),
        ({"shape": np.array([3, 2**50])}, "would grow from"),
        ({"shape": np.array([3, 2, 2])}, "save it as a csr_array of real numbers"),
        ({"format": b"bsr"}, "save it as a csr_array of real numbers"),
        ({"data": np.array([1j, 2, 3])}, "save it as a csr_array of real numbers"),
        ({"indices": np.array([0.0, 1.0, 1.0])}, "save it as a csr_array of real numbers"),
    ],
)
def test_a_damaged_matrix_of_scipy_is_refused(tmp_path, changes, words):
    parts = {"format": b"csr", "shape": [3, 2], "data": [1.0, 2, 3], "indices": [0, 1, 1], "indptr": [0, 1, 2, 3]}
    np.savez(tmp_path / "set.npz", **{**parts, **changes})
    with pytest.raises(DataError, match=words):
        read_views(tmp_path / "set.npz")


def test_memory_limits_are_seen():
    import resource

    assert 0 < memory.available() < 2**50
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**28, before[1]))
    try:
        assert memory.available() <= 2**28
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_labels_in_a_cell_are_no_view(tmp_path, full):
    labels = np.empty((1, 1), dtype=object)
    labels[0, 0] = np.arange(20.0).reshape(-1, 1)
    io.savemat(tmp_path / "set.mat", {"gt": labels, "X1": full[0], "X2": full[1]})
    assert_reads(Views({"X1": full[0], "X2": full[1]}), tmp_path / "set.mat")
    assert open_source(tmp_path / "set.mat").labels.tolist() == list(range(20))


def test_row_numbers_that_pandas_stored_are_neither_ids_nor_features(tmp_path):
    frame = pd.DataFrame({"id": [7, 8, 9, 10], "x": [1.0, 2.0, 3.0, 4.0]}).iloc[[0, 2, 3]]
    frame.to_parquet(tmp_path / "a.parquet")
    for options in ({}, {"id_column": "id"}):
        read = read_views(tmp_path / "a.parquet", **options)
        assert read.ids.tolist() == [7, 9, 10]
        assert read.widths == (1,)


SAVED = r"the ids are the row labels that pandas saved \(7, 3, 9\), not column 'age'; id_column='age' takes that"


@pytest.mark.parametrize(("columns", "has"), [({}, r"\[\]"), ({"a": ["s1", "s2"]}, r"\['a'\]")])
def test_parquet_with_too_few_columns_says_what_it_has(tmp_path, columns, has):
    pq.write_table(pa.table(columns), tmp_path / "few.parquet")
    with pytest.raises(DataError, match=rf"few\.parquet needs a column of ids and one of numbers; it has {has}"):
        read_views(tmp_path / "few.parquet")


@pytest.mark.parametrize(
    ("column", "index", "ids"),
    [
        ("age", [7, 3, 9], [7, 3, 9]),
        ("size", [7, 3, 9], [7, 3, 9]),
        ("age", [0, 1, 2], [30, 40, 50]),  # row numbers
        ("age", [7, 7, 9], [30, 40, 50]),
        ("Patient ID", [7, 3, 9], [30, 40, 50]),
        ("patientId", [7, 3, 9], [30, 40, 50]),
    ],
)
def test_whole_numbers_that_pandas_saved_as_an_index_are_ids(tmp_path, column, index, ids):
    """Unless they cannot be, or the first column is called like one of ids."""
    numbers = [0.5, 1.5, 2.5] if column == "size" else [30, 40, 50]
    frame = pd.DataFrame({column: numbers, "x": [1.0, 2.0, 3.0]}, index=pd.Index(index))
    frame.to_parquet(tmp_path / "a.parquet")
    warned = column == "age" and ids == index
    with pytest.warns(SuspiciousDataWarning, match=SAVED) if warned else nullcontext():
        read = read_views(tmp_path / "a.parquet")
    assert (read.ids.tolist(), read.columns) == (ids, ([column, "x"] if ids == index else ["x"],))
    if warned:
        assert read_views(tmp_path / "a.parquet", id_column="age").ids.tolist() == [30, 40, 50]


def test_large_numbers_as_ids_keep_all_their_digits(tmp_path):
    ids = [2**63 + 5001, 7, 2**63 + 5002]
    pd.DataFrame({"id": np.array(ids, dtype=np.uint64), "x": 1.0}).to_parquet(tmp_path / "a.parquet", index=False)
    assert read_views(tmp_path / "a.parquet").ids.tolist() == ids
    assert Views([np.ones((3, 1))], ids=ids).ids.tolist() == ids


def test_chunks_take_what_the_whole_file_takes(tmp_path):
    frame = pd.DataFrame({"time": 1.7e9 + 10 * np.arange(20_000)})
    frame.to_csv(tmp_path / "a.csv", index_label="id")
    assert sum(map(len, read_chunks(tmp_path / "a.csv", 200))) == len(read_views(tmp_path / "a.csv"))


@pytest.mark.slow
def test_many_columns_take_no_long(tmp_path):
    names = [f"cg{i}" for i in range(60_000)]
    (tmp_path / "a.csv").write_text("id," + ",".join(names) + "\np0," + ",".join(["1"] * len(names)) + "\n")
    began = time.process_time()
    assert read_views(tmp_path / "a.csv", blocks={"a": names[:50_000], "b": "cg5????"}).widths == (50_000, 10_000)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("endings", [(".npz", ".npz"), (".npz", ".mat"), (".mat", ".npz", ".npz")], ids="".join)
def test_whole_sets_are_read_one_at_a_time(tmp_path, endings):
    """Never the first of them without a word."""
    files = [tmp_path / f"set{number}{ending}" for number, ending in enumerate(endings)]
    for number, file in enumerate(files):
        write = np.savez if file.suffix == ".npz" else lambda path, **views: io.savemat(path, views)
        write(file, X=number + np.ones((4, 2)), Y=np.arange(4))
        assert len(read_views(file)) == 4
    with pytest.raises(DataError, match="give one "):
        read_views(files)


def test_an_array_alone_and_an_empty_folder_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    with pytest.raises(DataError, match=r"a.npy is one array; give the folder"):
        read_views(tmp_path / "a.npy")
    (tmp_path / "a.csv").write_text("id,x\n1,2\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty is a folder without"):
        read_views([tmp_path / "a.csv", tmp_path / "empty"])
    with pytest.raises(SettingError, match="the size of a chunk must be at least 1; got 0"):
        list(read_chunks(tmp_path / "a.csv", 0))


@pytest.mark.filterwarnings("ignore")
def test_cells_without_a_modality_get_no_label(tmp_path, views):
    data = make_mudata(views)
    data.mod["rna"] = data.mod["rna"][:5].copy()  # obs still lists all cells
    data.write(tmp_path / "cells.h5mu")
    read = read_views(tmp_path / "cells.h5mu")
    assert len(read) == 16
    results = Results(read.ids, np.eye(16, dtype=np.float32), np.ones((16, 2), dtype=np.float32), np.arange(16))
    write_annotated(tmp_path / "cells.h5mu", tmp_path / "out.h5mu", results)
    with h5py.File(tmp_path / "out.h5mu") as file:
        names = file["obs"]["_index"].asstr()[:]
        found = dict(zip(names, file["obs"]["viewfuse"]["codes"][:].tolist(), strict=True))
        sure = dict(zip(names, file["obs"]["viewfuse_confidence"][:].tolist(), strict=True))
    assert {name: label for name, label in found.items() if label >= 0} == dict(
        zip(read.ids.tolist(), range(16), strict=True)
    )
    assert {name for name, confidence in sure.items() if confidence == 1} == set(read.ids.tolist())


def write_h5ad(folder, views):
    """The modalities of `make_mudata`, a file each."""
    data = make_mudata(views)
    for name, part in data.mod.items():
        part.write_h5ad(folder / f"{name}.h5ad")
    return data


@pytest.mark.filterwarnings("ignore")
def test_h5ad_files_are_views_and_results_go_back(tmp_path, views):
    data = write_h5ad(tmp_path, views)
    files = [tmp_path / "rna.h5ad", tmp_path / "protein.h5ad"]
    expected = Views(dict(data.mod)).dense()
    assert_reads(expected, files)
    read = read_views(files)
    assert [list(names) for names in read.columns] == [["g0", "g1", "g2"], list("abcd")]
    assert [sparse.issparse(array) for array in read.arrays] == [True, False]
    assert read_views(files, use={"rna": "layers/counts"}).arrays[0].max() == expected.arrays[0].max() + 1
    one = read_views(files[1], use={"all": "X", "few": "obsm/X_pca"})
    assert one.names == ("all", "few")
    assert one.widths == (4, 2)
    assert read_views(files[1], use="obsm/X_pca").widths == (2,)
    data["protein"].to_df().to_csv(tmp_path / "protein.csv", index_label="cell")
    assert_reads(expected, [files[0], tmp_path / "protein.csv"])

    results = Results(read.ids, np.eye(20, dtype=np.float32), np.ones((20, 2), dtype=np.float32), np.arange(20))
    write_annotated(files[1], tmp_path / "out.h5ad", results)
    write_annotated(tmp_path / "out.h5ad", tmp_path / "again.h5ad", results._replace(ids=read.ids[::-1]))
    for name, ids in (("out", read.ids), ("again", read.ids[::-1])):
        back = read_h5ad(tmp_path / f"{name}.h5ad")
        assert back.obs["viewfuse"].tolist() == [str(ids.tolist().index(cell)) for cell in back.obs_names]
        assert back.obs.columns.tolist() == ["viewfuse", "viewfuse_confidence"]
        assert np.array_equal(back.X, data["protein"].X)


@pytest.mark.filterwarnings("ignore")
def test_h5ad_mistakes(tmp_path, views):
    write_h5ad(tmp_path, views)
    files = [tmp_path / "rna.h5ad", tmp_path / "protein.h5ad"]
    for asked, options, words in [
        (files, {"use": {"atac": "X"}}, r"names the views \['atac'\], but the .h5ad files are called \['rna', 'prot"),
        (files, {"use": {"rna": "obsm/X"}}, r"rna.h5ad: modality 'rna' has no 'obsm/X'; it has X, layers/counts"),
        (files[0], {"use": "obs"}, r"rna.h5ad: modality 'rna' has no 'obs'; it has X, layers/counts"),
        (files, {"id_column": "x"}, "id_column has no meaning for this kind of file"),
        (files[0], {"blocks": {"x": "g*"}}, "blocks has no meaning for this kind of file"),
        ([*files, tmp_path / "rna.h5ad"], {}, "two files are called alike"),
    ]:
        with pytest.raises(DataError, match=words):
            read_views(asked, **options)


def test_reading_asks_for_memory_first(tmp_path, frames, monkeypatch):
    frames["rna"].to_csv(tmp_path / "rna.csv", index_label="id")
    monkeypatch.setattr(memory, "available", lambda: 100)
    with pytest.raises(NotEnoughMemory, match=r"rna.csv: reading \d+ samples with columns rna 3 needs [\d,]+ bytes"):
        read_views(tmp_path / "rna.csv")
    assert len(next(read_chunks(tmp_path / "rna.csv", 2))) == 2


def test_limits_of_containers_are_seen(tmp_path):
    for path, facts in {
        "a": {"memory.max": "max", "memory.current": "5", "memory.stat": "inactive_file 1\n"},
        "a/b": {"memory.max": "1000", "memory.current": "600", "memory.stat": "anon 3\ninactive_file 50\n"},
        "memory/c": {"memory.limit_in_bytes": "90", "memory.usage_in_bytes": "60", "memory.stat": "x 1\n"},
    }.items():
        (tmp_path / path).mkdir(parents=True)
        for name, content in facts.items():
            (tmp_path / path / name).write_text(content)
    (tmp_path / "own").write_text("0::/a/b\n5:cpu,memory:/c\n")
    assert sorted(memory._left_in_groups(tmp_path, tmp_path / "own"))[:-1] == [30, 450]
