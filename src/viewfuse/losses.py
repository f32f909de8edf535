"""The three losses, the soft assignment and its target: pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def reconstruction(rebuilt: Sequence[Tensor], values: Sequence[Tensor], present: Tensor) -> Tensor:
    """L_rec in the paper: squared error of the views that are there.

    Mean over columns, sum over views, mean over the batch.

    Parameters
    ----------
    rebuilt, values : per view a tensor of shape (batch, columns)
    present : boolean tensor of shape (batch, views)
    """
    errors = [(guess - truth).square().mean(dim=1) for guess, truth in zip(rebuilt, values, strict=True)]
    return (torch.stack(errors, dim=1) * present).sum(dim=1).mean()


def robustness(plain: Tensor, augmented: Tensor) -> Tensor:
    """L_aug in the paper: each augmented embedding must be closest to its own plain one.

    Cross-entropy over minus the Euclidean distances, mean over the batch. Both of shape (batch, embedding).
    """
    # Differences, not products: exact near zero, where the gradient of this distance is zero by definition.
    distances = torch.cdist(augmented, plain, compute_mode="donot_use_mm_for_euclid_dist")
    return functional.cross_entropy(-distances, torch.arange(len(plain), device=plain.device))


def log_assignment(embedding: Tensor, centers: Tensor) -> Tensor:
    """Logarithm of q in the paper: Student's t kernel, one degree of freedom, normalised over the clusters.

    Shapes (batch, embedding) and (clusters, embedding) to (batch, clusters).
    """
    squares = (embedding[:, None, :] - centers).square().sum(dim=2)
    return (-torch.log1p(squares)).log_softmax(dim=1)


def soft_assignment(embedding: Tensor, centers: Tensor) -> Tensor:
    """Q in the paper: the chance of each cluster, of shape (batch, clusters)."""
    return log_assignment(embedding, centers).exp()


def target(assignment: Tensor) -> Tensor:
    """P in the paper: q squared over the soft cluster sizes, normalised; of shape (batch, clusters)."""
    sharpened = assignment.square() / assignment.sum(dim=0)
    return sharpened / sharpened.sum(dim=1, keepdim=True)


def clustering(embedding: Tensor, centers: Tensor) -> Tensor:
    """L_clu in the paper: KL(p || q), summed over clusters, mean over the batch; p takes no gradient."""
    log_q = log_assignment(embedding, centers)
    return functional.kl_div(log_q, target(log_q.detach().exp()), reduction="batchmean")
