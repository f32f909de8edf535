"""Files, sources and answers beside what was written out by hand: whole lines, orders, bounds that are just met."""

from __future__ import annotations

import asyncio
import csv
import io
import math
import struct
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pyarrow import parquet
from scipy import sparse

from bad_files.corpus import element, version_5
from viewfuse.data.filling import EmptyCells
from viewfuse.data.sparse_tables import check_sparse
from viewfuse.data.views import Views
from viewfuse.errors import DataError, EmptyCellsWarning, EmptySampleWarning, SettingError, SuspiciousDataWarning
from viewfuse.io import formulas, source, writers
from viewfuse.io import safety as file_limits
from viewfuse.io import safety as spool
from viewfuse.io.labels import read_labels
from viewfuse.io.readers import mat, npz, text
from viewfuse.io.source import FileSource, FileView, alike, split_by_prefix
from viewfuse.serve import inference, middleware, worker
from viewfuse.serve.limits import Busy, Limits, TooLarge
from viewfuse.serve.middleware import Metrics
from viewfuse.utils.settings import named_values

HERE = Path("here.csv")


def a_part(ids, chances, mask, uncertain, far):
    arrays, chances = {"rna": np.ones((len(ids), 1)), "protein": np.ones((len(ids), 1))}, np.array(chances, np.float32)
    novelty, outlier = np.arange(len(ids)) / 3, np.array(far)
    labels = np.where(outlier, -1, chances.argmax(axis=1))
    judged = writers.Judged(labels, chances, np.array(uncertain), novelty, outlier)
    return Views(arrays, ids=ids, mask=mask), judged


PARTS = [
    a_part(["b", "=a"], [[0.3, 0.7], [0.49996, 0.40004]], [[1, 1], [0, 1]], [False, True], [False, True]),
    a_part(["c"], [[0.5, 0.5]], [[1, 0]], [True], [False]),
]


def test_labels_and_predictions_line_by_line(tmp_path):
    writers.write_labels(tmp_path / "labels.csv", *PARTS[0])
    header = "id,label,confidence,uncertain,novelty,outlier,views_present"
    assert (tmp_path / "labels.csv").read_text().splitlines() == [
        header, "b,1,0.7000,0,0.0000,0,rna protein", "'=a,-1,0.5000,1,0.3333,1,protein",
    ]  # fmt: skip
    far = [np.array([False, True]), np.array([True])]
    parts = [(views, judged._replace(far=one)) for (views, judged), one in zip(PARTS, far, strict=True)]
    writers.write_predictions(tmp_path / "predictions.csv", parts)
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        f"{header},out_of_range", "b,1,0.7000,0,0.0000,0,rna protein,0", "'=a,-1,0.5000,1,0.3333,1,protein,1",
        "c,0,0.5000,1,0.0000,0,rna,1",
    ]  # fmt: skip
    writers.write_history(tmp_path / "h.csv", {"epoch": [1, 2], "total": [0.5, 0.25]})
    assert (tmp_path / "h.csv").read_text().splitlines() == ["epoch,total", "1,0.5", "2,0.25"]
    sheet = writers.Sheet(("a", "b"), [(1, 2.0), ("x", math.pi)], ".3g")
    writers.write_sheets(tmp_path, {"p.csv": sheet, "q.csv": sheet._replace(digits=writers.Sheet([], []).digits)})
    assert (tmp_path / "p.csv").read_text().splitlines() == ["a,b", "1,2", "x,3.14"]
    assert (tmp_path / "q.csv").read_text().splitlines() == ["a,b", "1,2.0000", "x,3.1416"]


def test_embeddings_come_in_parts_and_stay_with_their_ids(tmp_path):
    parts = [(PARTS[0][0], np.array([[1.5, 2], [0.1, -4]], np.float32)), (PARTS[1][0], np.array([[5, 6]], np.float32))]
    turned = [(views, np.asfortranarray(part, dtype=np.float64)) for views, part in parts]
    writers.write_embedding(tmp_path / "turned.npy", 3, 2, turned)
    for ending in ("csv", "npy", "parquet"):
        writers.write_embedding(tmp_path / f"e.{ending}", 3, 2, parts)
    assert (tmp_path / "e.csv").read_text().splitlines() == ["id,z0,z1", "b,1.5,2.0", "'=a,0.1,-4.0", "c,5.0,6.0"]
    expected = np.array([[1.5, 2], [0.1, -4], [5, 6]], np.float32)
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), expected)
    np.testing.assert_array_equal(np.load(tmp_path / "turned.npy"), expected)
    found = parquet.read_table(tmp_path / "e.parquet").to_pydict()
    assert found["id"] == ["b", "=a", "c"]
    np.testing.assert_array_equal(np.float32([found["z0"], found["z1"]]).T, expected)


