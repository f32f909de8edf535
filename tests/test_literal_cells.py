"""Empty cells and medians beside versions in plain loops, on columns of unlike units."""

from __future__ import annotations

import math
from statistics import median

import numpy as np
import pytest
from scipy import sparse

from viewfuse.data import filling
from viewfuse.data.filling import (
    EmptyCells,
    Filled,
    Filler,
    NearestRows,
    check_training_cells,
    column_medians,
    count_empty,
    fit_filler,
    in_words,
)
from viewfuse.data.views import Views
from viewfuse.errors import DataError, EmptyCellsWarning
from viewfuse.utils import memory

NAN = math.nan
UNITS = np.array([1000.0, 0.001, 1.0, 20.0, 1.0, 1.0])
OFFSETS = np.array([5e4, 0.0, -3.0, 7.0, 0.0, 9.0])


def table_of_units(n=30, seed=0):
    """Columns of unlike units and offsets: whole numbers in the fifth, a constant in the last, rows that are twins."""
    values = np.random.default_rng(seed).normal(size=(n, 6)) * UNITS + OFFSETS
    values[:, 4], values[:, 5] = np.arange(n) % 7, 9.0
    values[n // 2 : n // 2 + 4] = values[:4]
    return values.astype(np.float32)


def with_holes(values, share=0.2, seed=1):
    holes = np.random.default_rng(seed).random(values.shape) < share
    holes[np.arange(len(values)), np.arange(len(values)) % values.shape[1]] = False
    return np.where(holes, np.float32(NAN), values)


def literal_fill(donors, rows, count=5):
    """Mean of the nearest donors that have the cell: mean squared difference over common columns of deviation 1."""
    columns = [[float(x) for x in column if not math.isnan(x)] for column in donors.T]
    deviations = [math.sqrt(sum((x - sum(c) / len(c)) ** 2 for x in c) / len(c)) if c else 0.0 for c in columns]
    filled = rows.astype(np.float64)
    for i, row in enumerate(rows.astype(float)):
        far = []
        for j, other in enumerate(donors.astype(float)):
            common = [c for c in range(len(row)) if not math.isnan(row[c]) and not math.isnan(other[c])]
            squares = [((row[c] - other[c]) / deviations[c]) ** 2 for c in common if deviations[c] > 1e-7]
            if common:
                far.append((round(sum(squares) / len(common), 8), j))
        for c in range(len(row)):
            if math.isnan(row[c]):
                lent = [float(donors[j, c]) for _, j in sorted(far) if not math.isnan(donors[j, c])][:count]
                filled[i, c] = sum(lent) / len(lent) if lent else NAN
                if lent and all(x == round(x) for x in columns[c]):
                    filled[i, c] = round(filled[i, c])
    return filled


@pytest.mark.parametrize(("candidates", "cells"), [(32, 4_000_000), (2, 4_000_000), (6, 60), (1, 7)])
def test_cells_are_the_mean_of_the_five_nearest_rows_that_have_them(monkeypatch, candidates, cells):
    donors, rows = with_holes(table_of_units(41)), with_holes(table_of_units(23, seed=5), seed=6)
    rows[3] = donors[2]
    expected = literal_fill(donors, rows)
    monkeypatch.setattr(filling, "_CANDIDATES", candidates)
    monkeypatch.setattr(filling, "_CELLS_AT_A_TIME", cells)
    np.testing.assert_allclose(NearestRows(donors).fill(rows), expected, rtol=2e-6)


def test_columns_are_scaled_by_what_is_there():
    mean, factor = NearestRows(np.array([[4, NAN, 3], [6, 10, 3], [8, NAN, 3]], np.float32))._scale
    assert mean.tolist() == [6, 10, 3]
    assert factor == pytest.approx([1 / np.sqrt(8 / 3), 0, 0])


def rows_with_ties(n=60):
    """Few values per column, so that many rows are equally far, and a third of the last one is empty."""
    rng = np.random.default_rng(3)
    values = np.column_stack([rng.integers(2, size=(n, 3)) * 40.0, rng.normal(size=n), rng.normal(size=n)])
    values[rng.random((n, 5)) < [0.1, 0.1, 0.0, 0.5, 0.3]] = NAN
    return values.astype(np.float32)


@pytest.mark.parametrize("candidates", [32, 2])
def test_who_lends_among_rows_that_are_equally_far_does_not_depend_on_the_order_of_rows(monkeypatch, candidates):
    monkeypatch.setattr(filling, "_CANDIDATES", candidates)
    donors, order = rows_with_ties(), np.random.default_rng(4).permutation(60)
    rows = np.array([[0, 40, 0, NAN, NAN], [40, 40, 0, NAN, NAN], [0, NAN, 40, NAN, NAN]], dtype=np.float32)
    filled = NearestRows(donors).fill(rows)
    np.testing.assert_array_equal(NearestRows(donors[order]).fill(rows), filled)
    np.testing.assert_array_equal(NearestRows(donors[::-1]).fill(rows[::-1]), filled[::-1])
    negative = np.where(donors == 0, np.float32(-0.0), donors)  # the same values
    np.testing.assert_array_equal(NearestRows(negative).fill(rows), filled)


def test_among_rows_that_are_equally_far_no_value_is_preferred():
    lent = []
    for shift in range(40):  # other contents, other lots
        values = np.random.default_rng(shift).normal(size=(60, 1))
        donors = np.column_stack([np.zeros(60), values]).astype(np.float32)
        lent.append(NearestRows(donors).fill(np.array([[0, NAN]], dtype=np.float32))[0, 1])
    assert abs(np.mean(lent)) < 3 / math.sqrt(40 * 5)


def test_cells_that_nobody_can_lend_stay_empty():
    donors = np.array([[1, NAN, 5], [2, NAN, NAN], [4, NAN, 8]], np.float32)
    rows = np.array([[NAN, 3, NAN], [1, NAN, NAN]], np.float32)
    np.testing.assert_array_equal(NearestRows(donors).fill(rows), [[NAN, 3, NAN], [1, NAN, 6]])  # 6.5 goes to even
    np.testing.assert_array_equal(NearestRows(donors[:0]).fill(rows), rows)
    assert NearestRows(donors).is_whole.tolist() == [True, True, True]


def test_a_column_that_hardly_varies_about_a_large_offset_counts():
    """It is constant only where its deviation is below 1e-7 of its mean."""
    donors = np.array([[1000.0, 1], [1000.001, 2], [1000.002, 30]], np.float32)
    mean, factor = NearestRows(donors)._scale
    assert mean == pytest.approx([1000.001, 11], rel=1e-6)
    assert factor == pytest.approx([1 / np.std(donors[:, 0].astype(float)), 1 / np.std([1, 2, 30])], rel=1e-6)
    assert NearestRows(np.full((3, 1), 7, np.float32))._scale[1].tolist() == [0.0]


def spread(n, most):
    """So many of n numbers: first, last, and between them even steps, rounded to even."""
    return list(range(n)) if n <= most else [round(k * (n - 1) / (most - 1)) for k in range(most)]


def literal_medians(values, rows):
    found = []
    for column in values[rows].T.astype(float):
        there = [x for x in column if not math.isnan(x)]
        middle = median(there) if there else 0.0
        found.append(round(middle) if all(x == round(x) for x in there) else middle)
    return found


@pytest.mark.parametrize(("most", "cells"), [(20_000, 4_000_000), (9, 4_000_000), (10, 23)])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_medians_are_of_observed_cells_in_rows_that_are_there(monkeypatch, most, cells, is_sparse):
    values = with_holes(table_of_units(30), share=0.3)
    values[:, 3] = NAN
    values[::2, 4] = 0  # a sparse column of zeros and others
    present = np.arange(30) % 5 != 1
    values[~present] = 1e6
    monkeypatch.setattr(filling, "_MOST_ROWS", most)
    monkeypatch.setattr(filling, "_CELLS_AT_A_TIME", cells)
    rows = np.flatnonzero(present)[spread(present.sum(), most)]
    expected = literal_medians(values, rows)
    given = sparse.csr_array(values) if is_sparse else values
    np.testing.assert_allclose(column_medians(given, present), expected, rtol=1e-6)


def test_the_median_of_an_even_number_of_whole_numbers_is_whole():
    table = np.array([[1, 1.5], [2, 2], [4, 2.5], [9, 3]], np.float32)
    assert column_medians(table, np.ones(4, bool)).tolist() == [3.0, 2.25]
    assert column_medians(table[:, :1], np.array([True, True, False, False])).tolist() == [2.0]  # 1.5 goes to even
    assert column_medians(table, np.zeros(4, bool)).tolist() == [0.0, 0.0]


def test_donors_are_rows_that_are_there_and_not_too_many(monkeypatch):
    values = table_of_units(20)
    mask = np.stack([np.arange(20) % 4 != 0, np.ones(20, bool)], axis=1)
    views = Views([values, values[:, :2]], mask=mask)
    there = np.flatnonzero(mask[:, 0])
    monkeypatch.setattr(filling, "_MOST_DONORS", 7)
    np.testing.assert_array_equal(fit_filler(views).donors[0].values, values[there[spread(15, 7)]])
    monkeypatch.setattr(filling, "_MOST_CELLS", 31)  # 5 rows of 6 columns
    fitted = fit_filler(views)
    np.testing.assert_array_equal(fitted.donors[0].values, values[there[spread(15, 5)]])
    np.testing.assert_array_equal(fitted.donors[1].values, values[spread(20, 7), :2])
    np.testing.assert_array_equal(fitted.thinned(3).donors[0].values, values[there[spread(15, 5)]][spread(5, 3)])
    assert fitted.thinned(3).how == "neighbors"
    np.testing.assert_array_equal(fitted.thinned(3).medians[0], fitted.medians[0])
    assert fit_filler(views, "median").donors[0].values.shape == (0, 6)


@pytest.mark.parametrize("at_a_time", [65_536, 4])
def test_a_filler_fills_each_view_from_its_own_rows_and_says_how_many(monkeypatch, at_a_time):
    monkeypatch.setattr(memory, "_ROWS_AT_A_TIME", at_a_time)
    first, second = table_of_units(21), with_holes(table_of_units(21, seed=3))
    mask = np.stack([np.ones(21, bool), np.arange(21) % 3 != 2], axis=1)
    training = Views({"a": first, "b": second}, mask=mask, columns=[range(6), list("uvwxyz")])
    fitted = fit_filler(training)
    new = second[:9].copy()
    new[4, :5], new[4, 5] = NAN, 9  # 5 of 6 cells are too many
    with pytest.raises(DataError, match=r"view 'b', row 4: 5 of its 6 cells are empty"):
        fitted.apply(Views({"a": first[:9], "b": new}))
    new[4] = second[4]
    filled, found = fitted.apply(Views({"a": first[:9], "b": new}, columns=[range(6), list("uvwxyz")]))
    np.testing.assert_allclose(filled.arrays[1], literal_fill(second[mask[:, 1]], new), rtol=2e-6)
    np.testing.assert_array_equal(filled.arrays[0], first[:9])
    counts = [sum(math.isnan(x) for x in column) for column in new.T]
    (cells,) = found
    assert (cells.view, cells.n_rows, cells.counts.tolist(), cells.by_median) == ("b", 9, counts, 0)
    by_median, found = Filler("median", fitted.medians, fitted.donors).apply(Views({"a": first[:9], "b": new}))
    expected = np.where(np.isnan(new), literal_medians(second, np.flatnonzero(mask[:, 1])), new)
    np.testing.assert_allclose(by_median.arrays[1], expected, rtol=1e-6)
    assert found[0].by_median == 0  # medians were asked for


def test_cells_without_donors_take_medians_and_are_counted():
    training = np.array([[1, NAN, 2], [3, NAN, 4], [5, 7, NAN], [6, 8, 1]], np.float32)
    fitted = fit_filler(Views([training]))
    alone = fitted.donors[0].values.copy()
    alone[:, 1] = NAN
    fitted = Filler("neighbors", fitted.medians, (NearestRows(alone),))
    filled, (cells,) = fitted.apply(Views([np.array([[1, NAN, NAN], [2, 3, NAN]], np.float32)]))
    assert filled.arrays[0].tolist() == [[1, 8, 2], [2, 3, 2]]  # 7.5 and 7 / 3, as whole numbers
    assert (cells.total, cells.by_median) == (3, 1)


@pytest.mark.parametrize("at_a_time", [4_000_000, 3])
def test_cells_of_sparse_views_that_are_empty_take_medians(monkeypatch, at_a_time):
    monkeypatch.setattr(filling, "_CELLS_AT_A_TIME", at_a_time)
    table = np.array([[0, 2, NAN], [1, 0, 0], [3, 0, 4], [NAN, NAN, 5]], np.float32)
    training = np.array([[0, 4, 1], [5, 4, 2], [7, 0, 3.5]], np.float32)
    fitted = fit_filler(Views([sparse.csr_array(training)]))
    views = Views([sparse.csr_array(np.nan_to_num(table) + 1)]).replace(arrays=(sparse.csr_array(table),))
    parts = list(filling.empty_parts(views.arrays[0]))
    assert np.concatenate([rows for rows, _ in parts]).tolist() == [0, 3]
    assert len(parts) == (1 if at_a_time > 3 else 2)
    assert count_empty(views)[0].counts.tolist() == [1, 1, 1]
    filled, (cells,) = fitted.apply(views)
    assert filled.arrays[0].toarray().tolist() == [[0, 2, 2], [1, 0, 0], [3, 0, 4], [5, 4, 5]]
    assert cells.by_median == 0


@pytest.mark.parametrize(("empty", "refused"), [(12, False), (13, True)])
def test_three_tenths_of_a_view_may_be_empty_and_no_more(empty, refused):
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    table[:10, 1][: min(empty, 7)] = NAN
    table[:10, 2][: empty - 7] = NAN
    views = Views({"rna": table})
    assert count_empty(views)[0].share == empty / 40
    if not refused:
        check_training_cells(views)
        return
    with pytest.raises(DataError) as caught:
        check_training_cells(views)
    assert "13 cells of its 10 rows are empty (32%), more than 30%" in str(caught.value)
    assert "worst columns: 1 (7 of 10 rows), 2 (6 of 10 rows); worst rows: 0 (2 of 4 cells), 1 (2" in str(
        caught.value
    ).replace("'", "")


@pytest.mark.parametrize(("empty", "refused"), [(8, False), (9, True)])
def test_four_fifths_of_a_column_or_a_row_may_be_empty_and_no_more(empty, refused):
    table = np.arange(100, dtype=np.float32).reshape(10, 10)
    table[:empty, 3] = NAN
    line = np.arange(100, dtype=np.float32).reshape(10, 10)
    line[6, :empty] = NAN
    for one, words in ((table, "and a column more than 80%"), (line, "row 6: 9 of its 10 cells are empty")):
        if refused:
            with pytest.raises(DataError, match=words):
                check_training_cells(Views([one]))
        else:
            check_training_cells(Views([one]))


def test_shares_count_rows_that_have_the_view_alone():
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    table[:3, 1], table[5:] = NAN, NAN
    (cells,) = count_empty(Views({"rna": table, "other": np.ones((10, 1))}, columns=[list("abcd"), ["e"]]))
    assert (cells.n_rows, cells.total, cells.share) == (5, 3, 3 / 20)
    more = EmptyCells("rna", 7, list("abcd"), np.array([4, 0, 5, 4]), by_median=2)
    both = cells + more
    assert (both.n_rows, both.counts.tolist(), both.by_median) == (12, [4, 3, 5, 4], 2)
    assert list(both.by_column().items()) == [("c", 5), ("a", 4), ("d", 4), ("b", 3)]
    assert both.facts() == {"cells": 16, "share": 16 / 48, "by_median": 2, "columns": {"c": 5, "a": 4, "d": 4, "b": 3}}
    said = in_words("rna", both.facts())
    assert said == (
        "rna: 16 cells (33.3%) in 4 columns, most in 'c' (5), 'a' (4), 'd' (4); "
        "2 of them take medians, as no row could help"
    )
    one = {"cells": 1, "share": 0.0004, "by_median": 0, "columns": {"a": 1}}
    assert in_words("v", one) == "v: 1 cell (below 0.1%) in columns 'a' (1)"
    assert "(0.1%)" in in_words("v", one | {"share": 0.0005})
    with pytest.warns(EmptyCellsWarning, match=r"filled: rna: 3 cells \(15.0%\) in columns 'b' \(3\); rna: 13 cells"):
        filling.warn_of_filled([cells, more])


def test_cells_that_are_filled_a_few_samples_at_a_time_are_added_up():
    table = with_holes(table_of_units(20))
    fitted = fit_filler(Views({"a": table}))

    class Model:
        def complete(self, views):
            return fitted.apply(views)

    counted = Filled(Model())
    assert counted.facts(as_json=True) == {}
    parts = [counted.complete(Views({"a": table[rows]})) for rows in (slice(0, 7), slice(7, 20))]
    np.testing.assert_array_equal(np.vstack([p.arrays[0] for p in parts]), fitted.apply(Views([table]))[0].arrays[0])
    total = int(np.isnan(table).sum())
    assert counted.totals() == {"a": total}
    facts = counted.facts(as_json=True)["filled_cells"]["a"]
    assert (facts["cells"], facts["share"]) == (total, total / table.size)
    assert counted.facts(as_json=False)["filled_cells"][0].startswith(f"a: {total} cells")


def test_for_a_look_at_the_data_all_empty_cells_take_medians():
    table = np.array([[1, NAN, 5], [NAN, NAN, 7], [NAN, 2.5, 8], [90, 90, 90]], np.float32)
    mask = np.array([[1, 1], [1, 0], [1, 1], [0, 1]], bool)
    views = Views({"a": table, "b": np.arange(8.0).reshape(4, 2)}, mask=mask)
    found = filling.filled_by_median(views)
    assert found.arrays[0].tolist() == [[1, 2.5, 5], [1, 2.5, 7], [1, 2.5, 8], [0, 0, 0]]
    assert found.arrays[1] is views.arrays[1]


def test_a_column_half_of_which_is_zero_has_a_median_between():
    table = np.array([[0, 0.5], [0, 0], [3, 0], [5, 0]], np.float32)
    for one in (table, sparse.csr_array(table)):
        assert column_medians(one[:, [0]] + one[:, [0]] * 0.1, np.ones(4, bool)).tolist() == pytest.approx([1.65])
        assert column_medians(one, np.ones(4, bool)).tolist() == [2.0, 0.0]  # 1.5 goes to even


def test_where_nothing_fills_cells_the_first_empty_one_is_told():
    table = table_of_units(8)
    table[5, 2], table[6, 0] = NAN, NAN
    views = Views({"a": table_of_units(8), "b": table}, ids=list("stuvwxyz"), columns=[range(6), list("lmnopq")])
    words = r"view 'b', row 5 \(id 'x'\), column 2 \('n'\): the cell is empty"
    with pytest.raises(DataError, match=words):
        fit_filler(views, "error")
    with pytest.raises(DataError, match=words):
        Filler("error").apply(views)
    assert fit_filler(views[:5], "error").medians == ()
