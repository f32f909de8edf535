"""What counts as data, what as missing, and what is refused with which words."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from test_neighbors import incomplete_data
from viewfuse import DataError, SuspiciousDataWarning, Views

A = np.arange(6.0).reshape(3, 2)
B = np.ones((3, 4))
NAN = np.nan


def with_cell(value, row=1, column=1, dtype=float):
    table = A.astype(dtype)
    table[row, column] = value
    return table


def test_a_list_a_dict_and_one_table():
    assert Views([A, B]).names == ("view_0", "view_1")
    assert Views({"rna": A, "protein": B}).names == ("rna", "protein")
    assert Views(A).widths == (2,)
    assert Views(A.tolist()).widths == (2,)
    assert Views((A, B), names=["x", "y"]).names == ("x", "y")
    assert all(array.dtype == np.float32 for array in Views([A, B]).arrays)


def test_zeros_are_data_and_nan_rows_are_missing():
    first, second = np.zeros((3, 2)), B.copy()
    second[1] = NAN
    views = Views([first, second])
    assert views.mask.tolist() == [[True, True], [True, False], [True, True]]
    assert (views.arrays[1][1] == 0).all()


def test_none_is_a_view_that_nobody_has_or_a_row_that_lacks_it():
    assert Views([A, None]).mask.tolist() == [[True, False]] * 3
    assert Views([A, [None, [1.0, 2.0], [3.0, 4.0]]]).mask[:, 1].tolist() == [False, True, True]
    nothing = np.array([[pd.NA, pd.NA], [1.0, 2.0], [3.0, 4.0]], dtype=object)
    assert Views([A, nothing]).mask[:, 1].tolist() == [False, True, True]


@given(incomplete_data())
def test_mask_and_nan_rows_say_the_same(data):
    values, mask, rng = data
    blanked = [np.where(mask[:, v, None], view, NAN) for v, view in enumerate(values)]
    junk = [np.where(mask[:, v, None], view, rng.choice([NAN, np.inf, 7.0])) for v, view in enumerate(values)]
    by_nan, by_mask = Views(blanked), Views(junk, mask=mask)
    assert (by_nan.mask == mask).all()
    assert (by_mask.mask == mask).all()
    for one, other in zip(by_nan.arrays, by_mask.arrays, strict=True):
        assert (one == other).all()


def test_frames_keep_columns_and_ids():
    frame = pd.DataFrame(A, columns=["g1", "g2"], index=["p1", "p2", "p3"])
    views = Views({"rna": frame, "other": B})
    assert views.ids.tolist() == ["p1", "p2", "p3"]
    assert list(views.columns[0]) == ["g1", "g2"]
    assert Views([pl.DataFrame(A)]).widths == (2,)


def test_labelled_frames_are_joined_by_their_labels():
    rna = pd.DataFrame({"g": [1.0, 2.0]}, index=["p1", "p2"])
    protein = pd.DataFrame({"q": [30.0, 20.0]}, index=["p3", "p2"])
    views = Views({"rna": rna, "protein": protein})
    assert views.ids.tolist() == ["p1", "p2", "p3"]
    assert views.mask.tolist() == [[True, False], [True, True], [False, True]]
    assert views.arrays[1].ravel().tolist() == [0.0, 20.0, 30.0]


def test_every_kind_of_nothing_in_a_frame_is_nan():
    frame = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [0.5, None, 2.5]})
    assert Views([frame, B]).mask[:, 0].tolist() == [True, False, True]
    masked = np.ma.masked_array(A, mask=[[0, 0], [1, 1], [0, 0]])
    assert Views([masked, B]).mask[:, 0].tolist() == [True, False, True]
    assert Views([pl.DataFrame({"a": [1, None, 3]}), B]).mask[:, 0].tolist() == [True, False, True]


def test_input_is_not_changed_and_may_be_read_only():
    table = with_cell(0.0)
    table[2] = NAN
    table.flags.writeable = False
    before = table.copy()
    views = Views([table, B], mask=[[0, 1], [1, 1], [0, 1]])
    assert np.array_equal(table, before, equal_nan=True)
    assert views.mask[:, 0].tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ([], {}, "no views were given"),
        ({}, {}, "no views were given"),
        ([None, None], {}, "every view is None"),
        ([A, B[:2]], {}, r"differing row counts \('view_0' has 3, 'view_1' has 2\)"),
        ([A, np.empty((3, 0))], {}, "'view_1' has no columns"),
        ([np.empty((0, 2))], {}, "have no rows"),
        ([A[0], B], {}, "'view_0' has 1 dimension"),
        ([A, np.ones((3, 2, 2))], {}, "'view_1' has 3 dimension"),
        ([A, [[1.0, 2.0], [3.0], [4.0]]], {}, "'view_1' has rows of different lengths"),
        ({"rna": with_cell(np.inf)}, {}, "view 'rna', row 1, column 1: the value is inf; replace"),
        ({"rna": with_cell(-np.inf)}, {"ids": list("xyz")}, r"row 1 \(id 'y'\), column 1"),
        ({"rna": with_cell(1e39)}, {}, "view 'rna', row 1, column 1: 1e\\+39 is too large"),
        ([A, with_cell("high", dtype=object)], {}, "'view_1', row 1, column 1: 'high' is not a number; encode"),
        ([A, A.astype(str)], {}, "'view_1' holds text, not real numbers"),
        ([A, A.astype(complex)], {}, "'view_1': Complex data not supported"),
        ([A, B], {"mask": [[1, 1], [0, 0], [0, 1]]}, "row 1 has no view at all; drop such samples"),
        ([A, B], {"mask": np.zeros((3, 2)), "ids": list("xyz")}, r"row 0 \(id 'x'\) and 2 more have no view"),
        ([A, B], {"mask": np.ones((2, 3))}, r"mask has shape \(2, 3\), but 3 rows of 2 views need \(3, 2\)"),
        ([A, B], {"mask": np.full((3, 2), 2)}, "other than True/False"),
        ([A, B], {"ids": ["a", "b", "a"]}, "id 'a' appears twice, in rows 0 and 2"),
        ([A, B], {"ids": ["a"]}, "one id per row"),
        ([A, B], {"ids": "abc"}, "one id per row"),
        ([A, B], {"ids": np.eye(3)}, "one id per row"),
        ([A, B], {"ids": ["a", None, "b"]}, "the id of row 1 is missing"),
        ([A, B], {"mask": np.array([["True"] * 2] * 3)}, "other than True/False"),
        ([A, B], {"mask": np.ma.masked_array(np.ones((3, 2)), mask=False)}, "other than True/False"),
        ([A, B], {"mask": pd.DataFrame(1, index=range(3), columns=["x", "y"])}, r"columns \['x', 'y'\], but the views"),
        ([A[:, 0], B[:, 0]], {}, r"'view_0' has 1 dimension\(s\), not 2. Reshape your data .*reshape\(-1, 1\)"),
        ({1, 2}, {}, "a set is no collection of views"),
        ("data.csv", {}, "a str is no collection of views"),
        ((view for view in [A, B]), {}, "a generator is no collection of views; pass a list or dict"),
        ([A, with_cell(10**400, dtype=object)], {}, "'view_1', row 1, column 1: 1000.*000 is not a number"),
        ([A, Views(B)], {}, "Views are several tables"),
        ([A, B], {"names": ["a"]}, "1 names were given for 2 views"),
        ([A, B], {"names": ["a", "a"]}, "two views have one name"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_its_place_and_the_cure(data, options, words):
    with pytest.raises(DataError, match=words):
        Views(data, **options)


def test_whole_number_labels_are_labels():
    left, right = pd.DataFrame(A), pd.DataFrame(B)
    for first, second in [(left.drop(0), right), (left[::-1], right), (left.iloc[[2, 0, 1]], right)]:
        views = Views([first, second])
        assert sorted(views.ids.tolist()) == [0, 1, 2]
        for row, name in enumerate(views.ids):
            assert not views.mask[row, 0] or views.arrays[0][row].tolist() == A[name].tolist()
    assert Views([left.drop(0), right]).mask.sum(axis=0).tolist() == [2, 3]


def test_labels_that_cannot_be_matched_are_refused():
    with pytest.raises(
        DataError, match=r"view 'view_0' shares no row label with any other view \('0' against 0 in 'view_1'\)"
    ):
        Views([pd.DataFrame(A, index=list("012")), pd.DataFrame(B, index=[0, 2, 1])])
    with pytest.raises(DataError, match="view 'view_0': a row label is missing"):
        Views([pd.DataFrame(A, index=["a", None, "b"]), B])
    levels = pd.MultiIndex.from_product([["x"], [0, 1, 2]])
    assert Views([pd.DataFrame(A, index=levels), B]).ids.tolist() == [("x", 0), ("x", 1), ("x", 2)]
    with pytest.raises(DataError, match="shares no row label"):
        Views([pd.DataFrame(A, index=levels), pd.DataFrame(B, index=list("abc"))])


def test_levels_of_row_labels_are_matched_by_name():
    levels = pd.MultiIndex.from_tuples([(1, 1), (1, 2), (2, 1)], names=["donor", "visit"])
    left, right = pd.DataFrame(A, levels), pd.DataFrame(A, levels)
    found = Views([left, right.swaplevel()])
    assert found.ids.tolist() == levels.tolist()
    assert found.mask.all()
    assert found.arrays[1].tolist() == A.tolist()
    for names in (["patient", "time"], [None, None], ["donor", "time"]):  # which tell nothing else
        assert Views([left, right.rename_axis(names)]).arrays[1].tolist() == A.tolist()
    with pytest.raises(DataError, match=r"view 'view_1' has row labels of \['visit', 'day'\], but view 'view_0' of"):
        Views([left, right.rename_axis(["visit", "day"])])


def test_a_mask_with_names_is_taken_by_name():
    mask = pd.DataFrame({"b": [False, True, True], "a": [True, True, True]})
    assert Views({"a": A, "b": B}, mask=mask).mask.tolist() == [[True, False], [True, True], [True, True]]


IDS = ["x", "y", "z"]
HIDING_Y = [[True, True], [False, True], [True, True]]


@pytest.mark.parametrize("order", [["x", "y", "z"], ["z", "x", "y"], ["y", "z", "x"]])
def test_a_mask_with_ids_is_taken_by_id(order):
    mask = pd.DataFrame(HIDING_Y, index=IDS, columns=["a", "b"]).loc[order]
    frames = {"a": pd.DataFrame(A, index=IDS), "b": pd.DataFrame(B, index=IDS)}
    assert Views(frames, mask=mask).mask.tolist() == HIDING_Y
    assert Views({"a": A, "b": B}, ids=IDS, mask=mask[["b", "a"]]).mask.tolist() == HIDING_Y
    joined = Views({"a": frames["a"], "b": frames["b"].iloc[::-1]}, mask=mask)
    assert joined.mask.tolist() == HIDING_Y
    assert joined.ids.tolist() == IDS
    numbered = mask.set_axis([IDS.index(name) for name in order])
    assert Views({"a": A, "b": B}, mask=numbered).mask.tolist() == HIDING_Y
    with_numbers = {name: frame.set_axis([2, 0, 1]) for name, frame in frames.items()}  # 0, 1, 2 are labels beside it
    shown = Views(with_numbers, mask=pd.DataFrame(HIDING_Y)).mask
    assert shown.tolist() == [HIDING_Y[row] for row in (2, 0, 1)]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (["x", "y", "q"], r"the mask has no row for 1 of 3 samples, such as 'z'; give it the ids"),
        (["x", "y", "x"], r"the mask: row label 'x' appears twice"),
        (["x", "y", None], r"the mask: a row label is missing"),
        (
            ["X", "Y", "Z"],
            r"the mask has row labels as text \('X'\), the samples have ids as text \('x'\); write ids alike",
        ),
        ([5, 6, 7], r"the mask has no row for 3 of 3 samples, such as 'x'"),
        (["x", "y", "z", "q"], r"the mask has rows for 1 samples that the views lack, such as 'q'"),
    ],
)
def test_a_mask_with_other_ids_is_refused(index, words):
    mask = pd.DataFrame(True, index=index, columns=["a", "b"])
    for data in ({"a": pd.DataFrame(A, index=IDS), "b": pd.DataFrame(B, index=IDS)}, {"a": A, "b": B}):
        with pytest.raises(DataError, match=words):
            Views(data, mask=mask, ids=IDS)


def test_ids_in_another_order_than_the_row_labels_are_refused():
    frames = {"a": pd.DataFrame(A, index=IDS), "b": pd.DataFrame(B, index=IDS[::-1])}
    with pytest.raises(DataError, match="ids are the row labels of the views in another order; leave ids out"):
        Views(frames, ids=frames["b"].index)
    assert Views(frames, ids=IDS).ids.tolist() == IDS
    assert Views(frames, ids=["p", "q", "r"]).ids.tolist() == ["p", "q", "r"]


def test_a_mask_with_ids_needs_samples_with_ids():
    with pytest.raises(DataError, match=r"no row for 3 of 3 samples, such as 0; give it the ids .*to_numpy"):
        Views({"a": A, "b": B}, mask=pd.DataFrame(True, index=IDS, columns=["a", "b"]))
    frames = {"a": pd.DataFrame(A, index=IDS), "b": pd.DataFrame(B, index=IDS)}
    with pytest.warns(SuspiciousDataWarning, match="the mask has row labels 0, 1, 2, ..., but the samples have ids"):
        assert Views(frames, mask=pd.DataFrame(HIDING_Y)).mask.tolist() == HIDING_Y
    assert Views(frames, mask=HIDING_Y).mask.tolist() == HIDING_Y


@pytest.mark.parametrize("values", [1.7e9 + np.arange(12.0), 2024010100 + np.arange(12)])
def test_columns_that_32_bits_cannot_tell_apart_are_measured_from_one_of_their_values(values):
    views = Views([np.ones((12, 2)), values[:, None]])
    assert views.offsets[1].tolist() == [values[5]]
    assert views.arrays[1][:, 0].tolist() == list(range(-5, 7))


@pytest.mark.parametrize("values", [2**53 + np.arange(12), 1e-50 * np.arange(12.0)])
def test_columns_that_32_bits_cannot_tell_apart_are_refused(values):
    with pytest.raises(DataError, match="'view_1', column 0: its values differ by less than 32-bit floats can tell"):
        Views([np.ones((12, 2)), values[:, None]])


def test_columns_that_are_constant_up_to_rounding_are_constant():
    for values in ([[0.3], [0.1 + 0.2]] * 10, [[1.0], [1.0 + 1e-10]]):  # rounding; two samples that are alike
        assert len(np.unique(Views(np.array(values)).arrays[0])) == 1


def test_frames_may_overlap_in_a_chain():
    parts = {"rna": range(5), "protein": range(3, 9), "methylation": range(8, 12)}
    views = Views({name: pd.DataFrame({name: 1.0}, index=[f"p{i}" for i in rows]) for name, rows in parts.items()})
    assert views.mask.sum(axis=0).tolist() == [5, 6, 4]


def test_ids_that_are_written_alike_are_refused():
    assert Views([A, B], ids=[1, "01", 2]).ids.tolist() == [1, "01", 2]
    told = r"two ids are both written '1', as numbers \(1\) and as text \('1'\); write ids alike"
    with pytest.raises(DataError, match=told):
        Views([A, B], ids=[1, "1", 2])
    with pytest.raises(DataError, match=told):
        Views([pd.DataFrame(A, index=[1, 2, "1"])])
    with pytest.raises(DataError, match=told):
        Views([pd.DataFrame(A, index=[1, 2, 3]), pd.DataFrame(B, index=[2, 3, "1"])])


def test_cells_of_a_matlab_file_are_views():
    cells = np.empty((1, 2), dtype=object)
    cells[0, 0], cells[0, 1] = A, B
    assert Views(cells).widths == (2, 4)
    assert Views(cells.T).widths == (2, 4)
    for one in (cells[:, 1:], cells[0, 1:]):  # one view alone
        assert Views(one).arrays[0].tolist() == np.float32(B).tolist()
    assert Views(A.astype(object)).widths == (2,)  # a table of numbers
    assert Views(A[:, :1].astype(object)).widths == (1,)
    with pytest.raises(DataError):
        Views(np.empty((0, 2), dtype=object))


def test_hidden_cells_may_hold_anything():
    table = np.array([["n/a", "n/a"], [1.0, 2.0], [3.0, 4.0]], dtype=object)
    assert Views([table, B], mask=[[0, 1], [1, 1], [1, 1]]).arrays[0].tolist() == [[0, 0], [1, 2], [3, 4]]


def test_views_cannot_be_written_to():
    table = A.astype(np.float32)
    views = Views([table, B])
    with pytest.raises(ValueError, match="read-only"):
        views.arrays[0][0] = 7
    with pytest.raises(ValueError, match="read-only"):
        views.mask[0] = False
    table[0] = 9  # the caller's own array stays writable


@pytest.mark.parametrize("rows", ["a", None, (slice(None), 0), (0, "a")])
def test_views_are_not_picked_by_index(rows):
    with pytest.raises(DataError, match="picks no samples; give row numbers"):
        Views([A, B])[rows]


def test_columns_are_matched_by_name_where_they_have_names():
    frame = pd.DataFrame(A, columns=["g1", "g2"])
    views = Views({"rna": frame})
    assert views.conform(["rna"], [["g1", "g2"]], by_name=True).widths == (2,)
    assert views.conform(["rna"], [range(2)], by_name=True).widths == (2,)
    assert np.array_equal(views.conform(["rna"], [["g2", "g1"]], by_name=True).arrays[0], A[:, ::-1])
    with pytest.raises(DataError, match=r"view 'rna' lacks 1 of the 2 columns .*: 'g3'; it has 'g1', 'g2'"):
        views.conform(["rna"], [["g1", "g3"]], by_name=True)


def test_bad_frames_are_refused_by_name():
    good = pd.DataFrame(A, index=["p1", "p2", "p3"], columns=["g1", "g2"])
    with pytest.raises(DataError, match=r"view 'rna', row 2 \(id 'p3'\), column 1 \('g2'\): the value is inf"):
        Views({"rna": good.replace(5.0, np.inf)})
    with pytest.raises(DataError, match=r"view 'rna', row 0, column 1 \('stage'\): 'II' is not a number"):
        Views({"rna": pd.DataFrame({"age": [1, 2, 3], "stage": ["II", 1, 1]})})
    with pytest.raises(DataError, match="view 'b': row label 'p1' appears twice"):
        Views({"a": good, "b": good.set_axis(["p1", "p1", "p2"])})
    with pytest.raises(DataError, match=r"\['b'\] have none, so the rows cannot be matched"):
        Views({"a": good, "c": good.set_axis(["p3", "p4", "p5"]), "b": B})


def test_rows_can_be_picked_in_every_way_that_scikit_learn_picks_them():
    views = Views({"a": A, "b": B}, ids=["x", "y", "z"])
    assert len(views) == 3
    assert views.shape == (3, 2)
    for rows in ([2, 0], np.array([2, 0]), (np.array([2, 0]), ...)):
        assert views[rows].ids.tolist() == ["z", "x"]
    assert views[np.array([True, False, True])].arrays[0].tolist() == [[0, 1], [4, 5]]
    assert views[1:].ids.tolist() == ["y", "z"]
    assert views[-1].ids.tolist() == ["z"]
    assert [part.ids[0] for part in views] == ["x", "y", "z"]


def test_views_are_matched_by_name_or_by_order():
    views = Views({"b": B, "a": A})
    fitted = views.conform(["a", "c", "b"], [range(2), range(5), range(4)], by_name=True)
    assert fitted.widths == (2, 5, 4)
    assert fitted.mask.tolist() == [[True, False, True]] * 3
    assert (fitted.arrays[0] == A).all()
    with pytest.raises(
        DataError, match=r"views \['b'\] are unknown; got \['b', 'a'\], the model was fitted on \['a', 'c'\]"
    ):
        views.conform(["a", "c"], [range(2), range(5)], by_name=True)
    with pytest.raises(DataError, match="2 views were given, but the model was fitted on 1"):
        views.conform(["a"], [range(2)], by_name=False)
    with pytest.raises(DataError, match="view 'a' has 2 columns, but the model was fitted on 9"):
        views.conform(["a", "b"], [range(9), range(4)], by_name=True)


def test_a_short_description():
    assert repr(Views({"a": A, "b": B}, mask=[[1, 1], [0, 1], [0, 1]])) == (
        "Views(3 samples; a: 2 columns, 1 present; b: 4 columns, 3 present)"
    )


@given(st.sampled_from(["i1", "i4", "u2", "f2", "f4", "f8", "?", "O"]))
def test_numeric_types_are_taken(dtype):
    table = np.array([[1, 0], [0, 1], [1, 1]]).astype(dtype)
    assert Views([table]).arrays[0].tolist() == [[1, 0], [0, 1], [1, 1]]


def test_plain_arrays_pass_no_module_for_special_cases():
    """Names, text, sparse matrices and annotated data have modules of their own."""
    seen = set()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        Views.of({"a": np.arange(60.0).reshape(20, 3), "b": np.eye(20), "c": None})
    finally:
        sys.setprofile(None)
    assert {Path(name).stem for name in seen if Path(name).parent.name == "data"} == {
        "views",
        "tables",
        "input_types",
        "precision",
    }


def test_ids_that_cannot_be_looked_up_are_refused():
    with pytest.raises(DataError, match=r"ids must be a list of 2 names, one id per row; got \[\[1\], \[2\]\]"):
        Views([np.ones((2, 3))], ids=[[1], [2]])


@pytest.mark.parametrize(
    "data",
    [
        {"rna": pd.DataFrame(np.ones((3, 3)), columns=list("xxy"))},
        {
            "rna": pd.DataFrame(np.ones((3, 3)), columns=list("xxy"), index=list("abc")),
            "b": pd.DataFrame({"z": [1.0]}, ["c"]),
        },
        {"rna": pa.table([[1.0, 2.0]] * 3, names=list("xxy"))},
        {"rna": [pd.Series([1.0, 2.0], index=["x", "x"])]},
    ],
)
def test_two_columns_of_one_name_are_refused(data):
    """In another order they were taken for each other."""
    said = r"view 'rna': two columns are called 'x'; give each a name of its own \(AnnData: var_names_make_unique\(\)\)"
    with pytest.raises(DataError, match=said):
        Views(data)
    with pytest.raises(DataError, match="view 'view_1': two columns are called 'x'"):
        Views([np.ones((2, 1)), np.ones((2, 3))], columns=[["x"], ["x", "x", "y"]])
    assert Views([np.ones((2, 2)), np.ones((2, 2))]).columns == (range(2), range(2))
