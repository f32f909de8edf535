"""Kinds of views, transforms, components, sparse tables, masks and scores beside versions in plain loops."""

from __future__ import annotations

import math
from statistics import median

import numpy as np
import pytest
import scipy.sparse as sp

from viewfuse import baselines, metrics
from viewfuse.data import input_types as parts_and_rows
from viewfuse.data import sparse_tables
from viewfuse.data.tables import column_bounds
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.missing import hide_more
from viewfuse.reduction import components, reduce
from viewfuse.reduction.components import fit_components
from viewfuse.reduction.reduce import FrontEnd, Reduction, fit_front_end, fit_reduction, kind_of
from viewfuse.reduction.transforms import Transform, fit_transform

BOTH = pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix, sp.csc_array], ids=["dense", "csr", "csc"])
PARTS = pytest.mark.parametrize("cells", [8_000_000, 19], ids=["whole", "parts"])


def counts(n=14, width=6, seed=0):
    """Whole numbers, half of them zero, rows and columns of unlike sums, one row and one column of zeros."""
    rng = np.random.default_rng(seed)
    values = rng.poisson(2.0 ** np.arange(width) / 3 * rng.uniform(0.2, 3, size=(n, 1))).astype(np.float32)
    values[rng.random(values.shape) < 0.3] = 0
    values[2], values[:, 1] = 0, 0
    return values


def hidden(n):
    return np.arange(n) % 5 != 3


def literal_kind(rows):
    cells = [float(x) for row in rows for x in row]
    other = [x for x in cells if x != 0]
    deviations = [d for d in (float(np.std(column)) for column in rows.T.astype(float)) if d > 0]
    return {
        "zeros": 1 - len(other) / len(cells),
        "whole": sum(x == round(x) for x in other) / len(other),
        "least": min(cells),
        "largest": max(cells),
        "tail": max(cells) / (sum(other) / len(other)) if min(cells) >= 0 else 0.0,
        "per_row": median(sum(x != 0 for x in row) for row in rows),
        "units": max(deviations) / median(deviations),
        "skew": median(max(c) / np.mean(c) for c in rows.T.tolist() if any(c)) if min(cells) >= 0 else 0.0,
    }


@BOTH
@PARTS
@pytest.mark.parametrize("change", [lambda x: x, lambda x: x - 1, lambda x: x + 2.5, lambda x: x * 1.5 + 1e3 * (x > 9)])
def test_a_kind_says_what_the_rows_that_are_there_say(monkeypatch, make, cells, change):
    monkeypatch.setattr(parts_and_rows, "_CELLS_AT_A_TIME", cells)
    values, present = change(counts()).astype(np.float32), hidden(14)
    values[~present] = -700.5
    found = kind_of(make(values), present)
    for name, expected in literal_kind(values[present]).items():
        assert getattr(found, name) == pytest.approx(expected, rel=1e-6), name


@pytest.mark.parametrize(
    ("facts", "name"),
    [((0.9, 1, 0, 5, 2, 499), "words"), ((0.9, 1, 0, 5, 2, 500), "intensities"), ((0.89, 1, 0, 5, 2, 9), "intensities"),
     ((0.95, 1, 0, 1, 1, 9), "words"), ((0.8, 1, 0, 1, 1, 9), "binary"), ((0.8, 0.9, 0, 1, 1, 9), "intensities"),
     ((0.5, 1, 0, 50, 10, 9), "intensities"), ((0.5, 1, 0, 50, 10.1, 9), "counts"),
     ((0.51, 1, 0, 50, 3, 9), "intensities"), ((0.51, 1, 0, 50, 3.1, 9), "counts"),
     ((0.5, 0.9, 0, 50, 100, 9), "intensities"), ((0.5, 0.9, 0, 50, 100.1, 9), "counts"),
     ((0.5, 0.95, 0, 50, 10.1, 9), "counts"), ((0.5, 0.949, 0, 50, 10.1, 9), "intensities"),
     ((0.5, 0, 0, 100, 10.1, 9, 3.1), "counts"), ((0.5, 0, 0, 99, 10.1, 9, 3.1), "intensities"),
     ((0.5, 0, 0, 100, 10, 9, 3.1), "intensities"), ((0.5, 0, 0, 100, 10.1, 9, 3), "intensities"),
     ((0.99, 1, 0, 1, 1, 9), "links"), ((0.99, 1, 0, 2.2, 2, 499), "links"), ((0.99, 1, 0, 2.3, 2, 9), "words"),
     ((0.99, 0.9, 0, 1, 1, 9), "words"), ((0.99, 1, 0, 1, 1, 500), "binary"),
     ((0.95, 1, -1, 5, 0, 9), "measurements"), ((1.0, 0, 0, 0, 0, 0), "measurements")],
)  # fmt: skip
def test_kinds_have_the_bounds_that_are_written(facts, name):
    assert reduce._name(*facts) == name