def test_views_are_written_once_with_a_header_and_all_parts(tmp_path):
    parts = [Views({"a/b": np.array([[1.0, 2], [3, 4]]), "A_b": sparse.csr_array([[0.0], [7]])}, ids=[3, 1]),
             Views({"a/b": np.array([[5.0, 6]]), "A_b": np.array([[8.0]])}, ids=[2])]  # fmt: skip
    writers.write_views(tmp_path, ["a/b", "A_b"], parts)
    assert (tmp_path / "a_b.csv").read_text().splitlines() == ["id,0,1", "3,1.0,2.0", "1,3.0,4.0", "2,5.0,6.0"]
    assert (tmp_path / "A_b_2.csv").read_text().splitlines() == ["id,0", "3,0.0", "1,7.0", "2,8.0"]
    assert writers.file_names(["..", "x", "X", "x", "é.1"], ".csv") == [
        "view.csv",
        "x.csv",
        "X_2.csv",
        "x_3.csv",
        "é.1.csv",
    ]
    assert writers.as_json({"a": [1, math.nan, (math.inf, True)]}) == '{"a": [1, "nan", ["inf", true]]}'


@pytest.mark.parametrize(
    ("cell", "written"),
    [("=1", "'=1"), ("-1", "-1"), ("-a", "'-a"), ("+1e5", "+1e5"), ("a=1", "a=1"), ("a;=1", "'a;'=1"),
     ("a, -b", "'a, '-b"), ("'=1", "''=1"), ("'a", "'a"), ("\\x", "\\x"), ("\uff20x", "'\uff20x"),
     ("\tx", "'\tx"), (" =1", "' =1"), ("a|@b", "'a|'@b"), (7, 7), ("", "")],
)  # fmt: skip
def test_cells_that_a_spreadsheet_would_run_are_marked(cell, written):
    assert formulas.marked(cell) == written
    if isinstance(cell, str):
        assert formulas.unmarked(written) == cell
        file = io.StringIO()
        formulas.write_harmless(file, [(cell, "b")])
        assert next(csv.reader(io.StringIO(file.getvalue(), newline=""))) == [written, "b"]


def names(*given):
    return dict.fromkeys(given)


@pytest.mark.parametrize(
    ("common", "one", "other", "match"),
    [(0, 5, 5, False), (1, 20, 900, True), (1, 21, 900, False), (2, 40, 40, True), (2, 41, 900, False),
     (19, 400, 900, False), (20, 400, 900, True), (20, 9_000, 9_000, True), (19, 9_000, 9_000, False)],
)  # fmt: skip
def test_tables_match_from_a_twentieth_or_twenty_ids_on(common, one, other, match):
    first, second = names(*range(one)), names(*range(one - common, one - common + other))
    assert source._match(first, second) == source._match(second, first) == match


def file_view(name, ids, columns=range(1), path=None):
    values = np.arange(len(ids) * len(columns), dtype=float).reshape(len(ids), len(columns))
    return FileView(Path(path or f"{name}.csv"), name, values, columns, ids)


def test_tables_that_do_not_belong_together_are_told_with_examples():
    a, b = file_view("a", ["p1", "p2", "p3", "p4"]), file_view("b", ["q1", "p9"], ["x", "y"])
    with pytest.raises(
        DataError, match=r"a\.csv and b\.csv share no id: 'p1', 'p2', 'p3', \.\.\. against 'q1', 'p9'; sp"
    ):
        source.check_matching([a, b])
    turned = file_view("t", ["g1", "g2"], ["p2 ", "p3", "z"])
    with pytest.raises(DataError, match=r"t\.csv: 2 of the names of its 3 columns .* transpose=\['t'\]"):
        source.check_matching([a, file_view("c", ["p1", "p2"]), turned])
    with pytest.raises(DataError, match="2 of them differ only in how they are written"):
        source.check_matching([file_view("a", [1, 2]), file_view("b", ["01", "02"])])
    source.check_matching([a, file_view("d", ["p4", "x"])])
    source.check_matching([a, file_view("e", ["q"], path="a.csv")])  # of one file


