"""One small real file of each format, as the usual tools write it."""

from __future__ import annotations

import warnings
from pathlib import Path

import h5py
import mudata
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from anndata import AnnData
from scipy import io as matlab
from scipy import sparse


def write_seeds(folder: Path) -> list[Path]:
    """Write them all; their paths."""
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(12, 4)), rng.poisson(0.5, size=(12, 6)).astype(float)
    ids = [f"s{i}" for i in range(12)]
    lines = [
        ",".join(["id", "a", "b", "c", "d"]),
        *(",".join([name, *map(str, row)]) for name, row in zip(ids, one, strict=True)),
    ]
    (folder / "table.csv").write_text("\n".join(lines))
    (folder / "table.tsv").write_text("\n".join(lines).replace(",", "\t"))
    np.savez(folder / "stored.npz", view_0=one, view_1=other, ids=np.array(ids))
    np.savez_compressed(folder / "packed.npz", view_0=one, view_1=other.astype("f4"), mask=np.ones((12, 2), bool))
    sparse.save_npz(folder / "sparse.npz", sparse.csr_array(other))
    cells = np.empty(2, dtype=object)
    cells[:] = [one, sparse.csc_matrix(other)]
    matlab.savemat(folder / "cells.mat", {"X": cells, "Y": np.arange(12.0)})
    matlab.savemat(folder / "packed.mat", {"X1": one, "X2": other.astype("u1")}, do_compression=True)
    _write_hdf5_mat(folder / "new.mat", one, other)
    table = pa.table({"id": ids, **{name: one[:, c] for c, name in enumerate("abcd")}})
    pq.write_table(table, folder / "table.parquet")
    lists = pa.table({"id": pa.array(range(12)), "e": [list(row) for row in one], "f": [list(row) for row in other]})
    pq.write_table(lists, folder / "lists.parquet", compression="zstd")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages' own
        parts = {"rna": AnnData(sparse.csr_matrix(other)), "protein": AnnData(one)}
        for part in parts.values():
            part.obs_names = ids
        parts["protein"].write_h5ad(folder / "dense.h5ad")
        parts["rna"].write_h5ad(folder / "sparse.h5ad", compression="gzip")
        mudata.MuData(parts).write(folder / "cells.h5mu")
    return sorted(folder.iterdir())


def _write_hdf5_mat(path: Path, one: np.ndarray, other: np.ndarray) -> None:
    with h5py.File(path, "w", userblock_size=512) as file:
        hidden = file.create_group("#refs#")
        hidden["a"], hidden["b"] = one.T, other.T
        file["X"] = np.array([[hidden["a"].ref, hidden["b"].ref]], dtype=h5py.ref_dtype)
    with path.open("r+b") as start:
        start.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