def test_a_view_that_nobody_has_holds_measurements_of_nothing():
    found = kind_of(counts(), np.zeros(14, bool))
    assert (found.name, found.zeros, found.whole, found.largest, found.units) == ("measurements", 0, 0, 0, 1)


def by_rows(given):
    return sparse_tables.canonical(given) if sp.issparse(given) else given


@BOTH
@PARTS
def test_sums_bounds_and_deviations_of_tables(monkeypatch, make, cells):
    monkeypatch.setattr(parts_and_rows, "_CELLS_AT_A_TIME", cells)
    values, present = counts() - 4 * (counts() > 6), hidden(14)
    values[:, 1] = 7.0  # constant
    there, given = values[present].astype(float), make(values)
    parts = list(parts_and_rows.parts_of(given, present))
    assert len(parts) == (1 if cells > 19 else len(list(parts_and_rows.part_slices(by_rows(given)))))
    np.testing.assert_array_equal(np.vstack([p.toarray() if sp.issparse(p) else p for p in parts]), there)
    low, high = column_bounds(given, present)
    assert (low.tolist(), high.tolist()) == (there.min(axis=0).tolist(), there.max(axis=0).tolist())
    expected = [math.sqrt(sum((x - sum(c) / len(c)) ** 2 for x in c) / len(c)) for c in there.T.tolist()]
    np.testing.assert_allclose(parts_and_rows.column_deviations(given, present), expected, rtol=1e-12)
    rows = by_rows(given)
    assert parts_and_rows.row_sums(rows).tolist() == values.sum(axis=1).tolist()
    assert parts_and_rows.column_sums(rows).tolist() == values.sum(axis=0).tolist()
    np.testing.assert_allclose(parts_and_rows.row_lengths(rows), [math.hypot(*row) for row in values.tolist()])
    factors = {14: np.arange(14.0) - 3, 6: np.arange(6.0) - 2}
    for found, wanted in (
        (parts_and_rows.times_rows(rows, factors[14]), values * factors[14][:, None]),
        (parts_and_rows.times_columns(rows, factors[6]), values * factors[6]),
    ):
        np.testing.assert_array_equal(found.toarray() if sp.issparse(found) else found, wanted)


def test_a_column_is_constant_below_a_ten_millionth_of_its_mean():
    values = np.array([[1e6, 1e6], [1e6 + 0.5, 1e6 + 0.1]])
    deviations = parts_and_rows.column_deviations(values, np.ones(2, bool))
    assert deviations.tolist() == [0.25, 0.0]


def test_parts_have_so_many_cells():
    slices = list(parts_and_rows.part_slices(np.zeros((10, 3_000_000), np.int8)))
    assert [(one.start, one.stop) for one in slices] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]


def literal_transform(rows, there, name):
    """Transformed rows, and the typical size, from the rows that are there."""
    if name == "standard":
        return [
            [x / d if (d := float(np.std(c))) else x for x, c in zip(row, there.T, strict=True)] for row in rows
        ], 1.0
    if name == "log1p":
        return [[math.log1p(max(x, 0)) for x in row] for row in rows], 1.0
    if name == "log":
        typical = median(sum(row) for row in there.tolist() if sum(row) > 0)
        return [[math.log1p(x * typical / (sum(row) or 1)) for x in row] for row in rows], typical
    if name == "links":
        typical, usual = there.sum() / len(there), there.sum() / there.shape[1]
        sums = there.sum(axis=0).tolist()
        return [
            [max(x, 0) / math.sqrt(c + usual) / math.sqrt(sum(row) + typical) for x, c in zip(row, sums, strict=True)]
            for row in rows
        ], typical
    having = [sum(x != 0 for x in column) for column in there.T.tolist()]
    idf = [1 + math.log((1 + len(there)) / (1 + h)) if name == "terms" else 1.0 for h in having]
    weighted = [[math.log1p(x) * w for x, w in zip(row, idf, strict=True)] for row in rows]
    typical = median(
        math.hypot(*(math.log1p(x) * w for x, w in zip(row, idf, strict=True)))
        for row in there.tolist()
        if sum(row) > 0
    )
    return [[x / (math.hypot(*row) or 1) for x in row] for row in weighted], typical


