"""The package's own training, with the same handles as the plain reference, and both on one and the same batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.reference.data import Item, ScaledTable
from benchmarks.reference.model import PlainNetwork, copy_weights
from benchmarks.reference.model import batch_losses as plain_losses
from viewfuse.data.scaling import fit_scaler
from viewfuse.data.views import Views
from viewfuse.engine.replicates import clusters, embed
from viewfuse.engine.training import Stage, Training
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import TERMS, URRLMethod, two_branches, view_dropout_rate
from viewfuse.methods.urrl.network import Network
from viewfuse.methods.urrl.stages import init_state, joint_stage, pretraining_stage
from viewfuse.neighbors.index import Samples, index_training_set
from viewfuse.selection.kmeans import initial_centers


def scaled_table(arrays: Sequence[NDArray[np.float32]]) -> ScaledTable:
    """Arrays with rows of NaN as scaled samples."""
    views = Views(list(arrays))
    scaled = fit_scaler(views, "minmax").apply(views)
    return ScaledTable([np.array(array) for array in scaled.arrays], np.array(scaled.mask))


def stored_samples(table: ScaledTable, settings: Config, device: torch.device) -> Samples:
    """The same samples as the package holds them, with their neighbours."""
    values = [torch.tensor(view, device=device) for view in table.values]
    return index_training_set(values, torch.tensor(table.present, device=device), URRLMethod(settings).neighbor_depth)


class OurTraining:
    """The package's training, one epoch at a time.

    Parameters
    ----------
    n_replicates : networks that are trained side by side, with seeds from `seed` on
    """

    def __init__(
        self, table: ScaledTable, settings: Config, seed: int, device: torch.device, n_replicates: int = 1
    ) -> None:
        settings = settings.sized(len(table))
        self._method = URRLMethod(settings)
        self.stored = stored_samples(table, settings, device)
        self.runs = [init_state(self.stored, settings, s) for s in range(seed, seed + n_replicates)]
        for run in self.runs:
            run.numbers["clustering_weight"] = float(settings.clustering_weight)
        self._training = Training(self.runs)
        self._begin(pretraining_stage(self._training, 1))

    def _begin(self, stage: Stage) -> None:
        self._epoch = self._training.begin(stage)

    def run_epoch(self, epoch: int) -> Tensor:
        """One pass over the shuffled samples; returns loss terms of shape (steps, replicates, terms)."""
        found = self._epoch.run(epoch)
        return torch.stack([found[name] for name in TERMS], dim=2)

    def begin_joint_stage(self) -> None:
        """Set the cluster centres, and train them as well."""
        self._training.unstack()
        for i, run in enumerate(self.runs):
            found = initial_centers(self.embed(i), self._method.n_clusters, run.seed)
            run.network.centers.data.copy_(torch.from_numpy(found))
        self._training = Training(self.runs)
        self._begin(joint_stage(self._training, 1))

    def embed(self, replicate: int = 0) -> Tensor:
        """Embeddings of the training samples as they are, of shape (samples, embedding)."""
        return embed(self._method, self.runs[replicate].network, self.stored, self.stored)

    @torch.no_grad()
    def labels(self) -> NDArray[np.int64]:
        """The cluster of each training sample, by the first network."""
        self._training.unstack()
        return clusters(self._method, self.runs[0].network, self.embed()).cpu().numpy()


@torch.no_grad()
def losses_of_both(network: Network, stored: Samples, rows: Tensor, settings: Config) -> dict[str, list[float]]:
    """The three losses on the samples `rows`, by the package and by the plain network with the same weights."""
    plain = PlainNetwork([view.shape[1] for view in stored.values], settings).to(stored.present.device)
    copy_weights(network, plain)
    rate = view_dropout_rate(stored.present)
    count = URRLMethod(settings).draws_per_sample(stored)
    draws = torch.rand(1, len(rows), count, generator=torch.Generator().manual_seed(0))
    draws = draws.to(stored.present.device)
    own = own_losses(network, stored, rows, settings, rate, draws)
    same = plain_losses(plain, plain_batch(stored, rows, settings, rate, draws), joint=True)
    return {"ours": [float(term) for term in own], "plain": [float(term) for term in same]}


def own_losses(
    network: Network, stored: Samples, rows: Tensor, settings: Config, rate: float, draws: Tensor
) -> tuple[Tensor, ...]:
    """The three losses on the samples `rows`, by the package."""
    method = URRLMethod(settings)
    found = method.losses(network, method.prepare(stored, rows[None], rate, draws), joint=True)
    return tuple(found.values())


def plain_batch(stored: Samples, rows: Tensor, settings: Config, rate: float, draws: Tensor) -> Item:
    """The package's batch of both branches, in the form in which the plain reference takes its batches."""
    samples, batch = two_branches(stored, rows[None], settings, rate, draws)
    n = len(rows)
    branches = [
        {"tokens": [view[half] for view in batch.tokens], "filled": batch.valid[half], "have": batch.available[half]}
        for half in (slice(0, n), slice(n, None))
    ]
    return {
        "plain": branches[0],
        "augmented": branches[1],
        "values": [view[:n] for view in samples.values],
        "present": samples.present[:n],
    }
