"""Scaling looks at observed rows only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from test_neighbors import incomplete_data
from viewfuse import SettingError, Views
from viewfuse.data.scaling import fit_scaler, fit_whole_views


@given(incomplete_data(), st.sampled_from(["minmax", "standard", "view", "mixed", "none"]))
def test_observed_rows_are_scaled_and_come_back(data, kind):
    values, mask, _ = data
    views = Views(values, mask=mask)
    scaler = fit_scaler(views, kind)
    scaled = scaler.apply(views)
    for v, array in enumerate(scaled.arrays):
        rows, original = array[mask[:, v]], values[v][mask[:, v]]
        assert (array[~mask[:, v]] == 0).all()
        assert scaler.undo(v, rows) == pytest.approx(original, abs=1e-5)
        if kind == "minmax" and len(rows) > 1:
            assert rows.min(axis=0) == pytest.approx(np.zeros(rows.shape[1]), abs=1e-6)
            assert rows.max(axis=0) == pytest.approx(np.ones(rows.shape[1]), abs=1e-6)
        if kind == "standard" and len(rows) > 1:
            assert rows.mean(axis=0) == pytest.approx(np.zeros(rows.shape[1]), abs=1e-5)
            assert rows.std(axis=0) == pytest.approx(np.ones(rows.shape[1]), abs=1e-4)
        if kind == "view" and len(rows) > 1:
            assert rows.mean(axis=0) == pytest.approx(np.zeros(rows.shape[1]), abs=1e-4)
            assert rows.var(axis=0).mean() == pytest.approx(1.0, abs=1e-3)


def test_hidden_values_do_not_move_the_scale():
    table = np.array([[0.0], [10.0], [1e6]])
    views = Views([table, np.ones((3, 1))], mask=[[1, 1], [1, 1], [0, 1]])
    assert fit_scaler(views, "minmax").apply(views).arrays[0].ravel().tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("kind", ["minmax", "standard", "view", "mixed"])
@pytest.mark.parametrize("value", [0.0, 0.1, -3e30])
def test_constant_columns_survive(kind, value):
    views = Views(np.full((4, 2), value))
    assert (fit_scaler(views, kind).apply(views).arrays[0] == 0).all()


@pytest.mark.parametrize("kind", ["minmax", "standard", "view", "mixed"])
def test_huge_ranges_stay_finite(kind):
    views = Views(np.array([[-3e38, 1.0], [3e38, 2.0], [0.0, 2.0]]))
    assert np.isfinite(fit_scaler(views, kind).apply(views).arrays[0]).all()


def test_unknown_kinds_are_refused():
    with pytest.raises(SettingError, match="scaling must be one of minmax, standard, view, mixed, none; got 'robust'"):
        fit_scaler(Views(np.ones((2, 2))), "robust")


def test_columns_of_one_unit_are_divided_by_one_number():
    table = np.array([[2.0, 0.0], [12.0, 1.0], [7.0, 0.5]])
    views = Views([table, table])
    ranges = fit_scaler(views, "minmax", ("view", "columns"))
    assert ranges.whole == (True, False)
    assert ranges.apply(views).arrays[0] == pytest.approx(np.array([[0.0, 0.0], [1.0, 0.1], [0.5, 0.05]]))
    assert ranges.apply(views).arrays[1] == pytest.approx(np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]]))
    for kind in ("standard", "mixed"):
        scaled = fit_scaler(views, kind, ("view", "columns")).apply(views).arrays
        expected = [fit_scaler(views, own).apply(views).arrays[v] for v, own in enumerate(("view", "standard"))]
        assert all((a == b).all() for a, b in zip(scaled, expected, strict=True))


def test_a_view_as_a_whole_has_one_least_and_one_largest_value():
    views = Views(
        [np.array([[4.0, -2.0], [6.0, 0.0], [1e6, 1e6]]), np.full((3, 2), 7.0), np.full((3, 1), 5.0)],
        mask=[[1, 1, 0], [1, 1, 0], [0, 1, 1]],
    )
    scaler = fit_whole_views(views)
    found = scaler.apply(views).arrays
    assert found[0].tolist() == [[0.75, 0.0], [1.0, 0.25], [0.0, 0.0]]
    assert found[1].tolist() == np.zeros((3, 2)).tolist()
    assert found[2].tolist() == np.zeros((3, 1)).tolist()
    assert scaler.undo(0, found[0])[:2].tolist() == [[4.0, -2.0], [6.0, 0.0]]