@BOTH
@PARTS
@pytest.mark.parametrize("name", ["standard", "log1p", "log", "terms", "weighted", "links"])
def test_transforms_are_what_their_names_say(monkeypatch, make, cells, name):
    monkeypatch.setattr(parts_and_rows, "_CELLS_AT_A_TIME", cells)
    values, present = counts(), hidden(14)
    values[~present] *= 10
    fitted = fit_transform(make(values), present, name)
    expected, typical = literal_transform(values.tolist(), values[present], name)
    found = fitted.apply(by_rows(make(values)))
    found = found.toarray() if sp.issparse(found) else found
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)
    assert fitted.typical == pytest.approx(typical)
    sums, lengths = values.sum(axis=1, keepdims=True), 1.0
    if name == "log":
        lengths = typical / np.where(sums > 0, sums, 1)
    if name == "links":
        lengths = np.sqrt(2 * typical / (sums + typical))
    if name in ("terms", "weighted"):
        return  # the length of a row is lost; see the next test
    np.testing.assert_allclose(fitted.undo(found), values * lengths, rtol=1e-6, atol=1e-6)


def test_words_come_back_as_if_each_row_had_the_typical_length():
    fitted = Transform("terms", 3.0, np.array([1.0, 2.0], np.float32))
    np.testing.assert_allclose(fitted.undo(np.array([[0.5, 1.0], [-0.2, 0.1]])), np.expm1([[1.5, 1.5], [0, 0.15]]))
    plain = Transform("weighted", 2.0)
    np.testing.assert_allclose(plain.undo(np.array([[0.5, -1.0]])), np.expm1([[1.0, 0.0]]))