def test_ids_are_joined_in_the_order_of_their_first_appearance():
    views = [file_view("a", ["c", "a", "b"], range(2)), file_view("b", ["d", "a"])]
    found = FileSource(views, order=["b", "zz", "d"]).read()
    assert found.ids.tolist() == ["b", "d", "c", "a"]
    assert found.mask.tolist() == [[True, False], [False, True], [True, False], [True, True]]
    assert found.arrays[0].tolist() == [[4, 5], [0, 0], [0, 1], [2, 3]]
    assert found.arrays[1].tolist() == [[0], [0], [0], [1]]
    chunks = list(FileSource(views).chunks(3))
    assert [chunk.ids.tolist() for chunk in chunks] == [["c", "a", "b"], ["d"]]
    assert chunks[1].mask.tolist() == [[False, True]]
    assert alike([[1, 2], ["2 ", "e\u0301"]]) == [["1", "2"], ["2", "é"]]
    assert alike([[1], [2]]) == [[1], [2]]


def test_samples_without_a_view_are_left_out_and_told():
    values = np.array([[1.0, math.nan], [math.nan, math.nan], [3, 4], [math.nan, math.nan]])
    view = FileView(HERE, "a", values, range(2))
    other = FileView(HERE, "b", np.array([[math.nan], [math.nan], [math.nan], [5.0]]), range(1))
    with pytest.warns(EmptySampleWarning, match=r"here\.csv: sample 'y' has no view at all and is left out"):
        found = FileSource([view, other], ids=np.array(list("xyzw"))).read()
    assert found.ids.tolist() == ["x", "z", "w"]
    mask = np.array([[1, 1], [1, 1], [0, 1], [1, 1]])
    with pytest.warns(EmptySampleWarning, match="2 samples, such as 'y', have no view at all and are left out"):
        found = FileSource([view, other], ids=np.array(list("xyzw")), mask=mask).read()
    assert found.ids.tolist() == ["x", "w"]


def test_memory_is_asked_for_by_what_reading_takes():
    plain = file_view("a", ["p", "q", "r"], range(5))
    assert FileSource([plain])._bytes_needed(0) == 3 * 5 * (8 + 4 + 8)
    with pytest.raises(DataError, match="view 'a' has 5 columns, but 4 names of columns; give as many"):
        FileSource([FileView(HERE, "a", np.zeros((3, 5), np.float32), range(4))])
    nameless = FileView(HERE, "a", np.zeros((3, 5), np.float32), range(5))
    assert FileSource([nameless])._bytes_needed(0) == 0
    wide = FileView(HERE, "a", np.zeros((3, 5)), range(5))
    assert FileSource([wide])._bytes_needed(0) == 3 * 5 * (8 + 4)
    joined = FileView(HERE, "a", np.zeros((3, 5), np.float32), range(5), ["p", "q", "r"])
    assert FileSource([joined])._bytes_needed(0) == 3 * 5 * (4 + 4)
    matrix = sparse.csr_array(np.eye(3, dtype=np.float32))
    assert FileSource([FileView(HERE, "a", matrix, range(3))])._bytes_needed(0) == 2 * (12 + 12 + 16) + 4 * 3


def test_a_turned_table_has_its_columns_as_samples():
    found = file_view("a", ["g1", "g2"], ["p", "q", "r"]).turned()
    assert (found.ids, found.columns) == (["p", "q", "r"], ["g1", "g2"])
    assert found.values.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(("most", "on_disk"), [(8 * 15, False), (8 * 15 - 1, True), (20, True)])
def test_blocks_of_rows_are_one_table_in_memory_or_on_disk(monkeypatch, most, on_disk):
    monkeypatch.setattr(spool, "_IN_MEMORY", most)
    rows = np.arange(15.0).reshape(5, 3)
    kept = spool.Spool(3)
    for block in (rows[:1], rows[1:4].astype(np.float32), rows[4:]):
        kept.add(block)
    assert isinstance(kept.table(), spool.OnDisk) == on_disk
    np.testing.assert_array_equal(kept.table(), rows)
    assert spool.Spool(3).table().shape == (0, 3)


