"""Views are scaled as a whole where their columns have one unit, and column by column where they have not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from test_neighbors import incomplete_data
from viewfuse import Views, mixing
from viewfuse.mixing import views_as_a_whole
from viewfuse.scaling import fit_scaler


def groups(n=200, seed=0):
    """Labels, and two views of which the first shows them in a few columns of a large spread, among much noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=n)
    one_unit = np.hstack([8 * rng.normal(size=(4, 3))[labels] + rng.normal(size=(n, 3)), rng.normal(size=(n, 60))])
    own_units = (rng.normal(size=(4, 6))[labels] + 0.3 * rng.normal(size=(n, 6))) * np.array([1e4, 1, 1, 1, 1, 1])
    return one_unit, own_units


def literal(views):
    """The rule as its docstring says it, sample by sample."""
    found = []
    for one in range(len(views.names)):
        gains = []
        for other in range(len(views.names)):
            rows = np.flatnonzero(views.mask[:, one] & views.mask[:, other])
            if other == one or len(rows) < 20:
                continue
            for i in range(len(rows)):
                shares = {True: [], False: []}
                for whole in (True, False):
                    near = nearest(views.arrays[one][rows], i, 4, whole)
                    for way in (True, False):
                        shares[whole].append(len(near & nearest(views.arrays[other][rows], i, 10, way)) / 4)
                gains.append(np.mean(shares[True]) - np.mean(shares[False]))
        clear = bool(gains) and np.mean(gains) > 2 * np.std(gains) / np.sqrt(len(gains))
        found.append(clear)
    return tuple(found)


def nearest(values, i, count, whole):
    values = values.astype(np.float64)
    if not whole:
        deviation = values.std(axis=0)
        values = values / np.where(deviation > 0, deviation, 1)
    distances = np.linalg.norm(values - values[i], axis=1)
    distances[i] = np.inf
    return set(np.argsort(distances)[:count].tolist())


@pytest.mark.parametrize("seed", range(3))
def test_each_view_gets_the_scaling_of_its_kind(seed):
    views = Views(list(groups(seed=seed)))
    assert views_as_a_whole(views) == (True, False) == literal(views)
    assert fit_scaler(views, "mixed").whole == (True, False)


def test_missing_rows_take_no_part():
    one, other = groups(260)
    mask = np.ones((260, 2), dtype=bool)
    mask[200:230, 0] = mask[230:, 1] = False
    spoiled = [one.copy(), other.copy()]
    spoiled[0][~mask[:, 0]] = spoiled[1][~mask[:, 1]] = 1e9
    views = Views(spoiled, mask=mask)
    assert views_as_a_whole(views) == views_as_a_whole(Views([one[:200], other[:200]]))


def test_many_rows_are_represented_by_some(monkeypatch):
    monkeypatch.setattr(mixing, "_MOST_ROWS", 100)
    asked, nearest_of = [], mixing._nearest

    def counted(points):
        asked.append(len(points))
        return nearest_of(points)

    monkeypatch.setattr(mixing, "_nearest", counted)
    assert views_as_a_whole(Views(list(groups(1000)))) == (True, False)
    assert set(asked) == {100}


def test_one_view_or_few_common_rows_are_scaled_column_by_column():
    one, other = groups(40)
    assert views_as_a_whole(Views([one])) == (False,)
    mask = np.ones((40, 2), dtype=bool)
    mask[:15, 0] = mask[15:30, 1] = False
    assert views_as_a_whole(Views([one, other], mask=mask)) == (False, False)


@given(incomplete_data())
def test_it_ends_with_an_answer_for_every_view(data):
    values, mask, _ = data
    whole = views_as_a_whole(Views(values, mask=mask))
    assert [type(answer) for answer in whole] == [bool] * len(values)


def test_mixed_views_have_the_scales_of_their_kinds():
    views = Views(list(groups()))
    mixed, standard, view = (fit_scaler(views, kind).apply(views).arrays for kind in ("mixed", "standard", "view"))
    assert (mixed[0] == view[0]).all()
    assert (mixed[1] == standard[1]).all()
    assert mixed[0].var(axis=0).mean() == pytest.approx(1, abs=1e-4)
    assert mixed[0].var(axis=0).max() > 5
