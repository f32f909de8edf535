"""Files written by real tools come back as they were, and bad files are refused in one line."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

from conftest import make_blobs
from viewfuse import DataError, EmptySampleWarning, SuspiciousDataWarning, Views, read_views
from viewfuse.io.readers import open_source
from viewfuse.io.readers.npz import LABELS


@pytest.fixture
def views():
    return dict(zip(("rna", "protein"), make_blobs(20, 2, widths=(3, 4), missing=0.3)[0], strict=True))


def same(one: Views, other: Views) -> bool:
    arrays = all(np.array_equal(a, b) for a, b in zip(one.dense().arrays, other.dense().arrays, strict=True))
    return (
        arrays
        and one.names == other.names
        and np.array_equal(one.mask, other.mask)
        and list(one.ids) == list(other.ids)
    )


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_npz(tmp_path, views, write):
    ids, labels = [f"p{i}" for i in range(20)], np.arange(20)
    write(tmp_path / "data.npz", **views, ids=ids, labels=labels)
    assert same(read_views(tmp_path / "data.npz"), Views(views, ids=ids))
    mask = np.ones((20, 2), dtype=bool)
    mask[3, 1] = False
    full = {name: np.nan_to_num(view) for name, view in views.items()}
    write(tmp_path / "masked.npz", **full, mask=mask)
    assert same(read_views(tmp_path / "masked.npz"), Views(full, mask=mask))


def test_numbered_views_come_in_their_order_and_alone(tmp_path):
    arrays = {f"view_{v}": np.full((3, v + 1), float(v)) for v in (10, 2, 0)}
    np.savez(tmp_path / "data.npz", **arrays, counts=np.ones((3, 2)), class_names=["a", "b"])
    said = r"1 array\(s\) are left out: 'counts' \(the views are those called view_0, view_1, ...\); store what matters"
    with pytest.warns(SuspiciousDataWarning, match=said):
        assert read_views(tmp_path / "data.npz").names == ("view_0", "view_2", "view_10")


@pytest.mark.parametrize("name", ["Y", "y", "label", "Labels", "gt", "labels", "ground_truth"])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (1, 6)])
def test_a_column_of_labels_is_no_view(tmp_path, name, shape):
    """Clusters were learned of it."""
    x, labels = np.arange(18.0).reshape(6, 3), np.arange(6) % 2
    arrays = {"X1": x, "X2": x + 1, name: labels.reshape(shape)}
    np.savez(tmp_path / "set.npz", **arrays)
    (tmp_path / "set").mkdir()
    for one, array in arrays.items():
        np.save(tmp_path / "set" / f"{one}.npy", array)
    for path in (tmp_path / "set.npz", tmp_path / "set"):
        source = open_source(path)
        assert (source.names, source.labels.tolist()) == (("X1", "X2"), labels.tolist())


def test_a_view_may_be_called_like_labels(tmp_path):
    """What holds other numbers than 0 and 1, and the only one."""
    for arrays in ({"X": np.ones((4, 3)), "Y": np.full((4, 2), 0.5)}, {"Y": np.eye(4, 1)}):
        np.savez(tmp_path / "set.npz", **arrays)
        source = open_source(tmp_path / "set.npz")
        assert (source.names, source.labels) == (tuple(arrays), None)


@pytest.mark.parametrize("name", [*LABELS, "Label", "classes", "onehot", "one_hot"])
def test_a_table_that_is_called_like_labels_is_no_view(tmp_path, name):
    """Clusters were learned of labels with one column per class; `labels` itself must be one per sample."""
    arrays = {"X1": np.arange(18.0).reshape(6, 3), name: np.eye(3)[np.arange(6) % 3]}
    np.savez(tmp_path / "set.npz", **arrays)
    (tmp_path / "set").mkdir()
    for one, array in arrays.items():
        np.save(tmp_path / "set" / f"{one}.npy", array)
    said = rf"1 array\(s\) are left out: '{name}' \(called like labels, but of shape \(6, 3\); call it otherwise if"
    for path in (tmp_path / "set.npz", tmp_path / "set"):
        if name == "labels":
            with pytest.raises(DataError, match=r"labels"):
                open_source(path)
            continue
        with pytest.warns(SuspiciousDataWarning, match=said):
            source = open_source(path)
        assert (source.names, source.labels) == (("X1",), None)


@pytest.mark.parametrize("paths", [["rna.xlsx"], {"rna": "rna.xlsx"}])
def test_kinds_of_files_that_are_not_read_are_told_with_a_name_too(tmp_path, monkeypatch, paths):
    """The one message sent to the other."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rna.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"^rna.xlsx: .xlsx files are not read; save it as CSV \(UTF-8\)"):
        open_source(paths)