def test_a_wide_table_is_cut_by_the_views_that_are_known():
    values = np.arange(12.0).reshape(2, 6)
    wide = FileView(HERE, "wide", values, ["b.x", "a.y", "b.z", "a.x.1", "a.z", "a.w"], ["q", "p"])
    found = split_by_prefix(FileSource([wide]), ["a", "b", "c"])
    assert found.names == ("a", "b")
    views = found.read()
    assert views.arrays[0].tolist() == values[:, [1, 3, 4, 5]].tolist()
    assert views.arrays[1].tolist() == values[:, [0, 2]].tolist()
    assert views.columns == (["a.y", "a.x.1", "a.z", "a.w"], ["b.x", "b.z"])
    assert views.ids.tolist() == ["q", "p"]
    beside = FileView(HERE, "wide", values, ["b.x", "b.y", "a.1", "a.2", "a.3", "b.z"], ["q", "p"])
    a, b = split_by_prefix(FileSource([beside]), ["a", "b"]).read().arrays
    assert (a.tolist(), b.tolist()) == (values[:, 2:5].tolist(), values[:, [0, 1, 5]].tolist())
    assert split_by_prefix(FileSource([wide]), ["a"]).names == ("wide",)
    assert split_by_prefix(FileSource([wide]), ["a", "b", "wide"]).names == ("wide",)


@pytest.mark.parametrize(
    ("shapes", "labels", "n"),
    [([(9, 4), (9, 5)], None, 9), ([(4, 9), (5, 9)], None, 9), ([(9, 4), (5, 9)], None, 9), ([(4, 9), (4, 9)], None, 4),
     ([(4, 9), (4, 9)], 9, 9), ([(4, 9), (4, 9)], 7, 4), ([(4, 9), (9, 4)], None, None), ([(4, 9), (9, 4)], 4, 4)],
)  # fmt: skip
def test_how_many_samples_a_matlab_file_has(shapes, labels, n):
    views = {f"X{v}": np.zeros(shape) for v, shape in enumerate(shapes)}
    labels = None if labels is None else np.zeros(labels)
    if n is None:
        with pytest.raises(DataError, match=r"do not tell how many samples there are \(X0 \(4, 9\), X1 \(9, 4\)\)"):
            mat._count_samples(HERE, views, labels)
    else:
        assert mat._count_samples(HERE, views, labels) == n


def test_views_of_a_matlab_file_stand_upright():
    rows = np.arange(36.0).reshape(4, 9)
    square = np.arange(81.0).reshape(9, 9)
    found = mat._upright(HERE, {"a": rows, "s": square, "c": sparse.csc_array(rows)}, 9)
    assert (found["a"].shape, found["s"].tolist()) == ((9, 4), square.T.tolist())
    assert (found["c"].format, found["c"].shape) == ("csr", (9, 4))
    found = mat._upright(HERE, {"a": rows.T, "s": square}, 9)
    assert (found["a"].tolist(), found["s"].tolist()) == (rows.T.tolist(), square.tolist())
    assert mat._upright(HERE, {"s": square}, 9)["s"].tolist() == square.tolist()
    found = mat._upright(HERE, {"a": rows, "b": rows.T + 1, "s": square}, 9)  # one lies, one stands
    assert [found[name].tolist() for name in "abs"] == [rows.T.tolist(), (rows.T + 1).tolist(), square.tolist()]


def test_views_and_labels_of_a_matlab_file_are_picked_by_their_names():
    matrix, vector = np.zeros((3, 2)), np.array([[1.0], [2], [3]])
    assert list(mat._pick_views(HERE, {"X10": matrix, "X2": matrix, "X1": vector, "y1": matrix})) == ["X1", "X2", "X10"]
    assert list(mat._pick_views(HERE, {"fea": [matrix, matrix], "data": [matrix]})) == ["view_0"]
    assert list(mat._pick_views(HERE, {"odd": [matrix, vector], "X": matrix})) == ["view_0", "view_1"]
    assert list(mat._pick_views(HERE, {"data": matrix, "X": matrix})) == ["X"]
    assert mat._labels({"y": np.zeros((3, 1)), "gt": vector}).tolist() == [1, 2, 3]
    assert mat._labels({"Y": [vector]}).tolist() == [1, 2, 3]
    assert mat._labels({"Y": matrix, "gnd": np.zeros((1, 1))}) is None
    assert npz.in_order(["view_10", "view_9", "view_0"]) == ["view_0", "view_9", "view_10"]


