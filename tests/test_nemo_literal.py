"""NEMO, sample by sample as its paper says it: kernels, shares of the nearest, means over the views in common."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy.stats import norm

from viewfuse.methods.published import nemo


def literal_kernel(rows, k):
    """A normal density of the squared distance, whose width is half the mean of both radii and that distance."""
    n = len(rows)
    squares = [[sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True)) for j in range(n)] for i in range(n)]
    radii = [sum(sorted(squares[i][:i] + squares[i][i + 1 :])[:k]) / min(k, n - 1) if n > 1 else 0.0 for i in range(n)]
    eps = np.finfo(float).eps
    return [
        [norm.pdf(squares[i][j], 0, 0.5 * ((radii[i] + radii[j] + squares[i][j]) / 3 + eps)) for j in range(n)]
        for i in range(n)
    ]


def literal_shares(kernel, k):
    """Of each sample the k most similar, and those that are as similar as the last of them."""
    found = []
    for row in kernel:
        least = sorted(row)[-k]
        kept = [one if one >= least else 0.0 for one in row]
        found.append([one / sum(kept) for one in kept])
    return found


def literal_similarity(views, mask):
    n = len(mask)
    parts = {}
    for v, rows in enumerate(views):
        here = [i for i in range(n) if mask[i][v]]
        k = min(len(here), max(1, round(len(here) / 6)))
        shares = literal_shares(literal_kernel([rows[i].tolist() for i in here], k), k)
        for a, i in enumerate(here):
            for b, j in enumerate(here):
                parts.setdefault((i, j), []).append(shares[a][b] + shares[b][a])
    means = {pair: sum(own) / len(own) for pair, own in parts.items()}
    rest = sum(means.values()) / len(means)
    return [[means.get((i, j), rest) for j in range(n)] for i in range(n)]


def drawn(n=21):
    """Views of other widths and units, with equal rows; some pairs of samples share no view."""
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(n, 2)), 40 + 9 * rng.normal(size=(n, 4)), np.rint(3 * rng.random((n, 1)))]
    mask = rng.random((n, 3)) < 0.55
    mask[~mask.any(axis=1), 1] = True
    return views, mask


def test_similarities_are_the_literal_ones():
    views, mask = drawn()
    assert not (mask.astype(int) @ mask.T.astype(int)).all()
    found = nemo.average_similarity(views, mask)
    np.testing.assert_allclose(found, literal_similarity(views, mask), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(found, found.T)


@pytest.mark.parametrize("k", [1, 3, 20])
def test_kernels_are_the_literal_ones(k):
    rows = drawn()[0][1]
    squares = np.square(rows[:, None] - rows[None]).sum(axis=2)
    np.testing.assert_allclose(nemo.scaled_kernel(squares, k), literal_kernel(rows.tolist(), k), rtol=1e-9)
    assert nemo.scaled_kernel(np.array([[0.0]]), k) == pytest.approx(1 / (np.finfo(float).eps / 2 * sqrt(2 * np.pi)))


def test_what_has_no_similarity_is_linked_weakly(monkeypatch):
    """Two pieces stay two clusters; no entry is 0, and none that was larger changes."""
    affinity, seen = np.kron(np.eye(2), np.full((4, 4), 0.5)), []

    class Spectral:
        def __init__(self, n_clusters, **ways):
            seen.append((n_clusters, ways))

        def fit_predict(self, linked):
            seen.append(linked)
            return np.repeat([1, 0], 4)

    monkeypatch.setattr(nemo, "SpectralClustering", Spectral)
    labels = nemo.NEMO(2)._labels(affinity, 2**32 + 5)
    (asked, linked) = seen
    assert asked == (2, {"affinity": "precomputed", "assign_labels": "discretize", "random_state": 5})
    np.testing.assert_allclose(linked, np.where(affinity > 0, affinity, 1e-9 * 0.25))
    assert (labels.dtype, labels.tolist()) == (np.int64, [1] * 4 + [0] * 4)
    assert nemo.NEMO(1)._labels(affinity, 0).tolist() == [0] * 8
    assert nemo.NEMO(8)._labels(affinity, 0).tolist() == list(range(8))
    assert len(seen) == 2