@pytest.mark.parametrize(
    ("name", "array", "why"),
    [
        ("image", np.zeros((6, 2, 2)), r"of shape \(6, 2, 2\), not \(samples, columns\)"),
        ("names", np.arange(6), r"of shape \(6,\), not \(samples, columns\)"),
        ("y", np.arange(4), r"of shape \(4,\), not one label per sample"),
        ("Y", np.arange(6)[:, None], "'labels' holds the labels"),
    ],
)
def test_arrays_that_are_left_out_are_warned_of(tmp_path, name, array, why):
    labels = {} if name == "y" else {"labels": np.arange(6)[:, None]}
    np.savez(tmp_path / "set.npz", **{"X": np.ones((6, 3)), **labels, name: array, "k": 3})
    with pytest.warns(SuspiciousDataWarning, match=rf"set\.npz: 1 array\(s\) are left out: '{name}' \({why}\)"):
        source = open_source(tmp_path / "set.npz")
    assert (source.names, source.labels is None) == (("X",), name == "y")


@pytest.mark.slow
def test_npz_of_the_shared_sets(shared_data):
    for path in sorted(shared_data.glob("*.npz")):
        if "masks" not in path.name:
            with np.load(path) as data:
                views = {name: data[name] for name in data.files if name.startswith("view_")}
                mask = data["mask"].astype(bool) if "mask" in data.files else None
                assert same(read_views(path), Views(views, mask=mask, ids=data["ids"] if "ids" in data.files else None))


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
@pytest.mark.parametrize("tool", ["pandas", "polars"])
def test_text_files_are_joined_by_id(tmp_path, views, ending, tool):
    delimiter = {".csv": ",", ".tsv": "\t"}[ending]
    frames, paths = {}, []
    for shift, (name, view) in enumerate(views.items()):
        columns, ids = [f"{name}{c}" for c in range(view.shape[1])], [f"p{i + 5 * shift}" for i in range(20)]
        frames[name] = pd.DataFrame(view, columns=columns, index=ids).dropna()
        paths.append(tmp_path / f"{name}{ending}")
        if tool == "pandas":
            frames[name].to_csv(paths[-1], sep=delimiter, index_label="patient")
        else:
            table = {"patient": frames[name].index.tolist(), **{c: frames[name][c].to_numpy() for c in columns}}
            pl.DataFrame(table).write_csv(paths[-1], separator=delimiter)
    read = read_views(paths, id_column="patient")
    assert same(read, Views(frames))
    assert list(read.columns[0]) == ["rna0", "rna1", "rna2"]


