"""Training in two stages (Algorithm 2): pre-train, initialise the centres, train jointly."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from torch import Tensor
from tqdm.auto import tqdm

from viewfuse.batches import Samples, plain_batch, view_dropout_rate
from viewfuse.errors import Diverged
from viewfuse.graphs import tensor_cores
from viewfuse.network import Network, build_network
from viewfuse.random_numbers import generator_for_start
from viewfuse.replicates import TERMS, Replicates, total_loss
from viewfuse.settings import Settings

_WARD_ROWS = 5_000
"""Ward's method takes rows x rows of memory and time; larger sets are represented by micro-clusters."""
_GROUPS = 2_000
_ROWS_AT_A_TIME = 65_536
_CURE = "lower learning_rate, or use scaling='minmax' or 'standard' if the data have extreme values"
_ROWS_PER_PASS = {"cpu": 64, "cuda": 1024}
TOGETHER = {"cpu": 1, "cuda": 16}
"""Networks trained side by side: a GPU has room for many, while on a CPU little is gained."""

History = dict[str, list[float | int | str]]


@dataclass
class Training:
    """What one training holds.

    Attributes
    ----------
    network : the network, on the device of `stored`
    stored : the training samples
    seed : root of every random number
    history : per epoch the mean of each loss term; `seconds` is the time of all that were trained together
    """

    network: Network
    stored: Samples
    settings: Settings
    seed: int
    history: History = field(default_factory=lambda: {k: [] for k in ("epoch", "stage", *TERMS, "total", "seconds")})

    @property
    def objective(self) -> float:
        """The loss of the last epoch; infinite before there was one."""
        return float(self.history["total"][-1]) if self.history["total"] else inf


def train(stored: Samples, settings: Settings, seed: int, *, progress: bool = False) -> Training:
    """Train a network on the stored samples, on the device that they are on.

    Returns
    -------
    Training
        With the network's centres set: those of the joint stage, or of k-means where there was none.
    """
    return train_replicates([stored], settings, [seed], progress=progress)[0]


def train_replicates(
    sets: Sequence[Samples], settings: Settings, seeds: Sequence[int], *, progress: bool = False
) -> list[Training]:
    """Train one network per seed; each is what `train` makes of its samples and its seed, up to rounding.

    Parameters
    ----------
    sets : one set of samples per seed, of equal shapes and on one device; or a single one, which all share
    """
    at_once = TOGETHER[sets[0].present.device.type]
    runs: list[Training] = []
    for start in range(0, len(seeds), at_once):
        chosen = slice(start, start + at_once)
        with tensor_cores(sets[0].present.device):
            runs += _train_together(sets if len(sets) == 1 else sets[chosen], settings, seeds[chosen], progress)
    return runs


def _train_together(
    sets: Sequence[Samples], settings: Settings, seeds: Sequence[int], progress: bool
) -> list[Training]:
    own = sets if len(sets) > 1 else [sets[0]] * len(seeds)
    runs = [Training(_start(s, settings, seed), s, settings, seed) for s, seed in zip(own, seeds, strict=True)]
    replicates = Replicates([run.network for run in runs], sets, settings, [_rate(s, settings) for s in sets], seeds)
    first, second = settings.epochs(len(sets[0]))
    with tqdm(total=first + second, disable=not progress, unit="epoch", desc="pre-training") as bar:
        for epoch in range(first):
            _run_epoch(runs, replicates, epoch, "pre-training", bar)
        replicates.unstack()
        replicates.begin_joint_stage(_start_centers(runs))
        bar.set_description("joint training")
        for epoch in range(first, first + second):
            _run_epoch(runs, replicates, epoch, "joint", bar)
    replicates.unstack()
    return runs


def _start(stored: Samples, settings: Settings, seed: int) -> Network:
    """A network with the weights of its seed, for the samples and on their device."""
    widths = [view.shape[1] for view in stored.values]
    return build_network(widths, settings, generator_for_start(seed)).to(stored.present.device)


def _rate(stored: Samples, settings: Settings) -> float:
    """phi_1, the view dropout in force."""
    rate = settings.view_dropout
    return view_dropout_rate(stored.present) if isinstance(rate, str) else float(rate)


def _run_epoch(runs: Sequence[Training], replicates: Replicates, epoch: int, stage: str, bar: tqdm) -> None:
    """One epoch of all; stops with an error when a loss is not finite."""
    began = time.perf_counter()
    terms = replicates.run_epoch(epoch)
    seconds = time.perf_counter() - began
    for run, own in zip(runs, terms.unbind(dim=1), strict=True):
        _refuse_non_finite(own, epoch, whose=f" (seed {run.seed})" if len(runs) > 1 else "")
        _record(run, epoch, own.mean(dim=0).tolist(), stage, seconds)
    bar.set_postfix(loss=f"{runs[0].history['total'][-1]:.4f}", refresh=False)
    bar.update()


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


