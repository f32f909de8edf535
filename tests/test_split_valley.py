"""A valley between two sides, against counts by hand and against data with and without one."""

import numpy as np
import pytest
from scipy.stats import binom

from viewfuse.selection.split_valley import valley_p_value


def rng(seed=0):
    return np.random.default_rng(seed)


def test_two_clusters_have_a_valley_also_of_unequal_sizes_and_units():
    for left, right, apart in ((200, 200, 4.5), (200, 40, 6)):
        sides = np.arange(left + right) >= left
        points = rng().normal(size=(len(sides), 3)) + apart * sides[:, None] * [1, 0, 0]
        mixed = points @ rng(1).normal(size=(3, 3)) * [1, 5, 0.2] + [0, 1e4, 5]
        assert valley_p_value(mixed, sides) < 0.05  # 40 samples are few
        assert valley_p_value(mixed, ~sides) < 0.05


@pytest.mark.parametrize(
    "draw",
    [
        lambda one, n: one.random((n, 2)),
        lambda one, n: one.normal(size=(n, 2)),
        lambda one, n: one.exponential(size=(n, 2)),
        lambda one, n: one.random((n, 1)),
    ],
)
def test_a_cut_through_data_without_clusters_is_no_valley(draw):
    chances = []
    for seed in range(60):
        points = draw(rng(seed), (60, 200, 800)[seed % 3])
        chances.append(valley_p_value(points, points[:, 0] > np.quantile(points[:, 0], (0.5, 0.7)[seed % 2])))
    known = [one for one in chances if one is not None]
    assert len(known) > 40
    assert np.mean(np.array(known) < 0.05) <= 0.05


def test_more_samples_see_flatter_valleys():
    def chance(n):
        sides = np.arange(n) % 4 > 1
        return valley_p_value(rng(3).normal(size=(n, 2)) + 3 * sides[:, None] * [0, 1], sides)

    assert chance(4000) < 1e-6 < chance(100)


def test_counts_are_those_of_windows():
    # On one axis, left -1.5 to -0.5 and right 0.5 to 2.5, two samples between.
    line = np.concatenate([np.linspace(-1.5, -0.5, 41), [-0.05, 0.05], np.linspace(0.5, 2.5, 61)])
    sides = line > 0
    width = 0.8 * min(np.subtract(*np.percentile(side, [75, 25])) for side in (line[sides], line[~sides]))
    chances = []
    for side, way in ((line[~sides], -1), (line[sides], 1)):
        places = np.maximum(way * np.percentile(side, [25, 50, 75]), width) * way
        between = (np.abs(line) < width / 2).sum()
        within = [(np.abs(line - place) < width / 2).sum() for place in places]
        chances.append(3 * min(binom.cdf(between, between + one, 0.5) for one in within))
    assert 1e-4 < max(chances) < 0.05
    for unit in (1, -1000):
        assert valley_p_value(unit * line[:, None] + 7, sides) == pytest.approx(max(chances), rel=1e-9)


def test_unequal_sides_of_which_one_crowds_at_the_border_are_counted_as_written():
    left, crowd, right = np.linspace(-4, -0.8, 90), np.linspace(0.3, 0.4, 24), np.linspace(1, 3, 50)
    line, border = np.concatenate([left, crowd, right]), (-0.8 + 0.3) / 2
    sides = [border - left, np.concatenate([crowd, right]) - border]  # how far beyond the border
    width = 0.8 * min(np.subtract(*np.percentile(side, [75, 25])) for side in sides)
    between = (np.abs(line - border) < width / 2).sum()
    chances = []
    for side in sides:
        nearest, *others = np.percentile(side, [25, 50, 75])
        within = [(np.abs(side - place) < width / 2).sum() for place in (max(nearest, width), *others)]
        chances.append(3 * binom.cdf(between, between + max(within), 0.5))
    assert np.percentile(sides[1], 25) < width < np.percentile(sides[1], 50)
    assert 0.001 < max(chances) < 1
    assert valley_p_value(line[:, None], line > border) == pytest.approx(max(chances))


def test_many_columns_and_rows_are_thinned():
    sides = np.arange(12_000) % 3 > 0
    few = rng().normal(size=(12_000, 2)) + 4 * sides[:, None] * [1, 0]
    wide = few @ rng(1).normal(size=(2, 300)) + 0.05 * rng(2).normal(size=(12_000, 300))
    rows = np.linspace(0, 11_999, 5_000).astype(int)
    assert valley_p_value(few, sides) == valley_p_value(few[rows], sides[rows]) < 1e-9
    assert valley_p_value(wide.astype(np.float32), sides) < 1e-9


def test_ten_principal_components_are_looked_at():
    """The sides differ in the direction that varies least: the tenth is seen, the eleventh is not."""
    sides = np.arange(400) % 2 > 0
    points = rng().normal(size=(400, 11))
    for last, is_seen in ((9, True), (10, False)):
        apart = points[:, : last + 1] * np.append(np.full(last, 8.0), 1.0)
        apart[:, last] += np.where(sides, 4, -4)  # a deviation of 4.1 beside those of 8
        mixed = 50 + apart @ np.linalg.qr(rng(1).normal(size=(last + 1, last + 1)))[0]
        assert (valley_p_value(mixed, sides) < 1e-6) == is_seen


def test_too_few_samples_tell_nothing():
    points = np.concatenate([rng().normal(size=(50, 2)), rng(1).normal(size=(20, 2)) + 9])
    assert valley_p_value(points, np.arange(70) >= 50) < 0.05
    assert valley_p_value(points[:58], np.arange(58) >= 50) is None  # an empty border is not unlikely beside eight
    assert valley_p_value(np.ones((40, 2)), np.arange(40) >= 20) == 1
    assert valley_p_value(points[:5], np.arange(5) >= 3) is None
