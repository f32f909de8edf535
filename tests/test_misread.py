"""Input that was once misread in silence, or ended in a traceback: each is read as it is meant, or refused."""

from __future__ import annotations

import gzip
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat
from scipy.sparse import csr_array

from viewfuse import Views, read_views, with_batch
from viewfuse.data.side_information.knowledge import sample_weights, weights_of_views
from viewfuse.data.side_information.known_labels import Hints
from viewfuse.data.side_information.pairs import Pairs, PairTable
from viewfuse.distributed.shards import Shards
from viewfuse.errors import DataError, NotANumber, SettingError, SuspiciousDataWarning
from viewfuse.io.labels import read_labels, read_pairs
from viewfuse.metrics import nmi
from viewfuse.missing import apply_mask
from viewfuse.serve.bodies import read_json
from viewfuse.serve.limits import Limits

IDS = np.array(list("abcd"))
HIDDEN = [False, True, False, False]
LONG = 2**60 + 1 + np.arange(24).reshape(12, 2)


def test_a_quote_without_its_end_takes_no_other_lines_into_its_cell(tmp_path):
    path = tmp_path / "known.csv"
    path.write_text('id,label\na,"x\nb,y\nc,z\n')
    with pytest.raises(DataError, match=r"cannot be read .unexpected end of data"):
        read_labels(path)
    path.write_text('a,"b\nc,d\n')
    with pytest.raises(DataError, match=r"cannot be read .unexpected end of data"):
        read_pairs(path)


def test_rows_that_are_series_are_matched_by_the_names_of_columns():
    rows = [pd.Series([1.0, 2, 3], index=list("abc")), pd.Series([30.0, 10, 20], index=list("cab")), [4, 5, 6], None]
    found = Views({"v": rows, "w": np.eye(4)})
    assert found.arrays[0].tolist() == [[1, 2, 3], [10, 20, 30], [4, 5, 6], [0, 0, 0]]
    assert found.columns[0] == list("abc")
    for other in (list("abd"), list("aab"), list("abcd")):
        row = pd.Series(np.ones(len(other)), index=other)
        with pytest.raises(
            DataError, match=r"view 'v', row 1 has the columns 'a', .*, others have 'a', 'b', 'c'; give"
        ):
            Views({"v": [rows[0], row]})
    with pytest.raises(DataError, match="'view_0' has 1 dimension"):
        Views(rows[:2])


def test_what_a_masked_array_hides_is_not_known():
    y = np.ma.array([0, 1, 2, 2], mask=HIDDEN)
    assert Hints.of(y, IDS).codes.tolist() == [0, -1, 1, 1]
    with pytest.raises(DataError, match="the sample_weight of 'b' is nan"):
        sample_weights(np.ma.array([1.0, 2, 3, 4], mask=HIDDEN), IDS)
    with pytest.raises(DataError, match="y_true, row 1: the label is missing"):
        nmi(y, [0, 1, 0, 1])
    with pytest.raises(DataError, match=r"must_link\[0\]: 'nan' is no id"):
        Pairs.of(np.ma.array([["a", "b"]], mask=[[False, True]]), None, IDS)
    annotated = pytest.importorskip("anndata").AnnData(np.ma.array(np.ones((2, 2)), mask=np.eye(2)))
    assert np.isnan(Views({"a": annotated}).arrays[0]).tolist() == [[True, False], [False, True]]
    rows = [np.ma.array([1.0, 2.0], mask=[False, True]), [3.0, 4.0]]
    assert np.isnan(Views({"a": rows}).arrays[0]).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize("given", [{"a": "1_0", "b": 1, "c": 1, "d": 1}, np.array(["2020-01-01"] * 4, "M8[D]")])
def test_a_weight_is_a_number_as_tables_have_it(given):
    with pytest.raises(DataError, match="sample_weight holds something that is no number"):
        sample_weights(given, IDS)


