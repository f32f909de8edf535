"""Whether samples are rarer at the border of two sides than within each of them.

Where a few dimensions hold all that there is, any cut of a square is crisp; a valley is what two clusters have and a
square has not. The samples are projected on the axis that separates the sides best, and counted in windows of one
width: at the border, and at the quartiles of each side. The more samples there are, the flatter valleys are seen. A
closed curve has a valley too, seen along one axis; only the gap tells it from clusters (results/clusters).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom
from sklearn.decomposition import PCA

LEVEL = 0.05
"""The chance that data without clusters are split."""
_WIDTH = 0.8
"""Width of a window over the smaller interquartile range of the sides; 0.6 sees less, with 1 squares have valleys."""
_COLUMNS, _ROWS = 10, 5_000
"""Principal components and samples that are looked at, at most."""
Sides = NDArray[np.bool_]


def valley_p_value(points: NDArray[np.floating], sides: Sides) -> float | None:
    """How likely so few points, (samples, columns), lie at the border, if there are as many as on the emptier side.

    None where samples are so few that not even an empty border would be unlikely.
    """
    rows = np.linspace(0, len(sides) - 1, min(len(sides), _ROWS)).astype(np.int64)
    sides = sides[rows]
    along = _along(np.asarray(points[rows], dtype=np.float64), sides)
    border = _border(along, sides)
    parts = [along[along < border], along[along >= border]]
    if not min(map(len, parts)):
        return 1.0
    width = _WIDTH * min(float(np.subtract(*np.percentile(part, [75, 25]))) for part in parts)
    between, fullest = _count(along, border, width), []
    for part, way in zip(parts, (-1, 1), strict=True):
        distances = np.maximum(way * (np.percentile(part, [25, 50, 75]) - border), width)
        fullest.append(max(_count(along, border + way * one, width) for one in distances.tolist()))
    # One of three windows is the fullest by chance, too.
    found, least = (max(3 * float(binom.cdf(one, one + side, 0.5)) for side in fullest) for one in (between, 0))
    return min(1.0, found) if least < LEVEL else None


def _count(along: NDArray[np.float64], centre: float, width: float) -> int:
    return int(((along >= centre - width / 2) & (along < centre + width / 2)).sum())


def _along(points: NDArray[np.float64], sides: Sides) -> NDArray[np.float64]:
    """Places of the samples on the axis between the sides."""
    if points.shape[1] > _COLUMNS:
        points = PCA(min(_COLUMNS, len(points)), svd_solver="randomized", random_state=0).fit_transform(points)
    right, left = points[sides], points[~sides]
    centred = np.concatenate([right - right.mean(axis=0), left - left.mean(axis=0)])
    within = centred.T @ centred / len(centred)
    mean_variance = max(np.trace(within) / len(within), 1e-12) * np.eye(len(within))
    share = len(within) / (len(within) + len(centred))  # the more columns, the less is known of the covariance
    return points @ np.linalg.solve(within + share * (mean_variance - within), right.mean(axis=0) - left.mean(axis=0))


def _border(along: NDArray[np.float64], sides: Sides) -> float:
    """The place with the smallest sum of the shares of both sides that lie on the wrong side of it."""
    order = np.argsort(along, kind="stable")
    right = np.concatenate([[0], np.cumsum(sides[order])]) / sides.sum()
    left = np.concatenate([[0], np.cumsum(~sides[order])]) / (~sides).sum()
    cut, last = int(np.argmin(right - left)), len(along) - 1
    return float(along[order[[max(cut - 1, 0), min(cut, last)]]].mean())
