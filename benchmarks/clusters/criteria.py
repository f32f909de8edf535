"""Other criteria for the number of clusters, all on one embedding."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import calinski_harabasz_score, silhouette_score
from sklearn.mixture import GaussianMixture
from torch import Tensor

from viewfuse.selection.kmeans import drawn_centers, gaussian_like, k_means, nearest_center

OTHERS = ("silhouette", "Calinski-Harabasz", "BIC", "gap")
_REFERENCES = 3
_ROUNDS = 30
Labels = NDArray[np.int64]


def partitions(points: Tensor, ks: Sequence[int], generator: torch.Generator) -> Tensor:
    """The best of four k-means solutions for each number of clusters, int64 of shape (numbers, points).

    One run of k-means++ gives the starts for all. The generator is on the CPU, so that every device draws the same.
    """
    own = torch.ones_like(points[:, 0])
    state = np.random.RandomState(int(torch.randint(2**31, (), generator=generator)))
    starts = drawn_centers(points, own, max(ks), state, 4)
    found = [k_means(points, own, starts[:, :k], 24) for k in ks]
    return torch.stack([nearest_center(points, centers[int(spread.argmin())]) for centers, spread in found])


def other_choices(embedding: Tensor, found: Tensor, ks: Sequence[int], draws: torch.Generator) -> dict[str, int]:
    """The number of clusters that each of `OTHERS` chooses.

    Parameters
    ----------
    embedding : tensor of shape (samples, columns)
    found : int64 tensor of shape (numbers, samples): k-means of the embedding
    """
    points, labels = embedding.cpu().numpy(), found.cpu().numpy()
    scores = {
        "silhouette": [float(silhouette_score(points, own)) for own in labels],
        "Calinski-Harabasz": [float(calinski_harabasz_score(points, own)) for own in labels],
        "BIC": [-_bic(points, own, k) for k, own in zip(ks, labels, strict=True)],
    }
    chosen = {name: ks[int(np.argmax(values))] for name, values in scores.items()}
    return chosen | {"gap": _gap_statistic(embedding, found, ks, draws)}


def _bic(points: NDArray[np.float32], labels: Labels, k: int) -> float:
    """That of a mixture of k Gaussians with diagonal covariances, which begins with k-means."""
    means = np.stack([points[labels == c].mean(axis=0) if (labels == c).any() else points[c] for c in range(k)])
    mixture = GaussianMixture(k, covariance_type="diag", means_init=means, max_iter=_ROUNDS, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(mixture.fit(points).bic(points))


def _gap_statistic(embedding: Tensor, found: Tensor, ks: Sequence[int], draws: torch.Generator) -> int:
    """Tibshirani's: the first k whose gap is not below the next by more than its deviation; 1 is possible."""
    own = _log_squares(embedding, found)
    references = [gaussian_like(embedding, draws) for _ in range(_REFERENCES)]
    nulls = np.stack([_log_squares(one, partitions(one, ks, draws)) for one in references])
    gaps, spread = nulls.mean(axis=0) - own, nulls.std(axis=0) * np.sqrt(1 + 1 / _REFERENCES)
    numbers = [1, *ks]
    return next((k for i, k in enumerate(numbers[:-1]) if gaps[i] >= gaps[i + 1] - spread[i + 1]), numbers[-1])


def _log_squares(points: Tensor, found: Tensor) -> NDArray[np.float64]:
    """Logarithms of the sums of squares around the means, for one cluster and for each partition."""
    whole = torch.zeros_like(found[:1])
    return np.log([float(_squares(points.double(), own)) for own in torch.cat([whole, found])])


def _squares(points: Tensor, labels: Tensor) -> Tensor:
    members = torch.nn.functional.one_hot(labels).double()
    sums = members.T @ points
    return points.square().sum() - (sums.square().sum(dim=1) / members.sum(dim=0).clamp(min=1)).sum()
