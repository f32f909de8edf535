"""Views are scaled as a whole where their columns have one unit, and column by column where they have not."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewfuse import Views
from viewfuse.data import scaling as mixing
from viewfuse.data.scaling import fit_scaler, views_as_a_whole
from viewfuse.utils import jobs
from viewfuse.utils.jobs import usable_cores


def groups(n=200, seed=0):
    """Two views of four groups: in the one a few columns of large spread show them, the other has units of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=n)
    one_unit = np.hstack([8 * rng.normal(size=(4, 3))[labels] + rng.normal(size=(n, 3)), rng.normal(size=(n, 60))])
    own_units = (rng.normal(size=(4, 6))[labels] + 0.3 * rng.normal(size=(n, 6))) * np.array([1e4, 1, 1, 1, 1, 1])
    return one_unit, own_units


def literal_gains(views, v):
    """Per sample the gain of one scale for the whole view, as the docstring says it; no ties."""
    gains = {}
    for other in range(len(views.names)):
        rows = np.flatnonzero(views.mask[:, v] & views.mask[:, other])
        if other == v or len(rows) < 20:
            continue
        for i, row in enumerate(rows):
            shares = {
                whole: np.mean(
                    [
                        len(near(views, v, rows, i, 4, whole) & near(views, other, rows, i, 10, way)) / 4
                        for way in (0, 1)
                    ]
                )
                for whole in (0, 1)
            }
            gains.setdefault(row, []).append(shares[1] - shares[0])
    return np.array([np.mean(own) for own in gains.values()])


def near(views, v, rows, i, count, whole):
    values = views.arrays[v][rows].astype(np.float64)
    if not whole:
        values = values / values.std(axis=0)
    distances = np.linalg.norm(values - values[i], axis=1)
    distances[i] = np.inf
    return set(np.argsort(distances)[:count].tolist())


def three_views(seed):
    """Three views of which some samples are missing, none of them clear-cut."""
    rng = np.random.default_rng(seed)
    plane = rng.normal(size=(70, 2))
    views = [
        plane @ rng.normal(size=(2, w)) * rng.uniform(0.3, 3, size=w) + rng.normal(size=(70, w)) for w in (4, 5, 7)
    ]
    mask = rng.random((70, 3)) < 0.8
    mask[~mask.any(axis=1), 0] = True
    return Views(views, mask=mask)


@pytest.mark.parametrize("seed", range(6))
def test_the_rule_is_the_one_that_is_written(seed, monkeypatch):
    views, seen = three_views(seed), []
    clear = mixing._is_clear

    def watched(gains, counts):
        seen.append((gains / counts, clear(gains, counts)))
        return seen[-1][1]

    monkeypatch.setattr(mixing, "_is_clear", watched)
    found = views_as_a_whole(views)
    for v, (gains, is_clear) in enumerate(seen):
        expected = literal_gains(views, v)
        assert sorted(gains) == pytest.approx(sorted(expected))
        limit = 2 * expected.std() / np.sqrt(len(expected))
        assert found[v] == is_clear == (expected.mean() > limit)


def test_a_gain_within_two_standard_errors_is_none():
    gains, ones = np.array([1.0, -1.0] * 50 + [1.0] * 12), np.ones(112, dtype=np.int64)
    assert 0 < gains.mean() < 2 * gains.std() / np.sqrt(112)
    assert not mixing._is_clear(gains, ones)
    assert mixing._is_clear(np.append(gains, [1.0] * 12), np.ones(124, dtype=np.int64))


@pytest.mark.parametrize("seed", range(3))
def test_each_view_gets_the_scaling_of_its_kind(seed):
    views = Views(list(groups(seed=seed)))
    assert views_as_a_whole(views) == (True, False)
    assert fit_scaler(views, "mixed").whole == (True, False)


def test_other_views_that_repeat_each_other_are_no_more_evidence_than_one():
    rng = np.random.default_rng(5)
    views = [rng.normal(size=(300, 5)), rng.normal(size=(300, 5)) * rng.uniform(0.1, 9, size=5)]
    assert views_as_a_whole(Views(views))[0] == views_as_a_whole(Views([*views, *([views[1]] * 5)]))[0]


@pytest.mark.parametrize("kind", ["binary", "counts", "outliers"])
def test_ties_are_no_evidence(kind):
    """Views that have nothing to do with each other: equally far samples must not be the same ones in both."""
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        if kind == "binary":
            views = [(rng.random((200, 30)) < 0.03).astype(float) for _ in range(2)]
        elif kind == "counts":
            views = [rng.poisson(0.1, size=(200, 20)).astype(float) for _ in range(2)]
        else:
            views = [rng.normal(size=(200, 5)) for _ in range(2)]
            views[0][3, 0] = views[1][7, 1] = 1e20
        found += views_as_a_whole(Views(views))
    assert np.mean(found) < 0.1


