"""A sparse view says what the same dense view says, and is never made dense on the way."""

from __future__ import annotations

import timeit
import tracemalloc
from unittest.mock import patch

import mudata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import io, sparse

from viewfuse import (
    URRL,
    Config,
    DataError,
    EmptySampleWarning,
    NotEnoughMemory,
    SuspiciousDataWarning,
    Views,
    baselines,
    read_chunks,
    read_views,
)
from viewfuse.cli.inspect import describe
from viewfuse.data import input_types, sparse_tables
from viewfuse.data.checks import data_warnings, suspicious_columns
from viewfuse.data.scaling import fit_scaler
from viewfuse.data.sparse_tables import check_sparse
from viewfuse.data.tables import column_bounds
from viewfuse.io.source import FileSource, FileView
from viewfuse.missing import apply_mask
from viewfuse.utils import memory

FORMATS = ("csr", "csc", "coo", "lil", "dok", "dia", "bsr")
A = np.array([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
B = np.ones((3, 2))
NAN = np.nan


def with_cell(value, row=1, column=2):
    table = A.copy()
    table[row, column] = value
    return sparse.csr_matrix(table)


def of_objects():
    matrix = sparse.csr_matrix(A)
    matrix.data = matrix.data.astype(object)  # SciPy builds no such matrix by itself any more
    return matrix


@st.composite
def both_kinds(draw):
    """Views with a dense table and with the same as a sparse one, some rows missing, beside a dense view."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, width = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    values = rng.integers(-3, 4, size=(n, width)) * (rng.random((n, width)) < draw(st.sampled_from([0.05, 0.5, 1.0])))
    table = values * 10.0 ** rng.integers(-3, 4, size=width)
    if draw(st.booleans()):
        table[:, 0] = rng.permutation(n)  # looks like an id
    if draw(st.booleans()):
        table[rng.integers(n), -1] = -999.0  # looks like a fill value
    mask = np.ones((n, 2), dtype=bool)
    mask[:, 0] = rng.random(n) < 0.7
    kind = draw(st.sampled_from(FORMATS))
    other = rng.normal(size=(n, 2))
    dense = Views({"a": table, "b": other}, mask=mask)
    return dense, Views({"a": sparse.coo_array(table).asformat(kind), "b": other}, mask=mask)


@settings(max_examples=8)
@given(both_kinds())
def test_a_sparse_view_says_what_the_dense_one_says(pair):
    dense, thin = pair
    assert sparse.issparse(thin.arrays[0])
    assert (thin.mask == dense.mask).all()
    assert (thin.arrays[0].toarray() == dense.arrays[0]).all()
    assert suspicious_columns(thin, 0) == suspicious_columns(dense, 0)
    assert data_warnings(thin) == data_warnings(dense)
    with patch("viewfuse.methods.urrl.stages.measured_step", return_value=0.01):
        assert describe(thin) == describe(dense)
    present = dense.mask[:, 0]
    if present.any():
        for one, other in zip(*(column_bounds(views.arrays[0], present) for views in pair), strict=True):
            assert (one == other).all()


@given(both_kinds(), st.sampled_from(["minmax", "standard", "view", "mixed", "none"]))
def test_a_sparse_view_is_scaled_like_the_dense_one(pair, kind):
    dense, thin = (fit_scaler(views, kind).apply(views) for views in pair)
    for one, other in zip(dense.arrays, thin.arrays, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_a_value_far_from_others_is_judged_by_all_zeros_of_a_sparse_column():
    column = np.zeros((30, 1))
    column[:3, 0] = -999.0, 2.0, -2.0
    for table in (column, sparse.csr_array(column)):
        assert suspicious_columns(Views([table]), 0) == {}


@given(both_kinds(), st.integers(1, 60))
def test_parts_are_few_cells_and_together_all_present_rows(pair, cells):
    dense, thin = pair
    present = dense.mask[:, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_tables, "_CELLS_AT_A_TIME", cells)
        patch.setattr(input_types, "_CELLS_AT_A_TIME", cells)
        whole, sparse_parts = (list(input_types.parts_of(views.arrays[0], present)) for views in pair)
        assert suspicious_columns(thin, 0) == suspicious_columns(dense, 0)
    width = thin.widths[0]
    assert all(part.size <= max(cells, width) for part in whole)
    for parts in (whole, [part.toarray() for part in sparse_parts]):
        assert (np.concatenate([*parts, np.zeros((0, width))]) == dense.arrays[0][present]).all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("family", [sparse.coo_array, sparse.coo_matrix])
def test_every_format_becomes_one(kind, family):
    for dtype in ("?", "i1", "u2", "i8", "f4", "f8"):
        given_matrix = family(A.astype(dtype)).asformat(kind)
        (array,) = Views({"a": given_matrix}).arrays
        assert type(array) is sparse.csr_array
        assert array.dtype == np.float32
        assert array.has_canonical_format
        assert (array.toarray() == A.astype(dtype)).all()


def test_views_are_taken_without_a_copy_and_what_was_given_stays():
    single = sparse.csr_matrix(A.astype(np.float32))
    views = Views([single])
    assert np.shares_memory(views.arrays[0].data, single.data)
    with pytest.raises(ValueError, match="read-only"):
        views.arrays[0].data[0] = 7
    single.data[0] = 7  # the caller's own matrix stays writable
    wild = sparse.csr_array(
        (np.array([1.0, 2.0, 3.0], np.float32), np.array([2, 0, 0]), np.array([0, 3])), shape=(1, 3)
    )
    (array,) = Views([wild]).arrays
    assert (array.data.tolist(), array.indices.tolist()) == ([5.0, 1.0], [0, 2])
    assert wild.indices.tolist() == [2, 0, 0]


def test_cells_stored_in_parts_are_added_up():
    rows, columns = np.array([0, 0, 1]), np.array([1, 1, 0])
    small = sparse.coo_array((np.array([100, 100, 1], dtype=np.int8), (rows, columns)), shape=(2, 2))
    assert Views([small]).arrays[0].toarray().tolist() == [[0, 200], [1, 0]]


def test_zero_rows_are_data_and_nan_rows_are_missing():
    assert Views([sparse.csr_array(A)]).mask.all()
    table = A.copy()
    table[1] = NAN
    views = Views([sparse.csr_array(table), B])
    assert views.mask[:, 0].tolist() == [True, False, True]
    assert views.arrays[0].nnz == 1
    mark = sparse.csr_array(([NAN], ([2], [0])), shape=(3, 3))
    assert Views([mark, B]).mask[:, 0].tolist() == [True, True, False]
    stored_zero = sparse.csr_array(([NAN, 0.0], ([2, 2], [0, 1])), shape=(3, 3))
    with pytest.raises(DataError, match="row 2, column 0: NaN in a row of a sparse view that has other values"):
        Views([stored_zero, B])


@pytest.mark.parametrize("kind", ["coo_array", "csr_array", "csc_array", "coo_matrix"])
@pytest.mark.parametrize("parts", [(NAN, 5.0), (np.inf, -np.inf)])
def test_parts_of_a_cell_that_add_up_to_nan_are_refused(kind, parts):
    """The row was missing, and what it holds was lost."""
    places = np.array([1, 1, 2]), np.array([2, 2, 0])
    view = sparse.coo_array(([*parts, 1.0], places), shape=(3, 3))
    if kind in ("csr_array", "csc_array"):
        starts = {"csr_array": ([2, 2, 0], [0, 0, 2, 3]), "csc_array": ([2, 1, 1], [0, 1, 1, 3])}[kind]
        data = {"csr_array": [*parts, 1.0], "csc_array": [1.0, *parts]}[kind]
        view = getattr(sparse, kind)((data, *starts), shape=(3, 3))
    with pytest.raises(DataError, match="view 'a', row 1, column 2: parts of one cell add up to NaN; store each cell"):
        Views({"a": view, "b": B})
    twice = sparse.coo_array(([NAN, NAN, 1.0], places), shape=(3, 3))
    assert Views({"a": twice, "b": B}).mask[:, 0].tolist() == [True, False, True]


def test_hidden_rows_may_hold_anything_and_end_up_empty():
    table = A.copy()
    table[1] = [NAN, np.inf, 1e300]
    views = Views([sparse.csr_array(table), B], mask=[[1, 1], [0, 1], [1, 1]])
    assert views.mask[:, 0].tolist() == [True, False, True]
    assert np.diff(views.arrays[0].indptr).tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (
            with_cell(NAN),
            "view 'a', row 1, column 2: NaN .* the value, nothing for zero, or NaN and nothing else",
        ),
        (with_cell(-np.inf), "view 'a', row 1, column 2: the value is inf; replace"),
        (with_cell(1e39), r"view 'a', row 1, column 2: 1e\+39 is too large for 32-bit floats"),
        (sparse.csr_array(A.astype(complex)), "view 'a': Complex data not supported"),
        (of_objects(), "view 'a' holds object values, not real numbers"),
        (sparse.csr_array((3, 0)), "view 'a' has no columns"),
        (sparse.csr_array((2, 4)), r"differing row counts \('a' has 2, 'b' has 3\)"),
        (sparse.coo_array(np.ones(3)), r"view 'a' has 1 dimension"),
    ],
)
def test_bad_cells_are_refused_with_their_place(view, words):
    with pytest.raises(DataError, match=words):
        Views({"a": view, "b": B})


def test_places_are_named_by_ids_and_columns():
    with pytest.raises(DataError, match=r"row 1 \(id 'y'\), column 2 \('g3'\): the value is inf"):
        Views({"a": with_cell(np.inf)}, ids=list("xyz"), columns=[["g1", "g2", "g3"]])


@pytest.mark.parametrize("values", [1.7e9 + np.arange(12.0), 2024010100 + np.arange(12), 2**53 + np.arange(12)])
def test_columns_that_32_bits_cannot_tell_apart_are_refused(values):
    with pytest.raises(DataError, match="'view_0', column 0: its values differ by less than 32-bit floats can tell"):
        Views([sparse.csr_array(values[:, None])])


@pytest.mark.parametrize(
    "rows",
    [[2, 0], np.array([-1, 0]), slice(1, None), slice(None, None, -1), [], 1, (np.array([2]), ...),
     [True, False, True], np.array([False, True, False]), pd.Series([True, False, True])],
    ids=lambda rows: type(rows).__name__,
)  # fmt: skip
def test_rows_are_picked_as_from_dense_views(rows):
    thin, dense = Views({"a": sparse.csc_array(A), "b": B})[rows], Views({"a": A, "b": B})[rows]
    assert sparse.issparse(thin.arrays[0])
    assert thin.arrays[0].toarray().tolist() == dense.arrays[0].tolist()
    assert (thin.mask == dense.mask).all()
    assert thin.ids.tolist() == dense.ids.tolist()


def test_views_are_matched_and_described():
    views = Views({"b": B, "a": sparse.csr_array(A)})
    fitted = views.conform(["a", "c", "b"], [range(3), range(50), range(2)], by_name=True)
    assert fitted.widths == (3, 50, 2)
    assert fitted.mask.tolist() == [[True, False, True]] * 3
    assert fitted.arrays[0] is views.arrays[1]
    assert fitted.dense().arrays[1].tolist() == np.zeros((3, 50)).tolist()
    assert repr(views) == "Views(3 samples; b: 2 columns, 3 present; a: 3 sparse columns, 3 present)"


def sparse_frame(table, index, dtype=float):
    columns = {
        f"g{c}": pd.arrays.SparseArray(column.astype(dtype), fill_value=dtype(0)) for c, column in enumerate(table.T)
    }
    return pd.DataFrame(columns, index=index)


@pytest.mark.parametrize("dtype", [float, int, bool])
def test_frames_with_sparse_columns_stay_sparse_and_are_joined_by_labels(dtype):
    left, right = list("xyz"), list("zxw")
    other = pd.DataFrame(B, index=right)
    thin = Views({"a": sparse_frame(A, left, dtype), "b": other})
    dense = Views({"a": pd.DataFrame(A.astype(dtype), index=left).astype(float), "b": other})
    assert sparse.issparse(thin.arrays[0])
    assert (thin.arrays[0].toarray() == dense.arrays[0]).all()
    assert thin.mask.tolist() == dense.mask.tolist() == [[True, True], [True, False], [True, True], [False, True]]
    assert thin.ids.tolist() == dense.ids.tolist()
    assert list(thin.columns[0]) == ["g0", "g1", "g2"]


def test_other_frames_are_dense():
    half = sparse_frame(A, range(3)).assign(g9=[1.0, 2.0, 3.0])
    other = pd.DataFrame({"g": pd.arrays.SparseArray([1.0, NAN, 2.0])})
    views = Views([half, other])
    assert not any(sparse.issparse(array) for array in views.arrays)
    assert views.mask[:, 1].tolist() == [True, False, True]
    with pytest.raises(DataError, match="1 dimension"):
        Views([other["g"]])


@pytest.mark.parametrize(("zero", "n", "told"), [(11, 100, True), (1, 100, True), (0, 100, False), (5, 15, False)])
def test_many_zero_samples_are_told_with_their_number(zero, n, told):
    table = np.random.default_rng(0).normal(size=(n, 3))
    table[:zero] = 0.0
    lines = data_warnings(Views({"rna": sparse.csr_array(table)}))
    words = f"rna: {zero} of its {n} samples are zero in all columns, which is taken for data; if they lack the view"
    assert [line.startswith(words) for line in lines] == [True] * told
    assert data_warnings(Views({"rna": table})) == lines


def test_missing_samples_and_stored_zeros_are_counted_as_what_they_are():
    table = np.random.default_rng(0).normal(size=(100, 3))
    mask = np.ones((100, 2), dtype=bool)
    mask[:50, 0] = False
    matrix = sparse.csr_array(table)
    matrix.data[-3 * 20 :] = 0.0  # stored zeros
    (line,) = data_warnings(Views({"rna": matrix, "b": table}, mask=mask))
    assert "20 of its 50 samples are zero" in line


def test_sparse_views_are_not_hidden_by_nan():
    with pytest.raises(
        DataError, match=r"view 0 is sparse, and an empty row of it is data; .*Views\(data, mask=mask\)"
    ):
        apply_mask([sparse.csr_array(A), B], np.ones((3, 2)))


def test_a_few_values_that_count_up_are_no_ids_among_zeros():
    few, all_rows = np.array([*range(1, 11), *[0] * 50])[:, None], np.arange(60)[:, None]
    assert suspicious_columns(Views([sparse.csr_array(few)]), 0) == {}
    assert suspicious_columns(Views([sparse.csr_array(all_rows)]), 0) == {"count the rows, and may be ids": ["0"]}


def test_samples_of_files_that_store_only_nan_are_left_out():
    matrix = sparse.csr_array(([1.0, NAN], ([0, 2], [1, 0])), shape=(3, 4))
    source = FileSource([FileView("set.h5mu", "rna", matrix, range(4), ["x", "y", "z"])])
    with pytest.warns(EmptySampleWarning, match="sample 'z' has no view at all and is left out"):
        assert source.read().ids.tolist() == ["x", "y"]


@pytest.fixture
def wide():
    """4,000 x 10,000 with 100,000 values: 160 MB as a table."""
    rng = np.random.default_rng(0)
    places = rng.integers(4_000, size=100_000), rng.integers(10_000, size=100_000)
    return sparse.coo_array((rng.normal(size=100_000), places), shape=(4_000, 10_000))


@pytest.mark.parametrize(
    "way", ["chunk", pytest.param("array", marks=pytest.mark.slow), pytest.param("file", marks=pytest.mark.slow)]
)
def test_wide_views_are_never_made_dense(wide, monkeypatch, way):
    monkeypatch.setattr(memory, "available", lambda: 40_000_000)
    ids = [f"cell {i}" for i in range(4_000)]
    source = FileSource([FileView("wide.h5mu", "rna", wide.tocsr(), range(10_000), ids[::-1])], order=ids)
    tracemalloc.start()
    try:
        ways = {"array": lambda: Views([wide]), "file": source.read, "chunk": lambda: next(source.chunks(3_600))}
        views = ways[way]()
        assert sparse.issparse(views.arrays[0])
        assert len(data_warnings(views)) <= 1
        with patch("viewfuse.methods.urrl.stages.measured_step", return_value=0.01):
            assert describe(views)["views"][0]["high"] == views.arrays[0].max()
        name, columns = views.names[0], views.columns[0]
        both = views[::2].conform([name, "other"], [columns, range(100_000)], by_name=True)
        assert both.widths == (10_000, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(NotEnoughMemory, match="4,000 samples x 10,000 columns needs 160,000,000 bytes"):
        Views([wide]).dense()


def write_h5mu(path, matrix):
    mudata.MuData({"X": AnnData(matrix.tocsr())}).write(path)


def write_mat(path, matrix):
    io.savemat(path, {"X": matrix.tocsc(), "Y": np.arange(matrix.shape[0])}, do_compression=True)


@pytest.mark.filterwarnings("ignore")  # of mudata's own
@pytest.mark.parametrize(
    ("ending", "write"),
    [
        pytest.param("h5mu", write_h5mu, marks=pytest.mark.slow),
        pytest.param("mat", write_mat, marks=pytest.mark.slow),
        ("npz", sparse.save_npz),
    ],
    ids=["h5mu", "mat", "npz"],
)
def test_wide_files_are_never_made_dense(tmp_path, wide, monkeypatch, ending, write):
    path = tmp_path / f"wide.{ending}"
    write(path, wide.tocsr())
    monkeypatch.setattr(memory, "available", lambda: 40_000_000)
    whole, parts = read_views(path), list(read_chunks(path, 3_600))
    assert all(sparse.issparse(views.arrays[0]) for views in (whole, *parts))
    assert whole.mask.all()  # zero rows are data
    found = sparse.vstack([part.arrays[0] for part in parts])
    assert abs(found - whole.arrays[0]).max() == 0
    assert abs(whole.arrays[0] - wide.tocsr().astype(np.float32)).max() < 1e-6


def test_the_bytes_of_sparse_files_are_counted(wide, monkeypatch):
    source = FileSource([FileView("wide.h5mu", "rna", wide.tocsr(), range(10_000))])
    monkeypatch.setattr(memory, "available", lambda: 2_000_000)
    with pytest.raises(NotEnoughMemory, match=r"rna 10,000 needs [23],"):
        source.read()


@pytest.mark.slow
def test_what_needs_tables_gets_them():
    rng = np.random.default_rng(0)
    group = np.repeat([0.0, 4.0], 30)[:, None]
    table, other = rng.poisson(1 + group, size=(60, 6)).astype(float), rng.normal(size=(60, 3)) + group
    mask = np.ones((60, 2), dtype=bool)
    mask[::7, 0] = False
    settings = {"config": Config(pretrain_epochs=2, joint_epochs=0, embedding_dim=8, hidden_dim=8), "random_state": 0}
    dense, thin = (Views({"a": a, "b": other}, mask=mask) for a in (table, sparse.csr_matrix(table)))
    one, two = URRL(2, **settings).fit(dense), URRL(2, **settings).fit(thin)
    assert np.abs(one.embedding_ - two.embedding_).max() < 1e-5
    assert np.abs(one.transform(dense) - one.transform(thin)).max() < 1e-5
    assert one.impute(thin).arrays[0] == pytest.approx(one.impute(dense).arrays[0], abs=1e-5)
    assert one.explain(thin).differences == one.explain(dense).differences
    assert (one.predict({"b": other}) == two.predict({"b": other})).all()
    assert (baselines.knn_filled(thin) == baselines.knn_filled(dense)).all()


def test_a_fit_warns_of_zero_samples():
    table = np.random.default_rng(0).normal(size=(40, 4))
    table[::3] = 0.0
    with pytest.warns(SuspiciousDataWarning, match="14 of its 40 samples are zero in all columns"):
        URRL(2, config=Config(pretrain_epochs=1, joint_epochs=0, embedding_dim=8, hidden_dim=8), random_state=0).fit(
            [sparse.csr_array(table)]
        )


@pytest.mark.parametrize("seed", range(4))
def test_few_numbers_beside_zeros_are_not_taken_for_fill_values(seed):
    table = sparse.random(60, 40, density=0.1, random_state=np.random.default_rng(seed), dtype=np.float32)
    assert not [line for line in data_warnings(Views([sparse.csr_array(table)])) if "-999" in line]
    marked = table.tolil()
    marked[3, :5] = -999.0
    assert [line for line in data_warnings(Views([sparse.csr_array(marked)])) if "-999" in line]


def damaged(kind, **parts):
    """A matrix whose parts were changed after SciPy had looked at them."""
    matrix = sparse.random_array((40, 6), density=0.5, rng=0, format=kind)
    if kind == "bsr":
        matrix = matrix.tobsr((4, 3))
    for name, change in parts.items():
        whole = getattr(matrix, name)
        setattr(matrix, name, change(whole.copy() if hasattr(whole, "copy") else whole))
    return matrix


def with_first(number):
    def change(numbers):
        numbers[len(numbers) // 2] = number
        return numbers

    return change


def with_long_row(rows):
    rows[3] = [*rows[3], 10**6]
    return rows


DAMAGED = {
    **{f"{kind} index": damaged(kind, indices=with_first(10**6)) for kind in ("csr", "csc", "bsr")},
    **{f"{kind} negative": damaged(kind, indices=with_first(-(10**6))) for kind in ("csr", "csc", "bsr")},
    **{f"{kind} starts": damaged(kind, indptr=with_first(10**6)) for kind in ("csr", "csc", "bsr")},
    **{f"{kind} falls": damaged(kind, indptr=with_first(-1)) for kind in ("csr", "csc", "bsr")},
    **{f"{kind} short": damaged(kind, indices=lambda i: i[:3]) for kind in ("csr", "csc", "bsr")},
    **{f"{kind} kind": damaged(kind, indices=lambda i: i.astype(float)) for kind in ("csr", "csc", "bsr")},
    "csr no starts": damaged("csr", indptr=lambda i: i[:0]),
    "csr short data": damaged("csr", data=lambda i: i[:3]),
    "coo column": damaged("coo", coords=lambda c: (c[0], with_first(10**6)(c[1]))),
    "coo row": damaged("coo", coords=lambda c: (with_first(-7)(c[0]), c[1])),
    "coo short": damaged("coo", data=lambda i: i[:3]),
    "lil": damaged("lil", rows=with_long_row),
    "lil column": damaged("lil", rows=with_long_row, data=with_long_row),
    "dia": damaged("dia", data=lambda i: i[:1]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_matrices_whose_indices_lead_out_of_them_are_one_line(name):
    """SciPy itself reads there, and ends the process."""
    with pytest.raises(DataError, match="view 'a' is a sparse matrix whose indices lead out of it"):
        Views({"a": DAMAGED[name], "b": np.ones((40, 2))})


@pytest.mark.parametrize("name", ["csr index", "csc negative", "csr starts"])
@pytest.mark.parametrize("place", ["X", "layers/l", "obsm/o"])
def test_annotated_matrices_whose_indices_lead_out_of_them_are_one_line(name, place):
    cells = AnnData(np.zeros((40, 6)))
    if place == "X":
        cells.X = sparse.csr_matrix((40, 6))
        cells._X = DAMAGED[name]
    else:
        getattr(cells, place.split("/")[0])._data[place[-1]] = DAMAGED[name]
    with pytest.raises(DataError, match=f"view 'a', '{place}' is a sparse matrix whose indices lead out of it"):
        Views({"a": cells}, use={"a": place})


def test_looking_for_damage_costs_little():
    """Beside one other order of the same values, of which a fit makes several."""
    matrix = sparse.random_array((20_000, 500), density=0.02, rng=0, format="csr")
    seconds = [timeit.repeat(what, number=1, repeat=5) for what in (lambda: check_sparse("a", matrix), matrix.tocsc)]
    assert min(seconds[0]) < min(seconds[1])
