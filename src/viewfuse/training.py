"""Training in two stages (Algorithm 2): pre-train, initialise the centres, train jointly."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from torch import Generator, Tensor
from tqdm.auto import tqdm

from viewfuse import losses
from viewfuse.batches import Samples, plain_batch, two_branches, view_dropout_rate
from viewfuse.errors import Diverged
from viewfuse.network import Network, build_network
from viewfuse.settings import Settings

TERMS = ("reconstruction", "robustness", "clustering")
_WARD_ROWS = 10_000
"""Ward's method needs rows x rows of memory; larger sets are represented by a sample of this size."""
_CURE = "lower learning_rate, or use scaling='minmax' or 'standard' if the data have extreme values"
_ROWS_PER_PASS = {"cpu": 64, "cuda": 1024}

History = dict[str, list[float | int | str]]


@dataclass
class Training:
    """What one training holds.

    Attributes
    ----------
    network : the network, on the device of `stored`
    stored : the training samples
    rate : phi_1, the view dropout in force
    seed : root of every random number; what an epoch draws depends on the seed and the epoch alone
    history : per epoch the mean of each loss term
    """

    network: Network
    stored: Samples
    settings: Settings
    rate: float
    seed: int
    history: History = field(default_factory=lambda: {k: [] for k in ("epoch", "stage", *TERMS, "total", "seconds")})


