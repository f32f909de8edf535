"""The objective of URRL-IMVC: what a step learns from, its losses as equations, and how samples are placed.

Neighbour lists are looked up (KNNI), views are dropped and noise is added (KIDA). Tensors of the losses may have
further axes before those named; the losses are then computed for each place along these. `weights` of the samples, of
shape (batch,), say how much each counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.network import Batch, Input, Mask, Network, adaptive_mask, empty_network
from viewfuse.neighbors.index import Samples, neighbor_lists
from viewfuse.nn.layers import in_parallel, map_views
from viewfuse.selection.scores import AGREEMENT_DEPTH

Number = TypeVar("Number", Tensor, float)
TERMS = ("reconstruction", "robustness", "clustering")
HINTS, PAIRS = "hints", "pairs"
HINT_WEIGHT = 1.0
"""Of hints, and of pairs, times the weight of the clustering loss. With ten times as much a network of width 64 learned
400 samples of Handwritten by heart (results/hints)."""
HINT_SHARE = 1 / 8
"""Of a batch. Without such a share 1 % of the labels cost .6 on BDGP; with the whole batch instead, Scene15
gained less: results/hints."""
Sizes = Callable[[Tensor], Tensor]
"""From soft assignments of shape (..., batch, clusters) to the soft sizes of the clusters, which divide them."""
LEAST_VIEW_DROPOUT = 0.15
"""Epsilon of the paper's equation "aug ratio"."""
_ALMOST_ONE = 1 - 2.0**-24  # rounding must not reach 1, where the normal quantile is infinite