@pytest.mark.parametrize(
    ("shape", "kind", "size", "fine"),
    [((2, 3), 6, 6, True), ((2, 3), 6, 5, False), ((2, 3), 1, 48, True), ((2, 3), 1, 47, False), ((9, 2), 5, 8, True),
     ((9, 2), 5, 7, False), ((1_000_000, 2), 5, 8, True), ((1_000_001, 2), 5, 8, False), ((2, 2, 2), 5, 99, False),
     ((-2, -3), 6, 99, False), ((2, 3), 17, 0, True)],
)  # fmt: skip
def test_shapes_that_a_matlab_file_can_hold(shape, kind, size, fine):
    if fine:
        mat._check_shape(HERE, shape, kind, size)
    else:
        with pytest.raises(DataError, match="a matrix claims the shape"):
            mat._check_shape(HERE, shape, kind, size)


@pytest.mark.parametrize(
    ("numbers", "labels"),
    [([0, 1, 2], True), ([1, 2, 3], True), ([2, 3, 4], False), ([0, 1, 3], False),
     ([400, 401, 403, 404, 405, 406], True), ([9, 8, 7, 6, 5, 4], True), ([9, 8, 7, 6, 5], False),
     ([1, 2, 2, 3, 4, 5, 6], False), ([5, 4, 6, 7, 8, 9], False)],
)  # fmt: skip
def test_numbers_that_may_be_names_of_columns(numbers, labels):
    assert text._are_labels(numbers) == labels


def test_blocks_take_columns_in_the_order_of_the_file_or_of_the_list():
    columns = ["rna_2", "x", "rna_1", "RNA_3"]
    assert text.pick_columns(HERE, columns, {"a": "rna_*", "b": ["x"]}) == {"a": ["rna_2", "rna_1"], "b": ["x"]}
    assert text.pick_columns(HERE, columns, {"a": ["rna_1", "rna_2"]}) == {"a": ["rna_1", "rna_2"]}
    with pytest.raises(DataError, match="column 'rna_2' belongs to blocks 'a' and 'b'"):
        text.pick_columns(HERE, columns, {"a": "rna_*", "b": "*_2"})


def test_a_file_may_become_a_hundred_times_its_size_or_sixteen_megabytes(tmp_path):
    assert [file_limits.most_bytes(n) for n in (0, 160_000, 160_001)] == [16_000_000, 16_000_000, 16_000_100]
    (tmp_path / "f").write_bytes(b"x")
    allowance = file_limits.Allowance(tmp_path / "f", "do this")
    allowance.take(9_000_000)
    allowance.take(7_000_000)
    with pytest.raises(DataError, match="from 1 to 16,000,001 bytes or more; if that is right, do this"):
        allowance.take(1)
    assert file_limits.bytes_of((3, 5), np.dtype(np.float32)) == 60


@pytest.mark.parametrize("kind", ["csr", "csc"])
@pytest.mark.parametrize(
    ("indptr", "indices", "fine"),
    [([0, 1, 1, 3], [1, 0, 1], True), ([0, 1, 1, 3], [1, 0, 2], False), ([0, 1, 1, 3], [1, 0, -1], False),
     ([1, 1, 1, 3], [1, 0, 1], False), ([0, 2, 1, 3], [1, 0, 1], False), ([0, 1, 1, 4], [1, 0, 1], False),
     ([0, 1, 3], [1, 0, 1], False), ([0, 0, 0, 0], [], True)],
)  # fmt: skip
def test_sparse_matrices_of_files_stay_within_their_shape(kind, indptr, indices, fine):
    shape = (3, 2) if kind == "csr" else (2, 3)
    matrix = SimpleNamespace(shape=shape, format=kind, indptr=indptr, indices=indices, data=np.ones(len(indices)))
    if fine:
        check_sparse("w", matrix)
    else:
        with pytest.raises(DataError, match="w is a sparse matrix whose indices lead out of it"):
            check_sparse("w", matrix)


def test_results_stand_beside_the_cells_of_their_names():
    results = writers.Results(
        np.array([30, 10, 20]),
        np.array([[0.2, 0.8], [0.9, 0.1], [0.4, 0.6]], np.float32),
        np.arange(6, dtype="f4").reshape(3, 2),
        np.array([1, 0, -1]),
    )
    rows = writers._rows(["10", "x", "20", "30"], results.ids)
    assert rows.tolist() == [1, -1, 2, 0]
    found, tables = writers._by_cell(rows, results, "k")
    assert found["k"].codes.tolist() == [0, -1, -1, 1]  # "20" is an outlier
    assert found["k"].categories.tolist() == ["0", "1"]
    np.testing.assert_array_equal(found["k_confidence"], np.float32([0.9, math.nan, 0.6, 0.8]))
    assert list(tables) == ["X_k"]
    np.testing.assert_array_equal(tables["X_k"], [[2, 3], [math.nan] * 2, [4, 5], [0, 1]])


