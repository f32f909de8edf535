"""Scalings, their choice and suspicions beside versions in plain loops, on columns of unlike units."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from test_literal_cells import table_of_units
from viewfuse.data import alignment, checks, scaling
from viewfuse.data import scaling as mixing
from viewfuse.data.checks import data_warnings, suspicious_columns
from viewfuse.data.scaling import Scaler, fit_scaler
from viewfuse.data.views import Views
from viewfuse.utils import memory


def literal_scale(values, kind):
    """Shift and factor of the columns of rows that are there."""
    low, high, mean = values.min(axis=0), values.max(axis=0), values.mean(axis=0)
    variance = ((values - mean) ** 2).mean(axis=0)
    constant = low == high
    factor = {
        "minmax": high - low,
        "range": np.repeat((high - low).max(), len(low)),
        "rows": np.repeat(2 * (high - low).max(), len(low)),
        "standard": np.sqrt(variance),
        "view": np.repeat(np.sqrt(variance.mean()), len(low)),
        "none": np.ones(len(low)),
    }[kind]
    shift = {"none": np.zeros(len(low))}.get(kind, low if kind in ("minmax", "range", "rows") else mean)
    return shift, factor if kind == "none" else np.where(constant, 1.0, factor)


@pytest.mark.parametrize("at_a_time", [65_536, 7])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize(
    ("kind", "unit", "measured"),
    [("minmax", "columns", "minmax"), ("minmax", "view", "range"), ("minmax", "rows", "rows"), ("none", "rows", "none"),
     ("standard", "columns", "standard"), ("standard", "view", "view"), ("standard", "rows", "rows"),
     ("view", "columns", "view"), ("view", "view", "view"), ("mixed", "view", "view"), ("mixed", "rows", "rows")],
)  # fmt: skip
def test_scalings_are_what_their_names_say(monkeypatch, kind, unit, measured, is_sparse, at_a_time):
    monkeypatch.setattr(memory, "_ROWS_AT_A_TIME", at_a_time)
    monkeypatch.setattr("viewfuse.data.input_types._CELLS_AT_A_TIME", 6 * at_a_time)
    values, present = table_of_units(25), np.arange(25) % 4 != 3
    values[~present] = -1e7
    given = sparse.csr_array(values) if is_sparse else values
    views = Views([given, values[:, :1]], mask=np.stack([present, np.ones(25, bool)], axis=1))
    found = fit_scaler(views, kind, (unit, "view"))
    shift, factor = literal_scale(values[present].astype(np.float64), measured)
    np.testing.assert_allclose(found.shifts[0], shift, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.factors[0], factor, rtol=1e-6)
    assert found.whole == (unit != "columns" or kind == "view", True)
    scaled = found.apply(views).arrays[0]
    expected = np.where(present[:, None], (values - shift) / factor, 0)
    np.testing.assert_allclose(scaled, expected, atol=2e-3 if kind == "none" else 1e-4)
    np.testing.assert_allclose(found.undo(0, scaled)[present], values[present], rtol=1e-5, atol=1e-3)


def test_mixed_asks_for_views_of_columns_and_no_others(monkeypatch):
    values = table_of_units(25)
    views = Views([values] * 3)
    monkeypatch.setattr(scaling, "views_as_a_whole", lambda _: (True, False, False))
    found = fit_scaler(views, "mixed", ("columns", "columns", "view"))
    assert found.whole == (True, False, True)
    for v, kind in enumerate(("view", "standard", "view")):
        np.testing.assert_allclose(found.factors[v], literal_scale(values.astype(float), kind)[1], rtol=1e-6)
    monkeypatch.setattr(scaling, "views_as_a_whole", lambda _: pytest.fail("nobody asked"))
    fit_scaler(views, "mixed", ("view", "rows", "view"))
    fit_scaler(views, "standard")


def test_scalings_do_the_same_where_all_numbers_are_the_same():
    one = Scaler("standard", (np.zeros(2), np.ones(1)), (np.ones(2), np.ones(1)))
    assert one.does_the_same(Scaler("mixed", one.shifts, one.factors))
    assert not one.does_the_same(Scaler("standard", one.shifts, (np.ones(2), np.full(1, 2.0))))
    assert not one.does_the_same(Scaler("standard", (np.zeros(2), np.zeros(1)), one.factors))


def test_a_view_that_nobody_has_is_not_scaled():
    views = Views([table_of_units(8), table_of_units(8)], mask=np.tile([True, False], (8, 1)))
    found = fit_scaler(views, "standard")
    assert (found.shifts[1].tolist(), found.factors[1].tolist()) == ([0.0] * 6, [1.0] * 6)


def test_rows_that_stand_for_many_are_drawn_at_random_and_once_for_all(monkeypatch):
    monkeypatch.setattr(mixing, "_MOST_ROWS", 6)
    shared = np.arange(40) % 3 != 0
    drawn = mixing._shared_rows(shared)
    again = np.random.RandomState(0).permutation(np.flatnonzero(shared))[:6]
    assert drawn.tolist() == sorted(again.tolist())
    assert mixing._shared_rows(np.arange(40) % 8 == 0).tolist() == [0, 8, 16, 24, 32]


def test_nearest_rows_are_in_order_and_lots_decide_among_equals():
    points = np.array([[0.0, 0], [3, 4], [0, 5], [5, 0], [1, 0], [-4, 3]] + [[100.0 + i, 0] for i in range(9)])
    ties = np.full((15, 15), 0.5)
    ties[0, [1, 2, 3, 5]] = [0.3, 0.1, 0.9, 0.2]  # all of them 5 away from the first
    near = mixing._nearest(points, ties)
    assert near.shape == (15, 10)
    assert near[0, :5].tolist() == [4, 2, 5, 1, 3]
    assert near[14, :3].tolist() == [13, 12, 11]
    both = mixing._nearest_both_ways((points * [1, 50]).astype(np.float32), np.zeros((15, 15)))
    for found, scale in zip(both, (1 / (points * [1, 50]).std(axis=0), (1, 1)), strict=True):
        own = points * [1, 50] * scale
        far = [math.dist(own[2], other) for other in own]
        assert found[2].tolist() == [j for _, j in sorted((d, j) for j, d in enumerate(far) if j != 2)][:10]


def test_the_share_of_neighbours_that_are_near_elsewhere():
    near = np.array([[1, 2, 3, 4, 9, 9, 9, 9, 9, 9]])
    elsewhere = [np.array([[4, 3, 7, 7, 7, 7, 7, 7, 7, 7]]), np.array([[1, 2, 3, 9, 7, 7, 7, 7, 7, 7]])]
    assert mixing._overlap(near, elsewhere).tolist() == [(2 / 4 + 3 / 4) / 2]


def literal_reasons(column):
    """Why a column is suspicious, from its values alone."""
    ordered, found = sorted(map(float, column)), []
    zeros = sum(x == 0 for x in ordered) / len(ordered)
    if ordered[0] == ordered[-1]:
        found.append("constant")
    for own in (ordered, [-x for x in reversed(ordered)]):
        others = [x for x in own if x != own[0]]
        if others and others[-1] > others[0]:
            gap, width = others[0] - own[0], others[-1] - others[0]
            mark = own[0] in (-9, -99, -999, -9999, -99999) and others[0] >= 0
            if mark or gap > (1e4 if zeros > 0.5 else 10) * width:
                found.append("far")
    if len(ordered) > 2 and all(b - a == 1 for a, b in pairwise(ordered)):
        found.append("ids")
    return found


COLUMNS = {
    "constant": [3.0] * 30,
    "ids": [float(i) for i in range(7, 37)],
    "steps of two": [2.0 * i for i in range(30)],
    **{
        f"mark {own:.0f}": [own] + [-own / 20 * i for i in range(29)]
        for own in (-9.0, -99.0, -999.0, -9999.0, -99999.0)
    },
    "mark of the negative": [-9.0] + [i / 7 - 1 for i in range(29)],
    "no mark": [-8.0] + [i / 7 for i in range(29)],
    "far below": [-101.0] * 3 + [float(i % 10) for i in range(27)],
    "just not": [-90.0] * 3 + [float(i % 10) for i in range(27)],
    "far above": [100.0] + [float(i % 10) for i in range(29)],
    "just not above": [99.0] + [float(i % 10) for i in range(29)],
    "far among zeros": [0.0] * 18 + [1.0, 2.0] * 5 + [19_999.0, 2.0],
    "farther among zeros": [0.0] * 18 + [1.0, 2.0] * 5 + [20_003.0, 2.0],
    "two values": [-999.0] * 15 + [1.0] * 15,
    "noise": [math.sin(i) for i in range(30)],
}


@pytest.mark.parametrize("is_sparse", [False, True])
def test_columns_are_suspicious_for_the_reasons_that_are_written(is_sparse, monkeypatch):
    monkeypatch.setattr("viewfuse.data.sparse_tables._CELLS_AT_A_TIME", 70)
    table = np.random.default_rng(0).permutation(np.array(list(COLUMNS.values()), np.float32).T)
    found = suspicious_columns(Views([sparse.csr_array(table) if is_sparse else table], columns=[list(COLUMNS)]), 0)
    short = {"never": "constant", "have": "far", "count": "ids"}
    said = {(short[why.split()[0]], name) for why, names in found.items() for name in names}
    assert said == {(why, name) for name, column in COLUMNS.items() for why in literal_reasons(column)}
    assert ("far", "farther among zeros") in said
    assert ("far", "far among zeros") not in said
    assert ("far", "far below") in said


def test_of_many_rows_every_so_manieth_is_looked_at(monkeypatch):
    monkeypatch.setattr(checks, "_MOST_ROWS", 10)
    looked = []
    monkeypatch.setattr(checks, "_reasons", lambda rows, zeros: looked.append(rows[:, 0].tolist()) or {})
    table = np.arange(70, dtype=np.float32)[:, None] * [1, 2]
    suspicious_columns(Views([table, table], mask=np.stack([np.arange(70) >= 35, np.arange(70) < 70], axis=1)), 0)
    assert looked == [[35.0 + 3 * i for i in range(12)]]


def test_remarks_name_five_columns_and_need_twenty_samples():
    table = np.random.default_rng(0).normal(size=(20, 8))
    table[3, :6] = -999.0
    columns = [list("abcdefgh")]
    (line,) = data_warnings(Views({"rna": table}, columns=columns))
    assert line.startswith("rna, columns that have values so far out")
    assert line.endswith(": 'a', 'b', 'c', 'd', 'e', ...")
    (line,) = data_warnings(Views({"rna": table[:, 1:]}, columns=[columns[0][1:]]))
    assert line.endswith(": 'b', 'c', 'd', 'e', 'f'")
    assert data_warnings(Views({"rna": table[:19]}, columns=columns)) == []
    still = Views({"rna": np.ones((2, 3)), "other": np.arange(2.0)[:, None]})
    assert data_warnings(still) == [
        "rna: no column of this view ever changes, so it carries no information; leave it out"
    ]
    assert data_warnings(still[:1]) == []


@pytest.mark.parametrize(
    ("name", "plain"),
    [("017", "17"), (17, "17"), (17.0, "17"), (" A7 ", "a7"), ("000", "0"), ("0a", "0a"), ("STRASSE", "strasse"),
     ("Straße", "strasse"), ("1.0", "1"), ("1.00", "1.00"), ("-07", "-07"), ("1.0x", "1.0x"),
     ("PO44", "p044"), ("P1I", "p11"), ("lo", "lo"), ("Oil", "oil"), ("sample 1", "samp1e 1")],
)  # fmt: skip
def test_ids_are_read_plainly(name, plain):
    assert alignment.plainly(name) == plain


def test_ids_that_read_alike_are_those_that_each_side_has_alone(monkeypatch):
    assert alignment.read_alike([7, 8, "a"], ["007", 8, "A", "b"]) == [(7, "007"), ("a", "A")]
    assert alignment.read_alike(["7"], ["7", "07"]) == []  # who is on both sides is spelled alike already
    ids = ["01", "02", "03", 1, 2, 3, "x"]
    mask = np.array([[1, 0]] * 3 + [[0, 1]] * 3 + [[1, 1]], dtype=bool)
    (line,) = alignment.alike_in_views(["a", "b"], mask, ids)
    assert line.startswith(
        "view 'a' has ids as text ('01'), view 'b' as numbers (1): 3 of them differ only in how they are written; write"
    )
    monkeypatch.setattr(alignment, "_MOST", 2)
    (line,) = alignment.alike_in_views(["a", "b"], mask, ids)
    assert ": 2 of them differ" in line
    three = np.column_stack([mask, ~mask[:, 0]])
    (line,) = alignment.alike_in_views(["a", "b", "c"], three, ids)  # one fault, though two pairs of views have it
    assert line.startswith("view 'a' has ids as text ('01'), view 'b' as numbers (1): 2 of")


@pytest.mark.parametrize(("common", "own", "told"), [(19, 60, True), (20, 60, False), (9, 20, True), (10, 20, False)])
def test_views_that_share_few_samples_are_told_below_twenty_and_a_half(common, own, told):
    n = own + 100
    mask = np.zeros((n, 2), bool)
    mask[:own, 0] = True
    mask[own - common :, 1] = True
    lines = checks.isolated_views(Views([np.random.default_rng(0).normal(size=(n, 2))] * 2, mask=mask))
    first = [line for line in lines if line.startswith(f"view_0: only {common} of its {own} samples")]
    assert bool(first) == told


@pytest.mark.parametrize(("zero", "n", "told"), [(2, 20, False), (3, 20, True), (3, 19, False), (3, 30, False)])
def test_many_zero_samples_of_a_sparse_view_are_more_than_a_tenth_of_twenty(zero, n, told):
    table = np.tile(np.eye(20, dtype=np.float32), (2, 1))[: n + 4]
    table[: zero + 4] = 0  # four of them lack the view
    views = Views(
        {"a": sparse.csr_array(table), "b": np.zeros((n + 4, 1))},
        mask=np.stack([np.arange(n + 4) >= 4, np.ones(n + 4, bool)], axis=1),
    )
    words = f"a: {zero} of its {n} samples are zero in all columns"
    assert [line[: len(words)] for line in data_warnings(views) if "are zero in all" in line] == [words] * told


def test_a_lone_view_is_not_isolated_and_one_sample_is_enough_for_a_second():
    table = np.random.default_rng(0).normal(size=(30, 2))
    mask = np.ones((30, 2), bool)
    mask[:, 1] = False
    assert checks.isolated_views(Views([table, table], mask=mask)) == []
    mask[0] = [False, True]
    assert [line.split(":")[0] for line in checks.isolated_views(Views([table, table], mask=mask))] == [
        "view_0",
        "view_1",
    ]