def test_a_weight_is_given_once():
    with pytest.raises(DataError, match="sample_weight names the id 'a' twice"):
        sample_weights(pd.Series([1.0, 2, 3, 4, 9], index=list("abcda")), IDS)
    with pytest.raises(SettingError, match="of 'a' is '1_0'; give a number above 0"):
        weights_of_views({"a": "1_0"}, ["a", "b"])


@pytest.mark.parametrize("labels", [["a", "b", float("nan"), "b"], np.array(["a", "b", pd.NA, "b"], object)])
def test_a_missing_label_beside_text_is_no_class(labels):
    with pytest.raises(DataError, match="y_true, row 2: the label is missing"):
        nmi(labels, [0, 1, 0, 1])


def test_an_id_that_is_missing_in_pandas_is_named():
    with pytest.raises(DataError, match="the id of row 1 is missing"):
        Views([np.eye(2)], ids=["a", pd.NA])


@pytest.mark.parametrize("view", [LONG, pd.DataFrame(LONG)], ids=["array", "frame"])
def test_hidden_rows_leave_the_digits_of_long_numbers(view):
    (hidden,) = apply_mask([view], [[True]] * 11 + [[False]])
    kept = np.asarray(hidden)
    assert [int(x) for x in kept[:11].ravel()] == LONG[:11].ravel().tolist()
    assert pd.isna(kept[11]).all()


def test_a_list_of_numbers_and_none_is_no_table():
    with pytest.raises(DataError, match="rows of different lengths"):
        Views({"a": [None, 5.0]})


def test_a_table_of_pyarrow_has_names_of_columns():
    arrow = pytest.importorskip("pyarrow")
    assert Views({"a": arrow.table({"x": [1.0, 2.0], "y": [4.0, 5.0]})}).columns == (["x", "y"],)


def test_a_batch_may_be_a_column_of_a_sparse_view():
    views = Views({"a": csr_array([[1.0, 3], [0, 4], [2, 0]])}, columns=[["x", "run"]])
    found = with_batch(views, "run")
    assert found.batch.tolist() == ["3", "4", "0"]
    assert found.arrays[0].toarray().tolist() == [[1], [0], [2]]


def test_a_batch_keeps_its_number():
    """Dates such as 20230101 are beyond what 32-bit floats hold, and became 20230100."""
    runs = np.tile([20200101, 20210505, 20230101, 20230102], 10)
    frame = pd.DataFrame({"x": np.arange(40.0), "run": runs})
    with pytest.raises(DataError, match="beyond 16,777,216, of which 32-bit floats lose digits"):
        with_batch(Views({"a": frame}), "run")
    frame["run"] = np.tile([0.1, 0.25], 20)
    trained, placed = (with_batch(Views({"a": frame}, allow_disjoint=one), "run") for one in (False, True))
    assert trained.batch[:2].tolist() == placed.batch[:2].tolist() == ["0.1", "0.25"]


def test_batches_that_differ_in_two_objects_are_refused():
    anndata = pytest.importorskip("anndata")

    def annotated(*runs):
        obs = pd.DataFrame({"run": pd.Series(runs, dtype=object).to_numpy()}, index=["a", "b"])
        return anndata.AnnData(np.eye(2), obs=obs)

    alike = {"x": annotated("u", "v"), "y": annotated("u", None)}
    assert with_batch(alike, "run").batch.tolist() == ["u", "v"]
    other = {"x": annotated("u", "v"), "y": annotated("u", "w")}
    with pytest.raises(DataError, match="the batch 'run' of 'b' is 'v' in one view and 'w' in another"):
        with_batch(other, "run")


@pytest.mark.parametrize("cell", [f"0.{'0' * 400}1", f"0.{'0' * 300}1e-50"])
def test_a_number_too_small_for_floats_is_not_zero(tmp_path, cell):
    (tmp_path / "a.csv").write_text(f"id,x,y\na,{cell},2\nb,1,3\n")
    with pytest.raises(DataError, match="too small for 64-bit floats"):
        read_views(tmp_path / "a.csv")
    with pytest.raises(NotANumber, match="is not a number"):
        Views({"a": np.array([[Decimal("1e-400")], [Decimal(1)]], object)})