def mean(costs: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over the batch, of shape (batch,), in which a sample counts by its weight; all the same without any."""
    return costs.mean(dim=-1) if weights is None else (costs * weights).sum(dim=-1) / _positive(weights.sum(dim=-1))


def _positive(total: Tensor) -> Tensor:
    """A divisor: nothing is learned from a batch that counts nothing."""
    return total.clamp(min=torch.finfo(total.dtype).tiny)


def reconstruction(errors: Sequence[Tensor], present: Tensor, weights: Tensor | None = None) -> Tensor:
    """L_rec in the paper: squared error of the views that are there, sum over views, mean over the batch.

    `errors` has for each view what `squared_error` gives; `present`, of shape (batch, views), says what is there.
    """
    return mean((torch.stack(list(errors), dim=-1) * present).sum(dim=-1), weights)


def squared_error(guess: Tensor, truth: Tensor) -> Tensor:
    """Mean over columns of the squared error: shapes (batch, columns) to (batch,)."""
    return functional.mse_loss(guess, truth, reduction="none").mean(dim=-1)


def robustness(plain: Tensor, augmented: Tensor, weights: Tensor | None = None) -> Tensor:
    """L_aug in the paper: each augmented embedding must be closest to its own plain one.

    Cross-entropy over minus the Euclidean distances, mean over the batch. Both of shape (batch, embedding). A sample of
    weight 2 stands twice among those that must be farther.
    """
    # By a matrix product, much faster on a GPU; in float64 it is exact down to 1e-8 of the embeddings' norm.
    distances = torch.cdist(augmented.double(), plain.double(), compute_mode="use_mm_for_euclid_dist")
    near = (-distances).to(plain.dtype)
    if weights is None:
        return -near.log_softmax(dim=-1).diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    among = (near + _positive(weights).log().unsqueeze(-2)).logsumexp(dim=-1)
    return mean(among - near.diagonal(dim1=-2, dim2=-1), weights)


def log_assignment(embedding: Tensor, centers: Tensor) -> Tensor:
    """Logarithm of q in the paper: Student's t kernel, one degree of freedom, normalised over the clusters."""
    squares = (embedding.unsqueeze(-2) - centers.unsqueeze(-3)).square().sum(dim=-1)
    return (-torch.log1p(squares)).log_softmax(dim=-1)


def soft_assignment(embedding: Tensor, centers: Tensor) -> Tensor:
    """Q in the paper: (batch, embedding) and (clusters, embedding) to the probabilities (batch, clusters)."""
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
    `known`, of shape (batch,), holds the cluster in which a sample belongs, and -1 where that is not known.
    """
    own = log_assignment(embedding, centers).gather(-1, known.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    all_weights = torch.ones_like(own) if weights is None else weights
    there = all_weights * (known >= 0)
    counted = torch.maximum(there.sum(dim=-1), HINT_SHARE * all_weights.sum(dim=-1))
    return -(own * there).sum(dim=-1) / _positive(counted)


def pairs(embedding: Tensor, centers: Tensor, together: Tensor) -> Tensor:
    """Cross-entropy of the chance that two samples share a cluster with whether they should, mean over pairs.

    The chance is the product of their soft assignments, summed over clusters. Shapes (2, pairs, embedding), (clusters,
    embedding) and (pairs,).
    """
    shared = log_assignment(embedding, centers.unsqueeze(-3)).sum(dim=-3).logsumexp(dim=-1)
    apart = (-torch.expm1(shared)).clamp(min=torch.finfo(shared.dtype).eps).log()
    return -torch.where(together, shared, apart).mean(dim=-1)


def total(
    terms: Mapping[str, Number], robustness_weight: float, clustering_weight: Number, hint_weight: float = HINT_WEIGHT
) -> Number:
    """L in the paper: the weighted sum of the terms by name, with hints and pairs where there are any."""
    found = terms["reconstruction"] + robustness_weight * terms["robustness"] + clustering_weight * terms["clustering"]
    for name in (HINTS, PAIRS):
        if name in terms:
            found = found + hint_weight * clustering_weight * terms[name]
    return found


def members_of(samples: Samples, available: Tensor, stored: Samples, config: Config) -> tuple[Tensor, Tensor]:
    """Who stands in every sample's neighbour lists, given the views that it may use; see `neighbor_lists`."""
    nearest = samples.neighbor_ids[:, :, : config.search_depth]
    return neighbor_lists(nearest, available, stored.present, config.list_length)


def gather_neighbors(samples: Samples, available: Tensor, stored: Samples, config: Config) -> Batch:
    """Gather every sample's neighbour lists, given the views that it may use (KNNI)."""
    members, valid = members_of(samples, available, stored, config)
    rows, shown = members.clamp(min=0), valid[..., None]

    def gather(v: int) -> Tensor:
        tokens = stored.values[v][rows[:, v]]  # (batch, list length, columns)
        tokens[:, 0] = torch.where(available[:, v, None], samples.values[v], tokens[:, 0])
        return tokens.mul_(shown[:, v])

    return Batch(map_views(gather, len(stored.values)), valid, available)


def plain_batch(samples: Samples, stored: Samples, config: Config) -> Batch:
    """The samples as they are."""
    return gather_neighbors(samples, samples.present, stored, config)


def view_dropout_rate(present: Tensor) -> float:
    """phi_1 from the share of missing views (equation "aug ratio")."""
    missing = 1.0 - float(present.double().mean())
    return LEAST_VIEW_DROPOUT + (1.0 - LEAST_VIEW_DROPOUT) * missing**2


def dropout_of(config: Config, present: Tensor) -> float:
    """phi_1 as it is set, or as the missing views say."""
    rate = config.view_dropout
    return view_dropout_rate(present) if isinstance(rate, str) else float(rate)


def drop_views(present: Tensor, rate: float | Tensor, draws: Tensor) -> Tensor:
    """Drop each view with probability `rate` (equation "VD"); a sample that would lose all keeps one at random.

    `present` has shape (..., views), and `draws`, which are uniform, (..., 2 * views).
    """
    chances, tie_breaks = draws.chunk(2, dim=-1)
    kept = present & (chances >= rate)
    lucky = (tie_breaks * present).argmax(dim=-1, keepdim=True)
    spared = torch.zeros_like(present).scatter_(-1, lucky, ~kept.any(dim=-1, keepdim=True))
    return kept | spared


def add_noise(tokens: Sequence[Tensor], valid: Tensor, config: Config, draws: Tensor) -> None:
    """Gaussian noise and random feature dropout on all that is not padding (equation "GNRD"), in place.

    Tokens have for each view the shape (..., list length, columns), and `valid` has (..., views, list length). `draws`
    are uniform, of shape (..., list length, columns of all views): a number decides whether a value is dropped and, if
    it is not, also its noise, as above the dropout rate it is uniform again.
    """
    rate = config.feature_dropout
    kept = draws >= rate
    noise = (draws * (2 / (1 - rate)) - (1 + rate) / (1 - rate)).clamp_(-_ALMOST_ONE, _ALMOST_ONE).erfinv_()
    ends = list(accumulate(view.shape[-1] for view in tokens))

    def spoil(v: int) -> None:
        columns = slice(ends[v] - tokens[v].shape[-1], ends[v])
        tokens[v].add_(noise[..., columns], alpha=config.noise * 2**0.5)
        tokens[v].mul_(kept[..., columns] & valid[..., v, :, None])

    map_views(spoil, len(tokens))


def draws_per_sample(stored: Samples, config: Config) -> tuple[int, int]:
    """How many random numbers `two_branches` needs for a sample: for dropping views, and for noise."""
    return 2 * len(stored.values), config.list_length * sum(view.shape[1] for view in stored.values)


def two_branches(
    stored: Samples, rows: Tensor, config: Config, rate: float | Tensor, draws: Tensor
) -> tuple[Samples, Batch]:
    """KIDA in the paper: stored samples as they are, and the same samples augmented, as one batch.

    Per replicate, first its plain samples and then the same ones again, in the batch augmented. `rows` have shape
    (replicates, samples of each), and `draws` one more axis for `draws_per_sample` uniform numbers together. `rate` of
    view dropout is a number, or has shape (replicates, 1, 1).
    """
    twice = rows[:, None].expand(-1, 2, -1)
    samples = stored.take(twice.flatten())
    for_views, for_noise = torch.split(draws, list(draws_per_sample(stored, config)), dim=-1)
    present = torch.unflatten(samples.present, 0, twice.shape)[:, 0]
    available = torch.stack([present, drop_views(present, rate, for_views)], dim=1)
    batch = gather_neighbors(samples, available.flatten(0, 2), stored, config)
    augmented = [torch.unflatten(view, 0, twice.shape)[:, 1] for view in batch.tokens]
    valid = torch.unflatten(batch.valid, 0, twice.shape)[:, 1]
    add_noise(augmented, valid, config, torch.unflatten(for_noise, -1, (config.list_length, -1)))
    return samples, batch


class StepBatch(NamedTuple):
    """What is learned from in a step; all but `given` of shape (replicates, samples of each, ...)."""

    given: Input  # the samples as they are and, where there is augmentation, augmented
    values: list[Tensor]  # per view what is to be rebuilt
    present: Tensor  # which views are there
    known: Tensor | None = None  # known classes, else -1; None where there are no hints
    weights: Tensor | None = None  # how much each sample counts; None where all count the same


@dataclass(frozen=True)
class URRLMethod:
    """URRL-IMVC under one configuration.

    Networks may be stacked: then their weights have a leading axis for the replicates, and so have rows, random numbers
    and losses. `sizes` are the soft sizes of the clusters in a batch: others than its own where it is only a part.
    """

    config: Config
    sizes: Sizes = field(default=soft_sizes, compare=False, repr=False)
    hint_weight: float = field(default=HINT_WEIGHT, compare=False, repr=False)
    name = "urrl"
    shows_rounding = True  # neighbours are found before

    @classmethod
    def from_saved(cls, config: Mapping[str, Any]) -> URRLMethod:
        """The method whose configuration a saved model names."""
        return cls(Config(**config))

    def saved(self) -> dict[str, Any]:
        """The configuration, in a form that JSON can hold."""
        return asdict(self.config)

    @property
    def n_clusters(self) -> int:
        """How many clusters are looked for."""
        return self.config.n_clusters

    @property
    def neighbor_depth(self) -> int:
        """Neighbours that are kept of each sample and view: for the lists, and for the choice of clusters."""
        return max(self.config.search_depth, AGREEMENT_DEPTH)

    def empty(self, widths: Sequence[int]) -> Network:
        """A network without memory for its weights."""
        return empty_network(widths, self.config)

    def draws_per_sample(self, stored: Samples) -> int:
        """How many random numbers the augmentation of a sample needs."""
        return sum(draws_per_sample(stored, self.config))

    def prepare(self, stored: Samples, rows: Tensor, view_dropout: float | Tensor, draws: Tensor) -> StepBatch:
        """The samples as they are and, where there is augmentation, augmented; see `two_branches`."""
        if self.config.augmentation:
            samples, batch = two_branches(stored, rows, self.config, view_dropout, draws)
        else:
            samples = stored.take(rows.flatten())
            batch = plain_batch(samples, stored, self.config)
        shape = (len(rows), -1, rows.shape[1])
        values = [torch.unflatten(view, 0, shape)[:, 0].contiguous() for view in samples.values]
        return StepBatch(Input.of(batch, self.config), values, torch.unflatten(samples.present, 0, shape)[:, 0])

    def losses(self, network: Network, batch: StepBatch, *, joint: bool) -> dict[str, Tensor]:
        """L_rec, L_aug and L_clu of each replicate by name, zero where switched off, and hints if there are any."""
        plain, augmented = self._branches(network, batch)
        zero, weights = plain.new_zeros(len(plain)), batch.weights

        def error(v: int) -> Tensor:
            return squared_error(network.decoders[v](augmented), batch.values[v])

        def robust() -> Tensor:
            return robustness(plain, augmented, weights) if self.config.augmentation else zero

        def clustered() -> Tensor:
            return clustering(augmented, network.centers, self.sizes, weights) if joint else zero

        works: list[Callable[[], Tensor]] = [partial(error, v) for v in range(len(batch.values))]
        *errors, of_robustness, of_clusters = in_parallel([*works, robust, clustered])
        values = reconstruction(errors, batch.present, weights), of_robustness, of_clusters
        terms = dict(zip(TERMS, values, strict=True))
        if batch.known is not None:
            terms[HINTS] = hints(augmented, network.centers, batch.known, weights)
        return terms

    def pair_loss(self, network: Network, batch: StepBatch, together: Tensor) -> Tensor:
        """Whether pairs are together or apart, as they should be: the first samples of all pairs, then the second."""
        _, augmented = self._branches(network, batch)
        return pairs(torch.unflatten(augmented, 1, (2, -1)), network.centers, together)

    @staticmethod
    def _branches(network: Network, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Embeddings as the samples are, and augmented: one and the same without augmentation."""
        count, n = batch.present.shape[:2]
        branches = torch.unflatten(network(batch.given), 0, (count, -1, n)).unbind(dim=1)
        return branches[0], branches[-1]

    def total(self, terms: Mapping[str, Number], clustering_weight: Number) -> Number:
        """L in the paper."""
        return total(terms, self.config.robustness_weight, clustering_weight, self.hint_weight)

    def embed(self, network: Network, samples: Samples, stored: Samples) -> Tensor:
        """Z in the paper: embeddings of samples as they are."""
        return network.encode(plain_batch(samples, stored, self.config))

    def assign(self, network: Network, embedding: Tensor) -> Tensor:
        """Q in the paper."""
        return soft_assignment(embedding, network.centers)

    def members(self, samples: Samples, stored: Samples) -> Tensor:
        """Training samples in the neighbour lists, of shape (samples, views, list length): donors of missing views."""
        return members_of(samples, samples.present, stored, self.config)[0]

    def view_influence(self, network: Network, samples: Samples, stored: Samples) -> Tensor:
        """How far the embedding would move if nothing stood in a view, of shape (samples, views).

        Each view is emptied in turn, as the network knows empty views: attention was nearly even among the views that a
        sample has, whatever was in them. Negative infinity marks a view in which nothing stands.
        """
        batch = plain_batch(samples, stored, self.config)
        zeros = [torch.zeros_like(clean) for clean in batch.tokens]
        bare = Batch(zeros, torch.zeros_like(batch.valid), torch.zeros_like(batch.available))
        given, nothing = (Input.of(one, self.config) for one in (batch, bare))
        # What is in one view does not change the tokens of the others, so these are computed once.
        tokens, empty = network.tokens(given), network.tokens(nothing)
        bias = adaptive_mask(batch.valid, batch.available, self.config).to(tokens.dtype)
        whole, moved = network.fuse(tokens, given.view_mask), []
        for v in range(len(batch.tokens)):
            emptied = tokens.clone()
            emptied[:, v] = empty[:, v]
            hidden = torch.tensor(v, device=bias.device)
            without = network.fuse(emptied, Mask.of(bias.index_fill(1, hidden, -torch.inf)))
            moved.append((whole - without).norm(dim=1))
        return torch.stack(moved, dim=1).masked_fill(~batch.valid.any(dim=2), -torch.inf)