def test_one_text_file_with_quotes_and_a_mark(tmp_path):
    (tmp_path / "a.csv").write_bytes('\ufeffid,x,y\r\n"Müller, A",1,2e3\r\n7,NA,\r\n\r\n8,0,-1\r\n'.encode())
    with pytest.warns(EmptySampleWarning, match="sample '7' has no view at all and is left out"):
        assert read_views(tmp_path / "a.csv").ids.tolist() == ["Müller, A", "8"]
    (tmp_path / "b.csv").write_text("id,z\n7,3\n")
    read = read_views([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert read.ids.tolist() == ["Müller, A", "7", "8"]
    assert read.mask.tolist() == [[True, False], [False, True], [True, False]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "needs a header"),
        ("id,x\n", "has a header but no rows; it needs at least one row"),
        ("id\na\n", "needs a header"),
        ("id,x\na,1\na,2\n", "id 'a' appears twice, in data rows 1 and 2"),
        ("id,x\na,1\n,2\n", "data row 2 has no id"),
        ("id,x\na,1,5\n", "data row 1 has 3 cells instead of 2"),
        ("id,x,stage\na,1,II\nb,1,2\n", "id 'a', column 'stage': 'II' is not a number"),
        ("id,x,y\na,1,inf\nb,1,2\n", r"view 'bad', row 0 \(id 'a'\), column 1.*the value is inf"),
        ("id,x\na,inf\n", "the value is inf"),
        ('id,x\na,"1\n', "cannot be read as text"),
        (b"id,x\n\xff\xfe,1\n", "cannot be read as text"),
    ],
)  # fmt: skip
def test_bad_text_is_refused(tmp_path, content, words):
    path = tmp_path / "bad.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=words):
        read_views(path)
    with pytest.raises(
        DataError, match=r"has no column 'patient'|needs a header|has a header but no rows|cannot be read as text"
    ):
        read_views(path, id_column="patient")


@pytest.mark.parametrize("rows", ["a,1,2,\nb,4,5,\n", "a,1,2,3\nb,4,5,6\n", "7,1,2,\n\n8,4,5,6\n"])
def test_ids_without_a_name_in_the_header_are_refused(tmp_path, rows):
    """R's write.table leaves it out; with an empty last column ids were read as such, and all others were shifted."""
    (tmp_path / "a.csv").write_text(f"x,y,z\n{rows}")
    said = r"a\.csv: all rows have 4 cells, but the header has 3, so the ids may lack a name; name the column of ids"
    with pytest.raises(DataError, match=said):
        read_views(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("id,y,z\na,1,2,\nb,4,5,\n", {}),
        ("x,y,z\na,1,2,\nb,4,5,\n", {"id_column": "x"}),
        ("x,y,z,\na,1,2,\nb,4,5,\n", {}),
        ("x,y,z\na,1,2,\nb,4,5\n", {}),
        (",y,z\na,1,2,\nb,4,5,\n", {}),
    ],
)
def test_empty_cells_at_the_end_of_lines_are_no_column(tmp_path, text, options):
    (tmp_path / "a.csv").write_text(text)
    read = read_views(tmp_path / "a.csv", **options)
    assert (read.ids.tolist(), read.columns) == (["a", "b"], (["y", "z"],))


@pytest.mark.parametrize("paths", ["nowhere.npz", [], ["a.csv", "b.npz"]])
def test_other_files_are_refused(tmp_path, paths, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("id,x\n1,2\n")
    (tmp_path / "b.npz").write_text("")
    with pytest.raises(DataError, match=r"is no file|no file was given|cannot be read together; give one .npz"):
        read_views(paths)


def test_a_folder_of_arrays_and_tables_is_not_read_in_part(tmp_path):
    np.save(tmp_path / "b.npy", np.ones((3, 2)))
    (tmp_path / "a.csv").write_text("id,x\ns1,1\ns2,2\n")
    with pytest.raises(DataError, match=r"holds arrays and tables, such as b.npy and a.csv; give a folder of one kind"):
        read_views(tmp_path)


def test_a_folder_that_is_called_like_an_array_is_not_left_out(tmp_path):
    np.save(tmp_path / "b.npy", np.ones((3, 2)))
    (tmp_path / "a.npy").mkdir()
    with pytest.raises(DataError, match=r"a\.npy is no file; leave only arrays in the folder"):
        read_views(tmp_path)
