"""The three losses, the soft assignment and its target: pure functions.

Every tensor may have further axes before those named; the losses are then computed for each place along these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

Number = TypeVar("Number", Tensor, float)
HINT_WEIGHT = 1.0
"""Of hints, and of pairs, times the weight of the clustering loss. With ten times as much a network of width 64 learned
400 samples of Handwritten by heart (5 % of the labels, one draw, 5 points less): results/hints."""
HINT_SHARE = 1 / 8
"""Of a batch. Without such a share 1 % of the labels cost .6 on BDGP; with the whole batch instead, Scene15
gained less: results/hints."""
Sizes = Callable[[Tensor], Tensor]
"""From soft assignments of shape (..., batch, clusters) to the soft sizes of the clusters, which divide them."""


def mean(costs: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over the batch, of shape (batch,), in which a sample counts by its weight; all the same without any."""
    return costs.mean(dim=-1) if weights is None else (costs * weights).sum(dim=-1) / _positive(weights.sum(dim=-1))


def _positive(total: Tensor) -> Tensor:
    """A divisor: nothing is learned from a batch that counts nothing."""
    return total.clamp(min=torch.finfo(total.dtype).tiny)


def reconstruction(errors: Sequence[Tensor], present: Tensor, weights: Tensor | None = None) -> Tensor:
    """L_rec in the paper: squared error of the views that are there, sum over views, mean over the batch.

    Parameters
    ----------
    errors : per view what `squared_error` gives, of shape (batch,)
    present : boolean tensor of shape (batch, views)
    weights : of the samples, of shape (batch,), see `mean`
    """
    return mean((torch.stack(list(errors), dim=-1) * present).sum(dim=-1), weights)


def squared_error(guess: Tensor, truth: Tensor) -> Tensor:
    """Mean over columns of the squared error: shapes (batch, columns) to (batch,)."""
    return functional.mse_loss(guess, truth, reduction="none").mean(dim=-1)


def robustness(plain: Tensor, augmented: Tensor, weights: Tensor | None = None) -> Tensor:
    """L_aug in the paper: each augmented embedding must be closest to its own plain one.

    Cross-entropy over minus the Euclidean distances, mean over the batch. Both of shape (batch, embedding). A sample of
    weight 2, of `weights` of shape (batch,), stands twice among those that must be farther.
    """
    # By a matrix product, much faster on a GPU; in float64 it is exact down to 1e-8 of the embeddings' norm.
    distances = torch.cdist(augmented.double(), plain.double(), compute_mode="use_mm_for_euclid_dist")
    near = (-distances).to(plain.dtype)
    if weights is None:
        return -near.log_softmax(dim=-1).diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    among = (near + _positive(weights).log().unsqueeze(-2)).logsumexp(dim=-1)
    return mean(among - near.diagonal(dim1=-2, dim2=-1), weights)


def log_assignment(embedding: Tensor, centers: Tensor) -> Tensor:
    """Logarithm of q in the paper: Student's t kernel, one degree of freedom, normalised over the clusters.

    Shapes (batch, embedding) and (clusters, embedding) to (batch, clusters).
    """
    squares = (embedding.unsqueeze(-2) - centers.unsqueeze(-3)).square().sum(dim=-1)
    return (-torch.log1p(squares)).log_softmax(dim=-1)


def soft_assignment(embedding: Tensor, centers: Tensor) -> Tensor:
    """Q in the paper: the probability of each cluster, of shape (batch, clusters)."""
    return log_assignment(embedding, centers).exp()


def soft_sizes(assignment: Tensor) -> Tensor:
    """How many samples of the batch each cluster has, of shape (1, clusters)."""
    return assignment.sum(dim=-2, keepdim=True)


def target(assignment: Tensor, sizes: Sizes = soft_sizes, weights: Tensor | None = None) -> Tensor:
    """P in the paper: q squared over the soft cluster sizes, normalised; of shape (batch, clusters)."""
    counted = assignment if weights is None else assignment * weights.unsqueeze(-1)
    sharpened = assignment.square() / _positive(sizes(counted))
    return sharpened / sharpened.sum(dim=-1, keepdim=True)


def clustering(embedding: Tensor, centers: Tensor, sizes: Sizes = soft_sizes, weights: Tensor | None = None) -> Tensor:
    """L_clu in the paper: KL(p || q), summed over clusters, mean over the batch; p takes no gradient."""
    log_q = log_assignment(embedding, centers)
    costs = functional.kl_div(log_q, target(log_q.detach().exp(), sizes, weights), reduction="none")
    return mean(costs.sum(dim=-1), weights)


def hints(embedding: Tensor, centers: Tensor, known: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of the soft assignment with the classes that are known, mean over these; zero without any.

    Fewer than `HINT_SHARE` of the batch count as so many: a lone hint would pull with the force of the whole batch.

    Parameters
    ----------
    known : int64 tensor of shape (batch,): the cluster in which a sample belongs, -1 where that is not known
    """
    own = log_assignment(embedding, centers).gather(-1, known.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    all_weights = torch.ones_like(own) if weights is None else weights
    there = all_weights * (known >= 0)
    counted = torch.maximum(there.sum(dim=-1), HINT_SHARE * all_weights.sum(dim=-1))
    return -(own * there).sum(dim=-1) / _positive(counted)


def pairs(embedding: Tensor, centers: Tensor, together: Tensor) -> Tensor:
    """Cross-entropy of the chance that two samples share a cluster with whether they should, mean over pairs.

    The chance is the product of their soft assignments, summed over clusters.

    Parameters
    ----------
    embedding : tensor of shape (2, pairs, embedding)
    together : boolean tensor of shape (pairs,)
    """
    shared = log_assignment(embedding, centers.unsqueeze(-3)).sum(dim=-3).logsumexp(dim=-1)
    apart = (-torch.expm1(shared)).clamp(min=torch.finfo(shared.dtype).eps).log()
    return -torch.where(together, shared, apart).mean(dim=-1)


def total(
    terms: Sequence[Number], robustness_weight: float, clustering_weight: Number, hint_weight: float = HINT_WEIGHT
) -> Number:
    """L in the paper: the weighted sum of the terms; hints and pairs, where there are any, come last."""
    found = terms[0] + robustness_weight * terms[1] + clustering_weight * terms[2]
    for known in terms[3:]:
        found = found + hint_weight * clustering_weight * known
    return found