def test_limits_let_pass_what_just_meets_them():
    limits = Limits(rows=3, bytes=10)
    for check, most in ((limits.check_rows, 3), (limits.check_body, 10), (limits.check_answer, 10)):
        check(most)
        with pytest.raises(TooLarge):
            check(most + 1)
    assert Limits() == Limits(10_000, 32_000_000, 64, 30.0)


def test_tables_of_labels(tmp_path):
    """Empty labels are none, ids are without the mark of text, and other files say what they lack."""
    table = tmp_path / "known.csv"
    table.write_text("id,label,kind\n'=a,x,1\nb,,2\nc,y z,\n")
    assert read_labels(table) == {"=a": "x", "c": "y z"}
    assert read_labels(table, "kind") == {"=a": "1", "b": "2"}
    table.write_text("patient,label,other\na,x,u\nb,y,v\n")
    assert read_labels(table) == read_labels(table, id_column="nowhere") == {"a": "x", "b": "y"}
    assert read_labels(table, id_column="other") == {"u": "x", "v": "y"}
    np.savez(tmp_path / "set.npz", view_0=np.eye(2), labels=np.array([7, 8]), ids=np.array(["u", "v"]))
    (tmp_path / "set.npz").rename(tmp_path / "set.NPZ")
    assert read_labels(tmp_path / "set.NPZ") == {"u": "7", "v": "8"}
    np.savez(tmp_path / "bare.npz", view_0=np.eye(2))
    for lines, said in (
        ("id,a,b,c,d\n", "the columns 'id', 'a', 'b', 'c', 'd'; it needs the columns id and label"),
        ("id,a,b,c,d,e\n", "'d', ...; it needs"), ("label,x\n", "'label', 'x'; it needs"),
        ("id,label\na,1\na,2\n", "twice"), ("id,label\n,1\n", "id"),
    ):  # fmt: skip
        table.write_text(lines)
        with pytest.raises(DataError, match=said):
            read_labels(table)
    for path, said in ((tmp_path / "bare.npz", "holds no labels"), (tmp_path / "gone", "is no file"),
                       (Path("/dev/null"), "is no file")):  # fmt: skip
        with pytest.raises(DataError, match=said):
            read_labels(path)


def test_counts_of_seconds_are_cumulative():
    metrics = Metrics(frozenset({"/predict"}))
    for seconds in (0.005, 0.0051, 0.3, 31.0):
        metrics.count("/predict", 200, seconds)
    metrics.count("/x", 404, 0.2)
    metrics.count_rows(
        3, {"labels": {"0": 2, "7": 1}, "missing": {'a "b"': 1, "": 2}, "uncertain": 1, "confidence": 2.5}
    )
    metrics.count_rows(4, {"labels": {"7": 4}, "missing": {"": 4}, "uncertain": 2, "confidence": 3.25, "novel": 1})
    lines = metrics.text(2, 64, "v1").splitlines()
    counts = [line.rsplit(" ", 1)[1] for line in lines if 'bucket{path="/predict"' in line]
    assert counts == ["1", "2", "2", "2", "2", "2", "3", "3", "3", "3", "3", "3", "4"]
    for line in (
        'viewfuse_request_seconds_bucket{path="/predict",le="0.5"} 3',
        'viewfuse_request_seconds_bucket{path="/predict",le="30.0"} 3',
        'viewfuse_request_seconds_sum{path="/predict"} 31.310100',
        'viewfuse_request_seconds_count{path="/predict"} 4',
        'viewfuse_request_seconds_sum{path="other"} 0.200000',
        'viewfuse_requests_total{path="/predict",status="200"} 4',
        'viewfuse_predicted_total{label="0"} 2', 'viewfuse_predicted_total{label="7"} 5',
        'viewfuse_missing_total{views="a \\"b\\""} 1', 'viewfuse_missing_total{views=""} 6',
        "viewfuse_uncertain_total 3", "viewfuse_confidence_total 5.75", "viewfuse_novel_total 1",
        "viewfuse_rows_total 7", "viewfuse_places_taken 2", "viewfuse_places 64",
    ):  # fmt: skip
        assert line in lines
    metrics.count_rows(2_000_000, {"uncertain": 2_000_000})
    assert "viewfuse_uncertain_total 2000003" in metrics.text(2, 64, "v1").splitlines()  # a rate needs every digit