@pytest.mark.parametrize("cell", ["1e-400", f"0.{'0' * 400}1", "-2E-999"])
@pytest.mark.parametrize(
    "view", ["[[{}, 1.5], [0e-400, 3]]", '{{"columns": ["x", "y"], "values": [[{}, 1.5], [0e-400, 3]]}}']
)
def test_a_number_of_json_is_read_as_one_of_a_file(cell, view):
    def read(cell):
        return read_json(f'{{"views": {{"a": {view.format(cell)}}}}}'.encode(), Limits(), ["a"])

    with pytest.raises(DataError, match=r"the body has '.*, which is too small for 64-bit floats"):
        read(cell)
    with pytest.raises(DataError, match=r"view 'a', row 0, column 0.*the value is inf"):
        read("1e400")
    assert read("1e-300").arrays[0].tolist() == [[1e-300, 1.5], [0, 3]]


def test_ids_of_npz_that_are_dates_are_written_as_dates(tmp_path):
    """They became nanoseconds since 1970."""
    days = np.array(["2020-01-01", "2020-01-02T03:04", "2020-01-03"], "M8[ns]")
    np.savez(tmp_path / "a.npz", view_0=np.eye(3), ids=days, labels=days)
    texts = ["2020-01-01", "2020-01-02T03:04", "2020-01-03"]
    assert read_views(tmp_path / "a.npz").ids.tolist() == texts
    assert read_labels(tmp_path / "a.npz") == dict(zip(texts, texts, strict=True))
    days[1] = "NaT"
    np.savez(tmp_path / "a.npz", view_0=np.eye(3), ids=days)
    with pytest.raises(DataError, match="the id of row 1 is missing"):
        read_views(tmp_path / "a.npz")


def test_labels_that_were_stored_as_bytes_are_text(tmp_path):
    np.savez(tmp_path / "a.npz", view_0=np.eye(2), labels=np.array([b"u", b"v"]))
    assert read_labels(tmp_path / "a.npz") == {"0": "u", "1": "v"}


def test_labels_of_a_column_of_floats_are_unknown_at_minus_one():
    assert Hints.of(["-1.0", "1.0", b"u", "-1"], IDS).by_class(IDS) == {"1.0": ["b"], "u": ["c"]}


@pytest.mark.parametrize("mask", [None, [[True], [False]]])
@pytest.mark.parametrize("kind", ["annotated", "rows"])
def test_what_cannot_be_hidden_is_named(kind, mask):
    view = [[1.0, 2.0], None]
    if kind == "annotated":
        view = pytest.importorskip("anndata").AnnData(np.eye(2))
    if kind == "rows" and mask is not None:
        assert np.isnan(apply_mask([view], mask)[0]).tolist() == [[False] * 2, [True] * 2]
        return
    with pytest.raises(DataError, match=r"the mask has shape \(\)" if mask is None else "view 0 is no array; leave it"):
        apply_mask([view], mask)


def test_a_first_pair_that_is_misspelled_is_no_header():
    with pytest.raises(DataError, match="line 1: 'A' is no id, but 'a' is"):
        Pairs.of(PairTable([("A", "B"), ("c", "d")], ["line 1", "line 2"]), None, IDS)


