"""The package's own training, with the same handles as the plain reference, and both on one and the same batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.batches import Samples, draws_per_sample, index_training_set, two_branches, view_dropout_rate
from viewfuse.bench.speed.reference import PlainNetwork, copy_weights
from viewfuse.bench.speed.reference import batch_losses as plain_losses
from viewfuse.bench.speed.reference_data import Item, Table
from viewfuse.data.scaling import fit_scaler
from viewfuse.data.views import Views
from viewfuse.lessons import StepBatch
from viewfuse.network import Network, build_network
from viewfuse.random_numbers import generator_for_start
from viewfuse.replicates import Replicates, ReplicateSpec
from viewfuse.selection.centers import initial_centers
from viewfuse.settings import Settings
from viewfuse.training import embed


def scaled_table(arrays: Sequence[NDArray[np.float32]]) -> Table:
    """Arrays with rows of NaN as scaled samples."""
    views = Views(list(arrays))
    scaled = fit_scaler(views, "minmax").apply(views)
    return Table([np.array(array) for array in scaled.arrays], np.array(scaled.mask))


def stored_samples(table: Table, settings: Settings, device: torch.device) -> Samples:
    """The same samples as the package holds them, with their neighbours."""
    values = [torch.tensor(view, device=device) for view in table.values]
    return index_training_set(values, torch.tensor(table.present, device=device), settings)


class OurTraining:
    """The package's training, one epoch at a time.

    Parameters
    ----------
    n_replicates : networks that are trained side by side, with seeds from `seed` on
    """

    def __init__(
        self, table: Table, settings: Settings, seed: int, device: torch.device, n_replicates: int = 1
    ) -> None:
        self._settings, self._seeds = settings, range(seed, seed + n_replicates)
        self.stored = stored_samples(table, settings, device)
        widths = [view.shape[1] for view in table.values]
        self.networks = [build_network(widths, settings, generator_for_start(s)).to(device) for s in self._seeds]
        rate = view_dropout_rate(self.stored.present)
        weight = float(settings.clustering_weight)
        self._trainees = [
            ReplicateSpec(network, self.stored, settings, s, rate, weight)
            for network, s in zip(self.networks, self._seeds, strict=True)
        ]
        self._replicates = Replicates(self._trainees, joint=False)

    def run_epoch(self, epoch: int) -> Tensor:
        """One pass over the shuffled samples; returns loss terms of shape (steps, replicates, terms)."""
        return self._replicates.run_epoch(epoch).clone()  # on a CPU the next epoch overwrites what is returned

    def begin_joint_stage(self) -> None:
        """Set the cluster centres, and train them as well."""
        self._replicates.unstack()
        for i, (network, seed) in enumerate(zip(self.networks, self._seeds, strict=True)):
            found = initial_centers(self.embed(i), self._settings.n_clusters, seed)
            network.centers.data.copy_(torch.from_numpy(found))
        self._replicates = Replicates(self._trainees, joint=True)

    def embed(self, replicate: int = 0) -> Tensor:
        """Embeddings of the training samples as they are, of shape (samples, embedding)."""
        return embed(self.networks[replicate], self.stored, self.stored, self._settings)

    @torch.no_grad()
    def labels(self) -> NDArray[np.int64]:
        """The cluster of each training sample, by the first network."""
        self._replicates.unstack()
        parts = [self.networks[0].assign(rows).argmax(dim=1) for rows in torch.split(self.embed(), 1024)]
        return torch.cat(parts).cpu().numpy()


@torch.no_grad()
def losses_of_both(network: Network, stored: Samples, rows: Tensor, settings: Settings) -> dict[str, list[float]]:
    """The three losses on the samples `rows`, by the package and by the plain network with the same weights."""
    plain = PlainNetwork([view.shape[1] for view in stored.values], settings).to(stored.present.device)
    copy_weights(network, plain)
    rate = view_dropout_rate(stored.present)
    draws = torch.rand(
        1, len(rows), sum(draws_per_sample(stored, settings)), generator=torch.Generator().manual_seed(0)
    )
    draws = draws.to(stored.present.device)
    own = own_losses(network, stored, rows, settings, rate, draws)
    same = plain_losses(plain, plain_batch(stored, rows, settings, rate, draws), joint=True)
    return {"ours": [float(term) for term in own], "plain": [float(term) for term in same]}


def own_losses(
    network: Network, stored: Samples, rows: Tensor, settings: Settings, rate: float, draws: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The three losses on the samples `rows`, by the package."""
    lesson = StepBatch.of(stored, rows[None], settings, rate, draws)
    return lesson.terms(network, network.tokens(lesson.given), settings, joint=True)


def plain_batch(stored: Samples, rows: Tensor, settings: Settings, rate: float, draws: Tensor) -> Item:
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