def test_missing_rows_take_no_part():
    one, other = groups(260)
    mask = np.ones((260, 2), dtype=bool)
    mask[200:230, 0] = mask[230:, 1] = False
    order = np.random.default_rng(0).permutation(260)  # the other way round with the missing rows
    views = Views([np.where(mask[:, [v]], view, np.nan)[order] for v, view in enumerate((one, other))])
    seen = []
    mixing_is_clear = mixing._is_clear
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            mixing, "_is_clear", lambda gains, counts: seen.append(len(gains)) or mixing_is_clear(gains, counts)
        )
        assert views_as_a_whole(views) == (True, False)
    assert seen == [200, 200]


def test_many_rows_are_represented_by_some(monkeypatch):
    monkeypatch.setattr(mixing, "_MOST_ROWS", 100)
    asked, nearest_of = [], mixing._nearest

    def counted(points, ties):
        asked.append(len(points))
        return nearest_of(points, ties)

    monkeypatch.setattr(mixing, "_nearest", counted)
    assert views_as_a_whole(Views(list(groups(1000)))) == (True, False)
    assert set(asked) == {100}


@pytest.mark.parametrize("n_views", [2, 9, 10, 41])
def test_of_many_views_each_is_compared_with_eight(n_views):
    pairs = mixing._pairs(n_views)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    counts = np.bincount(np.array(pairs).ravel(), minlength=n_views)
    assert set(counts) == {min(n_views - 1, 8)}


def test_lots_of_pairs_with_different_rows_are_not_kept(monkeypatch):
    draw, alive = mixing._tie_keys, []

    def counted(view, n):
        one = draw(view, n)
        alive.append(weakref.ref(one))
        return one

    monkeypatch.setattr(mixing, "_tie_keys", counted)
    most = []
    monkeypatch.setattr(mixing, "_overlap", lambda near, _: most.append(sum(one() is not None for one in alive)) or 0.0)
    rng = np.random.default_rng(0)
    views = [np.where(rng.random((60, 1)) < 0.8, rng.normal(size=(60, 2)), np.nan) for _ in range(12)]
    views_as_a_whole(Views([*views, rng.normal(size=(60, 2))]))
    assert len(alive) > 60
    assert max(most) <= 16 + 2 * usable_cores()


@pytest.mark.parametrize(("width", "share"), [(999, 1), (1000, 2), (4500, 5)])
def test_of_wide_views_fewer_are_compared_at_a_time(monkeypatch, width, share):
    asked, usual = [], jobs.side_by_side
    monkeypatch.setattr(jobs, "side_by_side", lambda *args, share: asked.append(share) or usual(*args, share=share))
    rng = np.random.default_rng(0)
    views_as_a_whole(Views([rng.normal(size=(30, 3)), rng.normal(size=(30, width))]))
    assert asked == [share]


def test_one_view_or_few_common_rows_are_scaled_column_by_column():
    one, other = groups(40)
    assert views_as_a_whole(Views([one])) == (False,)
    mask = np.ones((40, 2), dtype=bool)
    mask[:15, 0] = mask[15:30, 1] = False
    assert views_as_a_whole(Views([one, other], mask=mask)) == (False, False)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 1e-30, 1e30]))
def test_it_ends_with_an_answer_for_every_view(seed, scale):
    rng = np.random.default_rng(seed)
    views = [scale * rng.integers(0, rng.integers(1, 4), size=(30, rng.integers(1, 5))) for _ in range(3)]
    mask = rng.random((30, 3)) < 0.9
    mask[~mask.any(axis=1), 0] = True
    with np.errstate(all="raise", under="ignore"):
        whole = views_as_a_whole(Views(views, mask=mask))
    assert [type(answer) for answer in whole] == [bool] * 3


def test_mixed_views_have_the_scales_of_their_kinds():
    views = Views(list(groups()))
    mixed, standard, view = (fit_scaler(views, kind).apply(views).arrays for kind in ("mixed", "standard", "view"))
    assert (mixed[0] == view[0]).all()
    assert (mixed[1] == standard[1]).all()
    assert mixed[0].var(axis=0).mean() == pytest.approx(1, abs=1e-4)
    assert mixed[0].var(axis=0).max() > 5


def test_a_sample_counts_once_however_many_views_it_has():
    counts = np.repeat([1, 4], [60, 40])
    gains = np.repeat([1.0, -0.5], [60, 40])
    assert mixing._is_clear(gains * counts, counts)
    assert not mixing._is_clear(gains * counts, np.ones_like(counts))


@pytest.mark.parametrize(("common", "compared"), [(19, 0), (20, 4)])
def test_twenty_common_rows_are_enough_and_nineteen_are_not(monkeypatch, common, compared):
    asked, nearest_of = [], mixing._nearest
    monkeypatch.setattr(mixing, "_nearest", lambda points, view: asked.append(view) or nearest_of(points, view))
    mask = np.ones((40, 2), dtype=bool)
    mask[common:, 1] = False
    views_as_a_whole(Views(list(groups(40)), mask=mask))
    assert len(asked) == compared
