"""PIMVC (Deng et al., Pattern Recognition 2023): projections of incomplete views that meet in one representation.

For X_v of shape (columns, samples that have view v), projections P_v and a common Y of shape (clusters, samples)::

    min  sum_v ||P_v X_v - Y_v||^2 + lambda ||P_v||^2  +  beta tr(Y L Y')   with   P_v (X_v X_v' + lambda I) P_v' = I

where Y_v are the columns of Y of samples that have view v, and L is the sum of the views' graph Laplacians.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import laplacian
from sklearn.neighbors import kneighbors_graph
from torch import Tensor, nn

from viewfuse.engine.training import History
from viewfuse.errors import Diverged
from viewfuse.methods.estimator import PublishedMethod
from viewfuse.methods.network import ClusterNetwork
from viewfuse.neighbors.index import NO_NEIGHBOR, RowIndex, Samples
from viewfuse.utils.settings import Setting

Matrix = NDArray[np.float64]
_SOLVED = 1e-10


def smoothing(samples: Samples, graph_weight: float, n_neighbors: int) -> csr_array:
    """Beta L + D of shape (samples, samples), where D counts the views of each sample.

    In every view a sample is linked with its nearest neighbours, and they with it.
    """
    mask = samples.present.cpu().numpy()
    total = csr_array((len(mask), len(mask)))
    for v, view in enumerate(samples.values):
        (here,) = np.nonzero(mask[:, v])
        k = min(n_neighbors, len(here) - 1)
        if k < 1:
            continue
        near = kneighbors_graph(view.cpu().numpy().astype(np.float64)[here], k)
        place = csr_array((np.ones(len(here)), (here, np.arange(len(here)))), shape=(len(mask), len(here)))
        total = total + place @ csr_array(laplacian(near.maximum(near.T))) @ place.T
    counts = diags_array(mask.sum(axis=1).astype(np.float64))
    return csr_array(graph_weight * csr_array(total) + counts)


@np.errstate(over="ignore", invalid="ignore")
def solve(matrix: csr_array, right: Matrix, start: Matrix) -> Matrix:
    """Y with `matrix` Y = `right`, both of shape (samples, clusters), by conjugate gradients; may be infinite."""
    found = start.copy()
    residual = right - matrix @ found
    step, size = residual.copy(), (residual**2).sum(axis=0)
    enough = _SOLVED * np.maximum((right**2).sum(axis=0), np.finfo(float).tiny)
    for _ in range(len(right)):
        if (size <= enough).all():
            break
        moved = matrix @ step
        far = size / np.maximum((step * moved).sum(axis=0), np.finfo(float).tiny)
        found, residual = found + far * step, residual - far * moved
        before, size = size, (residual**2).sum(axis=0)
        step = residual + size / np.maximum(before, np.finfo(float).tiny) * step
    return found


class _Projections(ClusterNetwork):
    """P_v of every view, of shape (clusters, columns)."""

    stackable = True

    def __init__(self, n_clusters: int, widths: Sequence[int], graph_weight: float, n_neighbors: int) -> None:
        super().__init__(n_clusters, n_clusters)
        self.projections = nn.ParameterList(torch.empty(n_clusters, width) for width in widths)
        self._graph_weight, self._n_neighbors = graph_weight, n_neighbors

    def remember(self, stored: Samples) -> tuple[RowIndex, Tensor]:
        """What finds a training sample by its values, and Y, of shape (samples, clusters), given the projections."""
        system = smoothing(stored, self._graph_weight, self._n_neighbors)
        right = self._projected(stored).double().cpu().numpy()
        common = torch.from_numpy(solve(system, right, np.zeros_like(right))).to(self.centers)
        return RowIndex(stored.values, stored.present), common

    def _projected(self, samples: Samples) -> Tensor:
        """The sum of the projected views, of shape (samples, clusters)."""
        pairs = zip(samples.values, self.projections, strict=True)
        return torch.stack([values @ p.T for values, p in pairs]).sum(dim=0)

    @torch.no_grad()
    def embed(self, samples: Samples, stored: Samples) -> Tensor:
        """Y of training samples; of others the mean of their projected views, as if they had no neighbours."""
        rows, common = self.memory(stored)
        known = rows.find(samples.values, samples.present)
        new = self._projected(samples) / samples.present.sum(dim=1, keepdim=True)
        return torch.where((known == NO_NEIGHBOR)[:, None], new, common[known.clamp(min=0)])


@dataclass(eq=False, repr=False, kw_only=True)
class PIMVC(PublishedMethod):
    """k-means of a common representation onto which all views are projected linearly.

    Views with fewer columns than clusters, which the original refuses, get projections of lower rank.

    Parameters
    ----------
    projection_weight, graph_weight : float, default 1e5 and 1
        lambda and beta.
    n_neighbors : int, default 3
        Neighbours of a sample in the graph of a view.
    rounds, tolerance : default 100, 1e-5
        Rounds at most; they end where the objective changes by less, relative to itself.
    n_clusters, scaling, fill, reduction, device, random_state, verbose :
        See :class:`viewfuse.methods.estimator.PublishedMethod`.
    """

    reduction: str | Mapping[str, str] = "auto"
    projection_weight: float = field(default=1e5, metadata={"least": 1e-12})
    graph_weight: float = 1.0
    n_neighbors: int = 3
    rounds: int = 100
    tolerance: float = 1e-5
    name: ClassVar[str] = "pimvc"

    def network(self, widths: Sequence[int]) -> ClusterNetwork:
        """The projections."""
        return _Projections(self.n_clusters, widths, self.graph_weight, self.n_neighbors)

    def train(self, networks: Sequence[Any], sets: Sequence[Samples], seeds: Sequence[int]) -> list[History]:
        """Turn by turn the projections and Y, on the CPU, one set after another."""
        histories: list[History] = []
        for network, samples in zip(networks, sets, strict=True):
            arrays = [view.cpu().numpy().astype(np.float64) for view in samples.values]
            mask, system = samples.present.cpu().numpy(), smoothing(samples, self.graph_weight, self.n_neighbors)
            roots = [self._root(array) for array in arrays]
            common, totals = self._start(arrays, mask, roots), list[float]()
            for epoch in range(self.rounds):
                if not np.isfinite(common).all():
                    fault = f"the representation is not finite in round {epoch}; use "
                    raise Diverged(fault, Setting("scaling", "minmax"))
                projections = [_projection(root, array.T @ common) for root, array in zip(roots, arrays, strict=True)]
                right = np.sum([array @ p.T for array, p in zip(arrays, projections, strict=True)], axis=0)
                common = solve(system, right, common)
                # What is left of the objective: projected samples have one length, so only their match with Y counts.
                totals.append(float((common * (system @ common)).sum() - 2 * (common * right).sum()) / len(mask))
                if epoch and abs(totals[-2] - totals[-1]) <= self.tolerance * abs(totals[-1]):
                    break
            with torch.no_grad():
                for own, p in zip(network.projections, projections, strict=True):
                    own.copy_(torch.from_numpy(p))
            n = len(totals)
            facts = {"epoch": [*range(1, n + 1)], "stage": ["projection"] * n, "seconds": [0.0] * n}
            histories.append({**facts, "total": totals})
        return histories

    def _root(self, array: Matrix) -> Matrix:
        """(X X' + lambda I) to the power -1/2, of shape (columns, columns)."""
        values, vectors = np.linalg.eigh(array.T @ array + self.projection_weight * np.eye(array.shape[1]))
        return (vectors / np.sqrt(values)) @ vectors.T

    def _start(self, arrays: Sequence[Matrix], mask: NDArray[np.bool_], roots: Sequence[Matrix]) -> Matrix:
        """Y of shape (samples, clusters): the widest directions of all views side by side, gaps at their mean."""
        parts = []
        for v, (array, root) in enumerate(zip(arrays, roots, strict=True)):
            parts.append(np.where(mask[:, [v]], array - array[mask[:, v]].mean(axis=0), 0.0) @ root)
        table = np.concatenate(parts, axis=1)
        left, size, _ = np.linalg.svd(table, full_matrices=False)
        found = np.zeros((len(mask), self.n_clusters))
        count = min(self.n_clusters, len(size))
        found[:, :count] = left[:, :count] * size[:count]
        return found


def _projection(root: Matrix, match: Matrix) -> Matrix:
    """P_v of shape (clusters, columns): of all that meet the constraint the one that fits Y best."""
    left, _, right = np.linalg.svd(root @ match, full_matrices=False)
    return (left @ right).T @ root