def test_patterns_that_are_known_are_counted_as_such_when_there_are_many():
    metrics = Metrics(frozenset())
    for _ in range(2):
        metrics.count_rows(64, {"missing": {f"a\\b\n{i}": 1 for i in range(64)}})
    lines = [line for line in metrics.text(0, 1, "").splitlines() if line.startswith("viewfuse_missing_total{")]
    assert sorted(lines) == sorted(f'viewfuse_missing_total{{views="a\\\\b\\n{i}"}} 2' for i in range(64))


def test_who_may_pass_the_gate():
    here = middleware.Middleware(None, metrics=Metrics(frozenset()), token=None, host="127.0.0.1")
    for name, may_pass in ((b"127.0.0.1:80", True), (b"[::1]:8000", True), (b"[::1]", True), (b"LOCALHOST", True),
                           (b"", False), (b"localhost:80:80", False), (b"localhost.x", False)):  # fmt: skip
        assert (here._refusal({"headers": [(b"host", name)], "path": "/"}) is None) == may_pass, name
    addresses = ("::1", "127.9.9.9", "0.0.0.0", "10.127.0.1")
    assert [middleware.is_local(address) for address in addresses] == [True, True, False, False]
    assert middleware._is_known(b"Bearer  t ", "t")
    assert not middleware._is_known(b"Bearer tt", "t")
    assert middleware._is_known(b"Basic YTp0OnQ=", "t:t")  # a:t:t
    assert not middleware._is_known(b"Basic dDp4", "t")  # the token as the name


def test_answers_say_each_thing_of_its_own_sample():
    views = Views({"a": np.zeros((2, 2)), "b": np.ones((2, 1))}, ids=["q", "p"], mask=[[1, 1], [1, 0]])
    chances = np.array([[0.1, 0.5, 0.4], [0.3, 0.3, 0.4]], np.float32)
    cells = EmptyCells("a", 2, ["x", "y"], np.array([1, 0]))

    class Model:
        cluster_centers_ = np.zeros((3, 2))
        cluster_names_ = writers.NO_NAMES

        def complete(self, given):
            return given.replace(columns=(["x", ("y", 1)], range(1))), [cells]

        def judge(self, given):
            return writers.Judged(np.array([1, -1]), chances, np.array([False, True]), np.array([0.25, 2 / 3]),
                                  np.array([False, True]), np.array([True, False]))  # fmt: skip

        def impute(self, given):
            return given.replace(arrays=(np.float32([[1, 2], [3, 0.1]]), np.float32([[5], [6]])))

    with pytest.warns(EmptyCellsWarning, match=r"a: 1 cell \(25.0%\) in columns 'x' \(1\)"):
        found = inference.predict(Model(), views, Limits(bytes=72))
    assert found == {
        "ids": ["q", "p"], "labels": [1, -1], "confidence": [0.5, 0.4], "uncertain": [False, True],
        "novelty": [0.25, 0.6667], "outlier": [False, True], "out_of_range": [True, False],
        "probabilities": [[0.1, 0.5, 0.4], [0.3, 0.3, 0.4]],
        "filled_cells": {"a": cells.facts()},
    }  # fmt: skip
    with pytest.raises(TooLarge, match="about 72 bytes"):
        inference.predict(Model(), views, Limits(bytes=71))
    with pytest.warns(EmptyCellsWarning, match=r"a: 1 cell \(25.0%\) in columns 'x' \(1\)"):
        whole = inference.impute(Model(), views, Limits(bytes=72))
    assert whole["views"] == {
        "a": {"columns": ["x", "('y', 1)"], "values": [[1.0, 2.0], [3.0, 0.1]], "imputed": [False, False]},
        "b": {"columns": [0], "values": [[5.0], [6.0]], "imputed": [False, True]},
    }
    with pytest.raises(TooLarge, match="about 72 bytes"):
        inference.impute(Model(), views, Limits(bytes=71))