@pytest.mark.parametrize("solver", ["_by_columns", "_by_rows", "_by_iteration"])
@BOTH
@pytest.mark.parametrize("centred", [True, False])
def test_components_are_those_of_a_singular_value_decomposition(monkeypatch, solver, make, centred):
    n, width = (40, 9) if solver == "_by_columns" else (9, 40)
    rng = np.random.default_rng(3)
    values = rng.normal(size=(n, 5)) @ rng.normal(size=(5, width)) * 3 + np.linspace(20, 90, width)
    monkeypatch.setattr(components, "_EXACT", 0 if solver == "_by_iteration" else 2_500)
    used = getattr(components, solver)
    asked = []
    monkeypatch.setattr(components, solver, lambda *given: asked.append(1) or used(*given))
    halves = [make(values[: n // 3]), make(values[n // 3 :])]
    halves = [half.tocsr() if sp.issparse(half) else half for half in halves]
    found = fit_components(lambda: iter(halves), 3, centred=centred)
    about = values - values.mean(axis=0) if centred else values
    _, sizes, axes = np.linalg.svd(about, full_matrices=False)
    axes = np.array([axis * np.sign((axis**3).sum()) for axis in axes[:3]])
    assert asked
    np.testing.assert_allclose(found.mean, values.mean(axis=0) if centred else np.zeros(width))
    np.testing.assert_allclose(found.axes, axes.T, atol=1e-6)
    assert found.kept == pytest.approx((sizes[:3] ** 2).sum() / (sizes**2).sum())
    assert found.kept < 0.999
    np.testing.assert_allclose(found.project(halves[1]), about[n // 3 :] @ axes.T, atol=1e-4)


@pytest.mark.parametrize(("n", "parts", "width", "solver"), [
    (25, 1, 26, "_by_rows"), (26, 1, 27, "_by_iteration"), (25, 16, 26, "_by_rows"),
    (25, 17, 26, "_by_iteration"), (25, 17, 25, "_by_columns"), (24, 1, 25, "_by_rows"),
    (99, 40, 25, "_by_columns"), (99, 40, 26, "_by_iteration")])  # fmt: skip
def test_a_table_is_solved_by_its_shorter_side(monkeypatch, n, parts, width, solver):
    assert components._EXACT == 2_500
    monkeypatch.setattr(components, "_EXACT", 25)
    asked, used = [], getattr(components, solver)
    monkeypatch.setattr(components, solver, lambda *given: asked.append(1) or used(*given))
    values = np.random.default_rng(0).normal(size=(n, width))
    fit_components(lambda: iter(np.array_split(values, parts)), 3, centred=True)
    assert asked


def test_directions_along_which_no_row_differs_are_left_out():
    values = np.outer(np.arange(6.0), [1, 2, 0]) + 5
    found = fit_components(lambda: iter([values]), 3, centred=True)
    assert found.axes.shape == (3, 1)
    assert found.kept == pytest.approx(1)
    still = fit_components(lambda: iter([np.full((4, 3), 7.0)]), 2, centred=True)
    assert (still.axes.tolist(), still.kept, still.mean.tolist()) == ([[0.0]] * 3, 1.0, [7.0] * 3)


@BOTH
@PARTS
@pytest.mark.parametrize("how", ["pca", "standard", "log1p", "counts", "words", "links"])
def test_front_ends_project_transformed_rows_and_bring_them_back(monkeypatch, make, cells, how):
    values, present = counts(16, 8), hidden(16)
    values[~present] = 99
    monkeypatch.setattr(parts_and_rows, "_CELLS_AT_A_TIME", 2 * cells)
    name = {"pca": "none", "counts": "log", "words": "terms"}.get(how, how)
    rows, _ = literal_transform(values.tolist(), values[present], name) if how != "pca" else (values, 1.0)
    rows = np.array(rows)
    monkeypatch.setattr(reduce, "_FEWEST", 4)
    monkeypatch.setattr(reduce, "_MOST", 4)
    found = fit_front_end(make(values), present, how)
    sparse = how in ("words", "links")
    mean = np.zeros(8) if sparse else rows[present].mean(axis=0)
    _, sizes, axes = np.linalg.svd(rows[present] - mean, full_matrices=False)
    axes = np.array([axis * np.sign((axis**3).sum()) for axis in axes[:4]])
    weights = (sizes[:4] / sizes[0]) ** 2 if how == "links" else np.ones(4)
    scores = (rows - mean) @ axes.T * weights
    lengths = np.linalg.norm(scores, axis=1, keepdims=True)
    if sparse:
        assert found.length == pytest.approx(median(lengths[present].ravel().tolist()), rel=1e-5)
        scores = scores / np.where(lengths > 0, lengths, 1)
    expected = np.where(present[:, None], scores, 0)
    reduced = found.apply(make(values), present)
    np.testing.assert_allclose(reduced, expected, atol=2e-4)
    np.testing.assert_allclose(found.apply(make(values))[~present], scores[~present], atol=2e-3)
    full = found.transform.undo((reduced * (found.length or 1) / weights) @ axes + mean)
    low, high = values[present].min(axis=0), values[present].max(axis=0)
    np.testing.assert_allclose(found.invert(reduced), np.clip(full, low, high), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("n", "rank"), [(110, 10), (111, 11), (400, 20), (2_600, 50)])
def test_as_many_components_as_the_root_of_the_samples(n, rank):
    wide = np.random.default_rng(0).normal(size=(n, 257)).astype(np.float32)
    assert fit_front_end(wide, np.arange(n) % 4 > 0).columns == rank  # samples that lack the view count as well


def test_columns_of_one_unit_end_at_twenty_times_the_median_deviation():
    wide = np.random.default_rng(0).normal(size=(50, 300))
    wide = wide / wide.std(axis=0)
    for factor, how in ((19.9, "pca"), (20.1, "standard")):
        values = wide * np.where(np.arange(300) == 7, factor, 1)
        assert fit_front_end(values.astype(np.float32), np.ones(50, bool)).how == how
        assert fit_front_end(values[:, :64].astype(np.float32), np.ones(50, bool)).how == "none"


def test_counts_of_one_column_and_values_below_zero_are_refused():
    everyone = np.ones(14, bool)
    with pytest.raises(DataError, match="'words' would leave nothing of a view of one column"):
        fit_front_end(counts()[:, :1], everyone, "words")
    with pytest.raises(DataError, match="'log1p' is for values of at least 0, but the least one is -1"):
        fit_front_end(counts() - 1, everyone, "log1p")
    assert fit_front_end(counts()[:, :1], everyone, "log1p").columns == 1


@pytest.mark.parametrize("part", ["mean", "axes", "low", "high", "weights", "kept", "how", "crossed"])
def test_a_front_end_that_does_not_fit_is_refused(part):
    fitted = fit_front_end(counts(), np.ones(14, bool), "standard")
    fitted.check(6)
    facts, arrays = fitted.facts(), fitted.arrays()
    if part == "kept":
        facts["kept"] = math.nan
    elif part == "how":
        facts["how"] = "auto"
    elif part == "crossed":
        arrays["low"], arrays["high"] = arrays["high"] + 1, arrays["low"]
    else:
        arrays[part] = arrays[part][:-1]
    with pytest.raises(ValueError, match="not one of 6 columns"):
        FrontEnd.from_saved(facts, arrays).check(6)


def test_a_reduction_reduces_each_view_by_its_own_front_end():
    rng = np.random.default_rng(0)
    wide, words = rng.normal(size=(30, 300)).astype(np.float32), (rng.random((30, 80)) < 0.05).astype(np.float32)
    mask = np.stack([hidden(30), np.ones(30, bool), ~hidden(30) | (np.arange(30) < 9)], axis=1)
    views = Views({"m": wide, "n": wide[:, :3], "w": words}, mask=mask, columns=[range(300), list("abc"), range(80)])
    found = fit_reduction(views, {"w": "words"})
    assert [one.how for one in found.front_ends] == ["pca", "none", "words"]
    assert found.units == ("view", "columns", "view")
    assert Reduction(found.front_ends[2:]).units == ("rows",)
    reduced = found.apply(views)
    for v in (0, 2):
        expected = fit_front_end(views.arrays[v], mask[:, v], ("auto", "", "words")[v]).apply(
            views.arrays[v], mask[:, v]
        )
        np.testing.assert_array_equal(reduced.arrays[v], expected)
    assert reduced.columns == (range(10), ["a", "b", "c"], range(found.front_ends[2].columns))
    assert reduced.arrays[1] is views.arrays[1]
    said = found.facts(views, {"w": "words"})
    assert said["chosen"] == {"m": "pca", "n": "none", "w": "words"}
    assert said["columns"] == {"m": [300, 10], "n": [3, 3], "w": [80, found.front_ends[2].columns]}
    assert said["asked"] == ["w"]
    assert said["evidence"]["w"]["zeros"] == pytest.approx((words[mask[:, 2]] == 0).mean())
    assert found.facts(views, "words")["asked"] == ["m", "n", "w"]


def sparse_example():
    return sp.csr_array(np.array([[0, 2, 0], [0, 0, 0], [-1, 0, 5], [3, 3, 0], [0, 0, 7]], np.float32))


def test_parts_of_sparse_tables(monkeypatch):
    matrix, dense = sparse_example(), sparse_example().toarray()
    present = np.array([True, True, False, True, True])
    monkeypatch.setattr(parts_and_rows, "_CELLS_AT_A_TIME", 2)
    parts = [part.toarray().tolist() for part in parts_and_rows.parts_of(matrix, present)]
    assert parts == [dense[[row]].tolist() for row in (0, 1, 3, 4)]
    low, high = column_bounds(matrix, present)
    assert (low.tolist(), high.tolist()) == ([0, 0, 0], [3, 3, 7])
    assert column_bounds(matrix, np.array([False, False, True, True, False]))[0].tolist() == [-1, 0, 0]
    assert sparse_tables.rows_of_cells(matrix, matrix.data > 2).tolist() == [0, 0, 1, 2, 1]
    kept = sparse_tables.spread_rows(matrix[np.flatnonzero(present)], present).toarray()
    np.testing.assert_array_equal(kept, dense * present[:, None])
    placed = sparse_tables.placed_rows(matrix, np.array([3, -1, 0, 4])).toarray()
    np.testing.assert_array_equal(placed, [dense[3], [math.nan, 0, 0], dense[0], dense[4]])
    assert sparse_tables.nan_rows(sparse_tables.placed_rows(matrix, np.array([3, -1, 1]))).tolist() == [
        False,
        True,
        False,
    ]
    found = sparse_tables.with_columns(matrix, np.array([2, -1, 0]), present).toarray()
    expected = dense[:, [2, 2, 0]].copy()
    expected[:, 1] = np.where(present, math.nan, 0)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("cells", [4_000_000, 5, 1])
def test_columns_of_a_sparse_table_keep_their_values_and_two_zeros(monkeypatch, cells):
    monkeypatch.setattr(sparse_tables, "_CELLS_AT_A_TIME", cells)
    dense = np.zeros((9, 4), np.float32)
    dense[[1, 4, 5], 2], dense[8, 0], dense[:, 3] = [3, 1, 2], 6, np.arange(1, 10)
    seen = {}
    for columns, values in sparse_tables.column_blocks(sp.csr_array(dense)):
        for place, column in enumerate(columns.tolist()):
            assert column not in seen
            seen[column] = sorted(values[:, place].tolist())
    for column, found in seen.items():
        stored = sorted(x for x in dense[:, column].tolist() if x)
        zeros = found.count(0.0)
        assert [x for x in found if x] == stored
        assert min(9 - len(stored), 2) <= zeros <= 9 - len(stored)
    assert set(seen) == {0, 1, 2, 3}


def test_views_are_hidden_as_the_paper_hides_them_among_those_that_a_sample_has():
    rng, mask = np.random.default_rng(0), np.random.default_rng(5).random((200, 5)) < 0.7
    mask[~mask.any(axis=1), 0] = True
    left = hide_more(mask, 0.4, 2, random_state=7)
    lost = (mask & ~left).sum(axis=1)
    assert not (left & ~mask).any()
    touched = np.flatnonzero(lost)
    chosen = np.random.default_rng(7).choice(200, size=80, replace=False)
    assert set(touched) <= set(chosen.tolist())
    for row in chosen:
        assert lost[row] == min(2, mask[row].sum() - 1)
    assert sorted(chosen.tolist()) != list(range(80))
    assert (hide_more(mask, 0.4, 2, random_state=7) == left).all()
    assert (hide_more(mask, 0.4, 0, random_state=7) == mask).all()
    whole = np.ones((3000, 3), bool)
    shares = (~hide_more(whole, 1.0, 1, random_state=rng)).mean(axis=0)
    assert shares == pytest.approx([1 / 3] * 3, abs=0.04)


def test_scores_of_a_case_that_was_worked_out_by_hand():
    """Classes of 3, 2 and 1, clusters of 4 and 2: the contingency table is (3 0), (1 1), (0 1)."""
    true, pred = [0, 0, 0, 1, 1, 2], ["b", "b", "b", "b", "a", "a"]
    together = 3 / 6 * math.log(3 * 6 / (3 * 4)) + 1 / 6 * math.log(6 / (2 * 4)) + 1 / 6 * math.log(6 / (2 * 2))
    together += 1 / 6 * math.log(6 / (1 * 2))
    entropies = [-sum(n / 6 * math.log(n / 6) for n in sizes) for sizes in ((3, 2, 1), (4, 2))]
    assert metrics.nmi(true, pred) == pytest.approx(2 * together / sum(entropies))
    pairs, rows, columns, every = 3, 3 + 1, 6 + 1, 15
    chance = rows * columns / every
    assert metrics.ari(true, pred) == pytest.approx((pairs - chance) / ((rows + columns) / 2 - chance))
    assert metrics.clustering_accuracy(true, pred) == pytest.approx(4 / 6)
    assert metrics.clustering_accuracy(pred, true) == pytest.approx(4 / 6)


def test_gaps_are_filled_in_the_units_of_the_data():
    """Neighbours are found on min-max scaled columns, and lend what they have in its own unit."""
    rng = np.random.default_rng(2)
    first = rng.normal(size=(12, 2)) * [1000, 0.01] + [500, 3]
    second = rng.normal(size=(12, 1)) * 50 - 7
    mask = np.ones((12, 2), bool)
    mask[[3, 8], 1], mask[5, 0] = False, False
    views = Views([first, second], mask=mask)
    low, high = (np.array([f(first[mask[:, 0], c]) for c in range(2)]) for f in (min, max))
    scaled = [(first - low) / (high - low), second / (max(second[mask[:, 1]]) - min(second[mask[:, 1]]))]

    def apart(i, j):
        common = [v for v in range(2) if mask[i, v] and mask[j, v]]
        squares = sum(float(((scaled[v][i] - scaled[v][j]) ** 2).sum()) for v in common)
        return math.sqrt(squares * 3 / sum((2, 1)[v] for v in common)) if common else math.inf

    means, nearest = baselines.filled_by_mean(views), baselines.filled_by_nearest(views, count=3)
    for v, given in enumerate((first, second)):
        for i in range(12):
            donors = sorted((apart(i, j), j) for j in range(12) if mask[j, v] and j != i)[:3]
            own = given[i] if mask[i, v] else given[[j for _, j in donors]].mean(axis=0)
            np.testing.assert_allclose(nearest[v][i], own, rtol=1e-4)
            np.testing.assert_allclose(
                means[v][i], given[i] if mask[i, v] else given[mask[:, v]].mean(axis=0), rtol=1e-4
            )
