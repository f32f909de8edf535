"""How many clusters there are in the data: one short pre-training, which knows no number, and a tested tree.

And which new kinds came later: novel samples that share more neighbours with each other than with any cluster, and are
as clearly apart from the next cluster as the clusters are from each other. The splits among them are then tested, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.data.side_information.known_labels import UNKNOWN
from viewfuse.data.views import Views
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.replicates import embed, seed_under_scaling
from viewfuse.engine.training import TrainState, check_diverged
from viewfuse.fitted.model import Source, prepare, scalers_of
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod
from viewfuse.methods.urrl.scaling_search import check_memory
from viewfuse.methods.urrl.stages import init_state, pretrain
from viewfuse.neighbors.index import Samples
from viewfuse.nn.layers import with_gradients
from viewfuse.selection.decisions import ClusterNumber
from viewfuse.selection.kmeans import filled_table, initial_centers, nearest_center
from viewfuse.selection.linkage import cluster_tree, principal
from viewfuse.selection.rules import SCALINGS
from viewfuse.selection.split_evidence import LEAST, Look, Split, splits_of
from viewfuse.selection.split_tree import (
    islands,
    number_decision,
    possible_range,
    split_between,
    splits_tested,
    strongest,
    tested,
    without_view,
)

_ROWS = 2_500
"""Samples that are enough to choose the number of clusters."""
_ROWS_PER_COMBINATION = 10
"""Samples on average with the same categories, from which on these fall into crisp groups. No real set has such a view.
"""


@with_gradients
def choose_n_clusters(
    source: Source, config: Config, within: Any, scaling: str, seed: int, device: torch.device, *,
    checkpoint: Checkpoint | None = None, **how: Any,
) -> tuple[ClusterNumber, TrainState | None]:  # fmt: skip
    """How many clusters at most 2,500 of the samples have, with the evidence for every number.

    A network is pre-trained as long as the first scaling is tried; the tree of its embeddings is tested split by split.
    The pre-training is returned, too, where a fit can continue from there.
    `within` is the least and the largest number; `how` is of `pretrain`, the rest of `urrl.fit.fit_models`.
    """
    some, unasked = without_categories(source._replace(reduced=_drawn(source.reduced, seed)))
    possible = possible_range(within, len(some.reduced))
    if len(some.reduced) < 2 * LEAST or possible[1] == 1:
        return number_decision([], len(some.reduced), possible), None
    check_memory(some.reduced, config, device)
    how["checkpoint"] = checkpoint and checkpoint.part("choice")
    run = pretrained(some, replace(config, n_clusters=1), scaling, seed, device, **how)
    number = number_of(run, some.reduced.names, possible)
    return (replace(number, unasked=unasked), None) if unasked else (number, run)


def without_categories(source: Source) -> tuple[Source, list[str]]:
    """The samples without views of few categories, such as sex beside age, and the names of these views.

    Their rows fall into a group for each category, crisper than any clusters of what is measured. All views stay where
    half of the samples have no other.
    """
    views, fronts = source.reduced, source.reduction.front_ends
    kept = [not _is_coarse(array[own]) for array, own in zip(views.arrays, views.mask.T, strict=True)]
    rows = views.mask[:, kept].any(axis=1)
    if all(kept) or rows.mean() < 0.5:
        return source, []
    there, unasked = views[rows], [name for name, own in zip(views.names, kept, strict=True) if not own]
    names, arrays, columns, offsets, own_fronts = (
        tuple(compress(parts, kept)) for parts in (there.names, there.arrays, there.columns, there.offsets, fronts)
    )
    reduced = there.replace(names=names, arrays=arrays, mask=there.mask[:, kept], columns=columns, offsets=offsets)
    return source._replace(reduced=reduced, reduction=replace(source.reduction, front_ends=own_fronts)), unasked


def _is_coarse(rows: NDArray[np.float32]) -> bool:
    """Whether at least a quarter of the columns say yes or no, and these stand together in few ways."""
    yes_or_no = [column for column in rows.T if len(np.unique(column)) == 2]
    if len(yes_or_no) < max(rows.shape[1] / 4, 1):
        return False
    return len(np.unique(np.stack(yes_or_no), axis=1).T) < len(rows) / _ROWS_PER_COMBINATION


def _drawn(views: Views, seed: int) -> Views:
    if len(views) <= _ROWS:
        return views
    return views[np.sort(np.random.default_rng([seed, 3]).choice(len(views), _ROWS, replace=False))]


def pretrained(source: Source, config: Config, scaling: str, seed: int, device: torch.device, **how: Any) -> TrainState:
    """A network under the first scaling with which training does not diverge; for `how` see `pretrain`."""
    runs: list[TrainState] = []
    for scaler in scalers_of(source, scaling):
        stored = prepare(source, scaler, URRLMethod(config).neighbor_depth, device)
        place = SCALINGS.index(scaler.kind) if scaling == "auto" else 0
        runs.append(init_state(stored, config, seed_under_scaling(seed, place)))
        pretrain(runs[-1:], config.trial_epochs(len(stored)), **how)
        if not runs[-1].diverged:
            break
    else:
        check_diverged(runs)
    return runs[-1]


def number_of(run: TrainState, names: Sequence[str], possible: tuple[int, int]) -> ClusterNumber:
    """How many clusters the samples of a pre-training have, within a range.

    That is one for each part of their tree, and one more for each cluster of k-means that is two islands; of these
    what all views show together comes first.
    """
    look, ids = look_of(run), run.stored.neighbor_ids
    tree = cluster_tree(look.embedding, ids, run.seed % 2**32)
    splits = splits_tested(tree, look, names, torch.Generator().manual_seed(run.seed))
    number = number_decision(splits, len(look), possible)
    if number.chosen == 1:
        return number
    centers = initial_centers(look.embedding, number.chosen, run.seed, ids)
    labels = nearest_center(look.embedding, look.embedding.new_tensor(centers)).cpu().numpy()
    found = islands(look, labels, number.chosen).values()
    alone = [None if view is None else names[view] for view in sorted(found, key=lambda view: view is not None)]
    alone = alone[: max(possible[1] - number.chosen, 0)]
    shown = [view for view in alone if view is not None]
    return replace(number, chosen=number.chosen + len(alone), islands=len(alone), alone=shown)


def look_of(run: TrainState, rows: NDArray[np.int64] | None = None) -> Look:
    """What the network sees of its samples, or of some, with all of their views and without each."""
    stored = run.stored
    at = torch.from_numpy(np.arange(len(stored)) if rows is None else rows).to(run.device)
    some = stored.take(at)

    def seen(own: Samples) -> torch.Tensor:
        return principal(embed(run.method, run.network, own, stored))

    hidden = torch.stack([seen(without_view(some, v)) for v in range(len(stored.values))])
    return Look(seen(some), hidden, some.values, some.present, filled_table(stored, at))


class NewKind(NamedTuple):
    """Samples, by their rows in a look, that are a cluster of their own.

    `facts` speak for it, see `ClusterNumber.splits`; "beside" is the cluster that it was tested against.
    """

    rows: NDArray[np.int64]
    facts: dict[str, Any]


def new_kinds(
    look: Look, labels: NDArray[np.int64], novel: NDArray[np.bool_], names: Sequence[str], seed: int
) -> list[NewKind]:
    """The new kinds among samples, the largest first; labels of novel samples are not looked at."""
    return sorted(_Tested(look, labels, novel, names, seed).kinds(), key=lambda kind: -len(kind.rows))


class _Tested:
    """Samples with their neighbours, and the splits that were tested."""

    def __init__(
        self, look: Look, labels: NDArray[np.int64], novel: NDArray[np.bool_], names: Sequence[str], seed: int
    ) -> None:
        self._look, self._labels, self._novel, self._names, self._seed = look, labels, novel, names, seed
        self._generator = torch.Generator().manual_seed(seed)
        self._graph = look.graph
        self._weights = np.asarray(self._graph.sum(axis=1)).ravel()
        self._splits: list[Split] = []

    def kinds(self) -> list[NewKind]:
        """One new kind or several; none where the novel samples do not hold together, or not apart from clusters."""
        rows = self._together()
        if len(rows) < LEAST:
            return []
        # How clearly the clusters that there are lie apart: each beside the next.
        for label in np.unique(self._labels[~self._novel]).tolist():
            known = self._members(label)
            if len(known) < LEAST:
                continue
            other = self._members(self._next_cluster(known, label))
            if len(other) >= LEAST:
                self._test(other, known)
        beside = self._next_cluster(rows)
        own = self._members(beside)
        if len(own) < LEAST:
            return []
        split = self._test(own, rows)
        return self._divided(rows, split, beside) if split.stands else []

    def _together(self) -> NDArray[np.int64]:
        """The novel samples that share more neighbours with each other than with any cluster; others are left out."""
        clusters = self._near(np.where(self._novel, UNKNOWN, self._labels)).max(axis=1)
        rows = np.flatnonzero(self._novel)
        while len(rows) >= LEAST:
            own = self._near(np.where(np.isin(np.arange(len(self._labels)), rows), 0, UNKNOWN))[rows, 0]
            stays = own > clusters[rows]
            if stays.all():
                break
            rows = rows[stays]
        return rows

    def _near(self, groups: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weight of the neighbours that samples have in groups, over that of all of the group's, per group."""
        member = (groups[:, None] == np.arange(groups.max() + 1)).astype(float)
        return np.asarray(self._graph @ member) / np.maximum(self._weights @ member, 1e-12)

    def _divided(self, rows: NDArray[np.int64], split: Split, beside: int) -> list[NewKind]:
        """Samples that stand, as one kind or as what the splits of their tree leave."""
        look = self._look.take(rows)
        for first in splits_of(cluster_tree(look.embedding, look.neighbors, self._seed % 2**32))[:1]:
            sides = rows[first.left], rows[first.right]
            between = self._test(*sides)
            if between.stands:
                return [kind for side in sides for kind in self._divided(side, between, beside)]
        facts = {name: fact for name, fact in asdict(split).items() if name not in ("parent", "side")}
        return [NewKind(rows, {**facts, "beside": beside})]

    def _members(self, label: int) -> NDArray[np.int64]:
        return np.flatnonzero((self._labels == label) & ~self._novel)

    def _next_cluster(self, rows: NDArray[np.int64], own: int = -1) -> int:
        """The cluster that shares the most neighbours with some samples, for its size."""
        there = np.zeros(len(self._labels))
        there[rows] = 1.0
        others = ~self._novel & (there == 0)
        shared, sizes = (
            np.bincount(self._labels[others], weights=one[others], minlength=int(self._labels.max()) + 1)
            for one in (self._graph @ there, self._weights)
        )
        closeness = np.where(sizes > 0, shared / np.maximum(sizes, 1e-12), -1.0)
        if own >= 0:
            closeness[own] = -2.0
        return int(closeness.argmax())

    def _test(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> Split:
        """What speaks for two groups of samples as two, and whether they stand."""
        said = split_between(self._look, left, right, self._names, self._generator)
        self._splits.append(said)
        return replace(said, stands=tested(said, strongest(self._splits)))