@pytest.mark.parametrize(
    "flags",
    [[True, False, True], ["u", "v", "u"], pd.array([True, None, False], "boolean")],
    ids=["yes and no", "text", "with gaps"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_frame_in_obsm_of_several_kinds_is_read_alike_in_memory_and_in_a_file(tmp_path, flags):
    anndata = pytest.importorskip("anndata")
    frame = pd.DataFrame({"f": flags, "g": [1.0, 2.0, 3.0]}, index=list("abc"))
    data = anndata.AnnData(np.eye(3), obs=pd.DataFrame(index=list("abc")), obsm={"own": frame})
    data.write_h5ad(tmp_path / "a.h5ad")
    read = read_views(tmp_path / "a.h5ad", use="obsm/own")
    given = Views(data, use="obsm/own")
    np.testing.assert_array_equal(read.arrays[0], given.arrays[0])
    assert read.columns == given.columns
    assert read.arrays[0][:, -1].tolist() == [1, 2, 3]


def test_ids_of_shards_are_text_or_numbers_and_nothing_that_holds_such(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(arrow.table({"id": [{"n": 1}], "v.x": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"'id' holds struct<n: int64> values, but ids are text or whole numbers"):
        Shards(tmp_path / "a.parquet")


def test_row_labels_of_shards_are_ids_where_they_may_be(tmp_path):
    """As `read_views` has it: row numbers, and labels that are there twice, are neither ids nor measurements."""
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"price": [5, 6], "v.x": [1.0, 2.0]})
    frame.set_axis([7, 9]).to_parquet(tmp_path / "a.parquet", index=True)
    with pytest.warns(SuspiciousDataWarning, match=r"the ids are the row labels .*\(7, 9\), not column 'price'"):
        shards = Shards(tmp_path / "a.parquet", blocks={"v": "v.*"})
    assert (shards.layout.id_column, shards.ignored) == ("__index_level_0__", ["price"])
    for name, labels in (("b", [7, 7]), ("c", [0, 1])):
        frame.set_axis(labels).to_parquet(tmp_path / f"{name}.parquet", index=True)
        shards = Shards(tmp_path / f"{name}.parquet")
        assert (shards.layout.used, shards.ignored) == (["price", "v.x"], [])


@pytest.mark.parametrize("values", [[3, 1], ["b", "a"], [0.5, 1.0]])
def test_categories_in_shards_are_no_numbers(tmp_path, values):
    """Those of whole numbers were learned from like any numbers."""
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"v.x": pd.Categorical(values), "v.y": [1.0, 2.0]}, index=pd.Index(["a", "b"], name="id"))
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"column 'v\.x' holds category values, not numbers; drop it"):
        Shards(tmp_path / "a.parquet")
    assert Shards(tmp_path / "a.parquet", blocks={"v": ["v.y"]}).layout.used == ["id", "v.y"]


@pytest.mark.parametrize("name", ["patient", None])
def test_the_index_of_shards_is_their_ids(tmp_path, name):
    """The first column, a price, was."""
    pytest.importorskip("pyarrow")
    index = pd.Index(["a", "b"] if name is None else [7, 9], name=name)
    pd.DataFrame({"price": [5, 6], "v": [[1.0], [2.0]]}, index=index).to_parquet(tmp_path / "a.parquet")
    assert Shards(tmp_path / "a.parquet").layout.id_column == (name or "__index_level_0__")


def test_rows_with_two_labels_are_asked_about(tmp_path):
    """The second one was taken for a measurement."""
    pytest.importorskip("pyarrow")
    index = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["patient", "visit"])
    pd.DataFrame({"x": [1.0, 2.0]}, index=index).to_parquet(tmp_path / "a.parquet")
    for reader in (read_views, Shards):
        with pytest.raises(DataError, match=r"rows have 2 labels each \('patient', 'visit'\); name the column of ids"):
            reader(tmp_path / "a.parquet")
    assert read_views(tmp_path / "a.parquet", id_column="patient", drop=["visit"]).columns == (["x"],)


