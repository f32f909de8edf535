"""Centres with which a network's clusters become those of a partition that was found elsewhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

_Table = NDArray[np.float64]
_ROWS = 5_000
_ROUNDS = 60
_PRECISION = 1e-12
"""Relative gain below which no further round is made."""
_PULL = 1e-3
"""Of the means, without which centres of separable clusters would never stop moving."""
_LEARNED = 0.9
"""Share of the samples that must fall into their cluster: what an embedding does not hold cannot be taught."""


def centers_of(embedding: Tensor, labels: NDArray[np.int64], n_clusters: int) -> Tensor | None:
    """Centres of shape (clusters, embedding) whose nearest samples are those of each cluster, as far as possible.

    The means of the clusters, moved until the nearest centre tells the clusters apart: multinomial regression on the
    squared distances. None where a cluster is empty, or too many samples stay nearest to another centre.

    Parameters
    ----------
    embedding : tensor of shape (samples, embedding)
    labels : of shape (samples,)
    """
    if len(np.unique(labels)) < n_clusters:
        return None
    own = embedding.detach().cpu().double().numpy()
    means = np.stack([own[labels == c].mean(axis=0) for c in range(n_clusters)])
    rows = np.linspace(0, len(own) - 1, min(_ROWS, len(own))).astype(np.int64)
    points, wanted = own[rows], labels[rows]
    centers = _fitted(points, wanted, means)
    learned = _squared(points, centers).argmin(axis=1) == wanted
    return embedding.new_tensor(centers) if learned.mean() >= _LEARNED else None


def _fitted(points: _Table, wanted: NDArray[np.int64], means: _Table) -> _Table:
    """The centres of least cross-entropy, from the means on."""
    nearest = np.sort(_squared(points, means), axis=1)[:, :2]
    unit = max(float((nearest[:, -1] - nearest[:, 0]).mean()), 1e-12)  # distances differ by about one of these
    one_hot = np.eye(len(means))[wanted]

    def loss(flat: _Table) -> tuple[float, _Table]:
        """The loss and its gradient, written out: autograd takes ten times as long for so few numbers."""
        centers = flat.reshape(means.shape)
        away, scores = centers - means, -_squared(points, centers) / unit
        scores -= scores.max(axis=1, keepdims=True)
        sums = np.exp(scores).sum(axis=1, keepdims=True)
        value = (np.log(sums[:, 0]) - (scores * one_hot).sum(axis=1)).mean() + _PULL * np.square(away).sum() / unit
        excess = (np.exp(scores) / sums - one_hot) / len(points)
        slope = excess.T @ points - excess.sum(axis=0)[:, None] * centers + _PULL * away
        return float(value), 2 / unit * slope.ravel()

    found = minimize(loss, means.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _ROUNDS, "ftol": _PRECISION})
    moved: _Table = found.x.reshape(means.shape)
    return moved


def _squared(points: _Table, centers: _Table) -> _Table:
    """Squared distances of shape (points, centers)."""
    squares = np.square(points).sum(axis=1)[:, None] + np.square(centers).sum(axis=1)
    distances: _Table = np.maximum(squares - 2 * points @ centers.T, 0)
    return distances