def train(stored: Samples, settings: Settings, seed: int, *, progress: bool = False) -> Training:
    """Train a network on the stored samples, on the device that they are on.

    Returns
    -------
    Training
        With the network's centres set: those of the joint stage, or of k-means where there was none.
    """
    device = stored.present.device
    widths = [view.shape[1] for view in stored.values]
    network = build_network(widths, settings, generator_for(seed, -1, torch.device("cpu"))).to(device)
    rate = settings.view_dropout
    rate = view_dropout_rate(stored.present) if isinstance(rate, str) else float(rate)
    run = Training(network, stored, settings, rate, seed)
    optimizer = torch.optim.Adam(
        network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    first, second = settings.epochs(len(stored))
    with tqdm(total=first + second, disable=not progress, unit="epoch", desc="pre-training") as bar:
        for epoch in range(first):
            run_epoch(run, optimizer, epoch, joint=False, bar=bar)
        set_centers(run, initial_centers(embed_stored(run), settings.n_clusters, seed))
        bar.set_description("joint training")
        for epoch in range(first, first + second):
            run_epoch(run, optimizer, epoch, joint=True, bar=bar)
    return run


def run_epoch(run: Training, optimizer: torch.optim.Optimizer, epoch: int, *, joint: bool, bar: tqdm) -> None:
    """One pass over the shuffled samples; stops with an error when a loss is not finite."""
    began = time.perf_counter()
    generator = generator_for(run.seed, epoch, run.stored.present.device)
    steps = [
        step(run, optimizer, rows, generator, joint=joint)
        for rows in shuffled_batches(len(run.stored), run.settings.batch_size, generator)
    ]
    terms = torch.stack(steps).cpu()
    _refuse_non_finite(terms, epoch)
    _record(run, epoch, terms.mean(dim=0).tolist(), joint, time.perf_counter() - began)
    bar.set_postfix(loss=f"{run.history['total'][-1]:.4f}", refresh=False)
    bar.update()


def step(run: Training, optimizer: torch.optim.Optimizer, rows: Tensor, generator: Generator, *, joint: bool) -> Tensor:
    """One update; returns the loss terms as a tensor of shape (terms,)."""
    terms = batch_losses(run, rows, generator, joint=joint)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(total_loss(terms, run.settings))
    optimizer.step()
    return terms.detach()


def batch_losses(run: Training, rows: Tensor, generator: Generator, *, joint: bool) -> Tensor:
    """L_rec, L_aug and L_clu of a batch; a term that is switched off is zero."""
    samples = run.stored.take(rows)
    plain, augmented = _embed_branches(run, samples, generator)
    rebuilt = run.network.decode(augmented)
    zero = augmented.new_zeros(())
    return torch.stack(
        [
            losses.reconstruction(rebuilt, samples.values, samples.present),
            losses.robustness(plain, augmented) if run.settings.augmentation else zero,
            losses.clustering(augmented, run.network.centers) if joint else zero,
        ]
    )


def _embed_branches(run: Training, samples: Samples, generator: Generator) -> tuple[Tensor, Tensor]:
    """Plain and augmented embeddings, of shape (batch, embedding); one and the same without augmentation."""
    if not run.settings.augmentation:
        plain = run.network.encode(plain_batch(samples, run.stored, run.settings))
        return plain, plain
    both = run.network.encode(two_branches(samples, run.stored, run.settings, run.rate, generator))
    return both[: len(samples)], both[len(samples) :]


def total_loss(terms: Tensor, settings: Settings) -> Tensor:
    """L in the paper: the weighted sum of the terms."""
    weights = terms.new_tensor([1.0, settings.robustness_weight, settings.clustering_weight])
    return (terms * weights).sum()


def shuffled_batches(n: int, size: int, generator: Generator) -> Iterator[Tensor]:
    """Row numbers in random order, in batches of `size`; what is left over waits for the next epoch's order."""
    order = torch.randperm(n, generator=generator, device=generator.device)
    size = min(size, n)
    for start in range(0, n - size + 1, size):
        yield order[start : start + size]


def generator_for(seed: int, epoch: int, device: torch.device) -> Generator:
    """The random numbers of one epoch (-1: of the start), from nothing but the seed and the epoch."""
    state = np.random.SeedSequence([seed, epoch + 1]).generate_state(1, np.uint64)[0]
    return Generator(device).manual_seed(int(state))


def passes(samples: Samples) -> Iterator[Samples]:
    """The samples in parts that bound the memory.

    Every pass has the same number of rows, the last one filled up with its last sample: matrix products of one
    shape round alike, so a sample's embedding is the same to the bit alone and in any company.
    """
    device = samples.present.device
    size = _ROWS_PER_PASS[device.type]
    for start in range(0, len(samples), size):
        yield samples.take(torch.arange(start, start + size, device=device).clamp(max=len(samples) - 1))


@torch.no_grad()
def embed(network: Network, samples: Samples, stored: Samples, settings: Settings) -> Tensor:
    """Embeddings of the samples as they are, of shape (samples, embedding)."""
    parts = [network.encode(plain_batch(part, stored, settings)) for part in passes(samples)]
    return torch.cat(parts)[: len(samples)]


def embed_stored(run: Training) -> Tensor:
    """Embeddings of the training samples as they are, of shape (samples, embedding); stops if one is not finite."""
    embedding = embed(run.network, run.stored, run.stored, run.settings)
    if not torch.isfinite(embedding).all():
        # The last update of an epoch can break the weights without a loss that shows it.
        raise Diverged(f"the embedding is not finite after epoch {len(run.history['epoch'])}; {_CURE}")
    return embedding


@torch.no_grad()
def set_centers(run: Training, centers: NDArray[np.float32]) -> None:
    """Put the cluster centres into the network."""
    run.network.centers.copy_(torch.from_numpy(centers))


def initial_centers(embedding: Tensor, n_clusters: int, seed: int) -> NDArray[np.float32]:
    """Centres of shape (clusters, embedding): k-means from Ward's clusters, or from a better start.

    The paper takes Ward's clusters. Now and then these are far off (2 of 10 Handwritten runs); the smallest sum of
    squares, over Ward's start and ten k-means++ ones, shows it without labels.
    """
    points = embedding.cpu().numpy()
    if n_clusters == 1:
        return points.mean(axis=0, keepdims=True)
    state = np.random.RandomState(np.random.SeedSequence([seed, 0, 1]).generate_state(1)[0])
    sample = points if len(points) <= _WARD_ROWS else points[state.choice(len(points), _WARD_ROWS, replace=False)]
    # K-means adds up in the order in which threads arrive: one thread gives the same sums every time.
    with warnings.catch_warnings(), threadpool_limits(1, user_api="openmp"):
        # Fewer distinct points than clusters leave clusters empty, of which the estimator warns.
        warnings.simplefilter("ignore", ConvergenceWarning)
        from_ward = KMeans(n_clusters, init=ward_centers(sample, n_clusters), n_init=1).fit(sample)
        from_draws = KMeans(n_clusters, n_init=10, random_state=state).fit(sample)
        best = min(from_ward, from_draws, key=lambda run: run.inertia_).cluster_centers_
        return best if sample is points else KMeans(n_clusters, init=best, n_init=1).fit(points).cluster_centers_


def ward_centers(points: NDArray[np.float32], n_clusters: int) -> NDArray[np.float32]:
    """Means of Ward's clusters, of shape (clusters, embedding)."""
    labels = AgglomerativeClustering(n_clusters, linkage="ward").fit_predict(points)
    return np.stack([points[labels == c].mean(axis=0) for c in range(n_clusters)])


def _refuse_non_finite(terms: Tensor, epoch: int) -> None:
    """`terms` has shape (steps, terms)."""
    bad = ~torch.isfinite(terms)
    if not bad.any():
        return
    step_number = int(bad.any(dim=1).nonzero()[0])
    names = " and ".join(name for name, is_bad in zip(TERMS, bad[step_number].tolist(), strict=True) if is_bad)
    raise Diverged(f"the {names} loss is not finite in epoch {epoch + 1}, step {step_number + 1}; {_CURE}")


def _record(run: Training, epoch: int, terms: list[float], joint: bool, seconds: float) -> None:
    total = float(total_loss(torch.tensor(terms), run.settings))
    row = [epoch + 1, "joint" if joint else "pre-training", *terms, total, seconds]
    for name, value in zip(run.history, row, strict=True):
        run.history[name].append(value)