def _start_centers(runs: Sequence[Training]) -> list[NDArray[np.float32]]:
    """The start of every training's centres, several at a time."""
    embeddings = [embed_stored(run) for run in runs]
    # K-means adds up in the order in which threads arrive: one thread gives the same sums every time.
    with (
        warnings.catch_warnings(),
        threadpool_limits(1),
        ThreadPoolExecutor(min(len(runs), os.cpu_count() or 1)) as pool,
    ):
        # Fewer distinct points than clusters leave clusters empty, of which the estimator warns.
        warnings.simplefilter("ignore", ConvergenceWarning)
        counts, seeds = [run.settings.n_clusters for run in runs], [run.seed for run in runs]
        return list(pool.map(initial_centers, embeddings, counts, seeds))


def initial_centers(embedding: Tensor, n_clusters: int, seed: int) -> NDArray[np.float32]:
    """Centres of shape (clusters, embedding): k-means from Ward's clusters, or from a better start.

    The paper takes Ward's clusters. Now and then these are far off (2 of 10 Handwritten runs); the smallest sum of
    squares, over Ward's start and ten k-means++ ones, shows it without labels. Many samples are represented by the
    means of small groups, which count as much as they have members.
    """
    state = np.random.RandomState(np.random.SeedSequence([seed, 0, 1]).generate_state(1)[0])
    means, sizes = embedding, torch.ones(len(embedding))
    if len(embedding) > _WARD_ROWS:
        means, sizes = micro_clusters(embedding, max(_GROUPS, 5 * n_clusters), state)
    points, weights = means.cpu().numpy(), sizes.cpu().numpy()
    if n_clusters == 1:
        return np.average(points, axis=0, weights=weights)[None].astype(np.float32)
    from_ward = KMeans(n_clusters, init=ward_centers(points, n_clusters), n_init=1).fit(points, None, weights)
    from_draws = KMeans(n_clusters, n_init=10, random_state=state).fit(points, None, weights)
    return in_order(min(from_ward, from_draws, key=lambda run: run.inertia_).cluster_centers_, points)


def in_order(centers: NDArray[np.float32], points: NDArray[np.float32]) -> NDArray[np.float32]:
    """The centres in the order in which the points meet them.

    Several starts often end in the same clusters, and rounding decides which of them is the best. The numbers of the
    clusters must not hang on that.
    """
    nearest = (points @ centers.T - np.square(centers).sum(axis=1) / 2).argmax(axis=1)
    first = np.full(len(centers), len(points))
    np.minimum.at(first, nearest, np.arange(len(points)))
    return centers[np.argsort(first, kind="stable")]


def micro_clusters(embedding: Tensor, n_groups: int, state: np.random.RandomState) -> tuple[Tensor, Tensor]:
    """Means of groups around random samples, of shape (groups, embedding), and their sizes: one step of k-means."""
    n_groups = min(n_groups, len(embedding))
    rows = torch.from_numpy(np.sort(state.choice(len(embedding), n_groups, replace=False))).to(embedding.device)
    seeds = embedding[rows]
    half_squares = seeds.square().sum(dim=1) / 2
    sums, sizes = torch.zeros_like(seeds), torch.zeros(n_groups, device=embedding.device)
    for chunk in torch.split(embedding, _ROWS_AT_A_TIME):
        group = torch.addmm(half_squares, chunk, seeds.T, alpha=-1).argmin(dim=1)
        sums.index_add_(0, group, chunk)
        sizes += torch.bincount(group, minlength=n_groups)
    kept = sizes > 0  # of equal samples only one leads a group
    return sums[kept] / sizes[kept, None], sizes[kept]


def ward_centers(points: NDArray[np.float32], n_clusters: int) -> NDArray[np.float32]:
    """Means of Ward's clusters, of shape (clusters, embedding)."""
    labels = AgglomerativeClustering(n_clusters, linkage="ward").fit_predict(points)
    return np.stack([points[labels == c].mean(axis=0) for c in range(n_clusters)])


def _refuse_non_finite(terms: Tensor, epoch: int, whose: str) -> None:
    """`terms` has shape (steps, terms)."""
    bad = ~torch.isfinite(terms)
    if not bad.any():
        return
    step_number = int(bad.any(dim=1).nonzero()[0])
    names = " and ".join(name for name, is_bad in zip(TERMS, bad[step_number].tolist(), strict=True) if is_bad)
    raise Diverged(f"the {names} loss is not finite in epoch {epoch + 1}, step {step_number + 1}{whose}; {_CURE}")


def _record(run: Training, epoch: int, terms: list[float], stage: str, seconds: float) -> None:
    row: list[float | int | str] = [epoch + 1, stage, *terms, total_loss(terms, run.settings), seconds]
    for name, value in zip(run.history, row, strict=True):
        run.history[name].append(value)