def test_a_cell_of_text_is_named_by_the_id_of_its_row(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(arrow.table({"id": ["a", "b"], "x": ["1", "1_0"], "y": [1.0, 2.0]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="id 'b', column 'x': '1_0' is not a number"):
        read_views(tmp_path / "a.parquet")


def test_columns_of_shards_are_called_differently_and_none_of_a_view_holds_ids(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    values = arrow.array([1, 2])
    write_table(arrow.table([values] * 3, names=["id", "v.x", "v.x"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"two columns are called 'v\.x'"):
        Shards(tmp_path / "a.parquet")
    write_table(arrow.table({"v.n": values, "v.x": values}), tmp_path / "a.parquet")
    with pytest.raises(
        DataError, match=r"the first column 'v\.n' is called like one of a view; name the column of ids"
    ):
        Shards(tmp_path / "a.parquet")
    assert Shards(tmp_path / "a.parquet", "v.n").layout.columns == (["v.x"],)


def test_cells_are_matched_with_a_frame_of_numbers_by_name():
    """They were matched by their order where the frame had whole numbers as index."""
    anndata = pytest.importorskip("anndata")
    cells = anndata.AnnData(np.eye(3), obs=pd.DataFrame(index=["3", "1", "2"]))
    with pytest.raises(DataError, match="3 of them differ only in how they are written"):
        Views({"a": cells, "b": pd.DataFrame(np.eye(3), index=[1, 2, 3])})
    with pytest.warns(SuspiciousDataWarning, match="'a' has row labels 0, 1, 2, ..., but 'b' has ids such as 'x'"):
        Views({"a": anndata.AnnData(np.eye(3)), "b": pd.DataFrame(np.eye(3), index=list("xyz"))})


@pytest.mark.filterwarnings("error")
def test_lists_beside_a_frame_with_ids_have_no_row_labels():
    """Lists have a method called `index`."""
    Views({"a": pd.DataFrame(np.eye(3), index=list("xyz")), "b": np.eye(3).tolist()})


@pytest.mark.parametrize("other", [np.eye(3) * 1j, np.array(["a", "b", "c"]), np.zeros((0, 0))])
def test_a_numbered_matrix_that_cannot_be_read_is_not_left_out(tmp_path, other):
    savemat(tmp_path / "a.mat", {"X1": np.eye(3), "X2": other})
    with pytest.raises(DataError, match="'X2' is no matrix of real numbers, unlike 'X1'"):
        read_views(tmp_path / "a.mat")


def test_a_column_is_chosen_by_its_name_before_a_pattern(tmp_path):
    """Brackets are a pattern, x[1] of x1, which was read in its place."""
    path = tmp_path / "a.csv"
    path.write_text("id,x1,x[1],y\na,1,2,3\nb,4,5,6\n")
    for how in ({"blocks": {"v": "x[1]"}}, {"only": ["x[1]"]}, {"drop": ["x1", "y"]}):
        assert read_views(path, **how).columns == (["x[1]"],)
    assert read_views(path, drop=["x[1]"]).columns == (["x1", "y"],)
    assert read_views(path, only=["x[[]1]", "[y]"]).columns == (["x[1]", "y"],)


@pytest.mark.parametrize("ending", ["csv", "tsv.gz"])
@pytest.mark.parametrize("cell", ["NA", "nan", "NaN", "N/A", "null", " None ", "-", "?"])
def test_an_id_that_says_that_there_is_none_is_no_name(tmp_path, cell, ending):
    """Two samples without a name became one."""
    sign = "," if ending == "csv" else "\t"
    for name in "ab":
        text = f"id,x\ns1,1\n{cell},2\ns2,3\n".replace(",", sign).encode()
        (tmp_path / f"{name}.{ending}").write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    with pytest.raises(DataError, match=r"data row 2 has the id '.*', which stands for none; give every row the id"):
        read_views([tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"])


def test_columns_and_ids_may_be_called_nearly_like_nothing(tmp_path):
    (tmp_path / "a.csv").write_text("id,x,na,nan\nNA1,1,2,3\nNathan,2,3,5\n-1,3,4,4\n")
    found = read_views(tmp_path / "a.csv")
    assert (found.ids.tolist(), found.columns) == (["NA1", "Nathan", "-1"], (["x", "na", "nan"],))
    (tmp_path / "b.csv").write_text("gene,s1,s2\nna,1,2\nnan,2,3\n")
    assert read_views(tmp_path / "b.csv", transpose=["b"]).columns == (["na", "nan"],)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("ending", ["csv", "tsv.gz"])
def test_text_in_utf_16_is_named(tmp_path, encoding, ending):
    """Without its mark each second byte is taken for a letter of its own."""
    path, text = tmp_path / f"a.{ending}", "id,x,y\na,1,2\nb,3,4\n".encode(encoding)
    path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    with pytest.raises(DataError, match=r"looks like UTF-16, .*; save it as UTF-8"):
        read_views(path)