def test_the_gate_measures_how_long_an_answer_takes():
    metrics, sent = Metrics(frozenset({"/x"})), []

    async def answer(scope, receive, send):
        await asyncio.sleep(0.002)
        await send({"type": "http.response.start", "status": 418, "headers": [(b"own", b"1")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(message):
        sent.append(message)

    asyncio.run(
        middleware.Middleware(answer, metrics=metrics, token=None, host="0.0.0.0")(
            {"type": "http", "path": "/x", "headers": []}, None, send
        )
    )
    found = dict(line.rsplit(" ", 1) for line in metrics.text(0, 1, "").splitlines())
    assert found['viewfuse_requests_total{path="/x",status="418"}'] == "1"
    assert 0.001 < float(found['viewfuse_request_seconds_sum{path="/x"}']) < 60
    assert (b"own", b"1") in sent[0]["headers"]
    assert len(sent[0]["headers"]) == 1 + len(middleware._HEADERS)
    assert "headers" not in sent[1]


def test_places_are_given_back_and_warnings_of_the_package_are_told_once(caplog):
    def work():
        warnings.warn("ours", SuspiciousDataWarning, stacklevel=1)
        warnings.warn("ours", SuspiciousDataWarning, stacklevel=1)
        warnings.warn("theirs", UserWarning, stacklevel=1)
        return 7

    assert inference._recorded(work) == (7, ["ours"])
    assert [record.message for record in caplog.records] == ["UserWarning: theirs"]

    async def full() -> None:
        queue = worker.Queue(lambda: None, 2, 2)
        async with queue.place(), queue.place():
            assert queue.taken == 2
            with pytest.raises(Busy, match="all 2 places are taken"):
                async with queue.place():
                    pass
        assert queue.taken == 0

    asyncio.run(full())


def test_blocks_in_addresses_are_pairs():
    assert named_values("block", ["a=x_*", "b=y=z"]) == {"a": "x_*", "b": "y=z"}
    assert named_values("block", []) is None
    for wrong in (["a"], ["=x"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(DataError, match="write NAME=VALUE, each name once"):
            named_values("block", wrong)


def test_samples_that_a_model_places_keep_all_their_digits():
    """Beside a large offset; only what is read for a fit is measured from it, in 32-bit floats."""
    table = np.stack([1e9 + np.arange(24.0) ** 2 / 8, np.arange(24.0)], axis=1)
    files = FileSource([FileView(HERE, "a", table, range(2))])
    for size in (11, 12, 24, 99):
        chunks = list(files.chunks(size))
        assert [len(chunk) for chunk in chunks] == [min(size, 24 - first) for first in range(0, 24, size)]
        assert np.array_equal(np.concatenate([chunk.arrays[0] for chunk in chunks]), table)
        assert [chunk.offsets for chunk in chunks] == [(0.0,)] * len(chunks)
    assert np.array_equal(files.read(placed=True).arrays[0], table)
    fit = files.read()
    assert (fit.arrays[0].dtype, fit.offsets[0][0] > 9e8, fit.offsets[0][1]) == (np.float32, True, 0.0)
    assert np.array_equal(fit.arrays[0] + fit.offsets[0], table)
    assert len(list(files.chunks(1))) == 24
    with pytest.raises(SettingError, match="the size of a chunk must be at least 1; got 0"):
        list(files.chunks(0))


def test_a_mask_is_cut_like_the_rows_of_its_chunk():
    views = [FileView(HERE, name, np.arange(5.0)[:, None], range(1)) for name in "ab"]
    mask = np.array([[1, 1], [0, 1], [1, 0], [1, 1], [0, 1]])
    chunks = list(FileSource(views, mask=mask).chunks(2))
    assert [chunk.mask.astype(int).tolist() for chunk in chunks] == [
        mask[:2].tolist(),
        mask[2:4].tolist(),
        mask[4:].tolist(),
    ]


def test_a_shape_of_odd_length_in_a_matlab_file_is_read_as_far_as_it_goes(tmp_path):
    flags, shape = element(6, struct.pack("<II", 6, 0)), element(5, struct.pack("<iiH", 1, 9, 0))
    version_5(tmp_path / "odd.mat", element(14, flags + shape + element(1, b"X1") + element(9, bytes(8))))
    mat._walk(tmp_path / "odd.mat", "<")  # nine numbers of one byte have room
    shape = element(5, struct.pack("<iiH", 999, 9, 0))
    version_5(tmp_path / "large.mat", element(14, flags + shape + element(1, b"X1") + element(9, bytes(8))))
    with pytest.raises(DataError, match=r"a matrix claims the shape \(999, 9\), but has \d+ bytes"):
        mat._walk(tmp_path / "large.mat", "<")
