"""Why samples are where they are: the views and donors behind each, and what sets each cluster apart."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.data.views import Views
from viewfuse.engine.replicates import passes
from viewfuse.errors import MissingPackage
from viewfuse.fitted.clusters import (
    Difference,
    Merge,
    ViewEffects,
    differences,
    in_a_word,
    typical_samples,
    view_effects,
)
from viewfuse.fitted.model import Model
from viewfuse.io.writers import Sheet
from viewfuse.neighbors.index import NO_NEIGHBOR, Samples

if TYPE_CHECKING:
    import pandas as pd

TOP = 5
"""Distinguishing features per cluster and view."""
_APART = 0.01
"""Deviations of a feature: means that are nearer are alike."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Why samples are where they are.

    Attributes
    ----------
    ids : array of shape (samples,)
    view_names : tuple of str
    labels : int64 array of shape (samples,)
    confidence : float32 array of shape (samples,): the probability of the label
    second_labels : int64 array of shape (samples,): the next likely cluster; -1 where there is only one
    second_confidence : float32 array of shape (samples,): its probability; 0 where there is only one
    weights : float32 array of shape (samples, views); rows sum to 1. How far the embedding would move if nothing
        stood in that view, as a share of what this gives for all views; 0 for a view in which nothing stands.
    donors : object array of shape (samples, views) of tuples: ids of the training samples that stand in for a missing
        view, in the order of their list; who was met twice counts twice. Empty where the sample has the view.
    sizes : int64 array of shape (clusters,): the given samples in each
    typical : per cluster the ids of its surest samples, the surest first
    stability : float32 array of shape (clusters,): how well each is found again, see
        `viewfuse.fitted.clusters`; of the training samples
    merges : which clusters join first when there are to be fewer
    effects : per view how far each of its features sets each cluster apart from the other given samples
    differences : per cluster and view the five features of these that do so most
    """

    ids: NDArray[Any]
    view_names: tuple[str, ...]
    labels: NDArray[np.int64]
    confidence: NDArray[np.float32]
    second_labels: NDArray[np.int64]
    second_confidence: NDArray[np.float32]
    weights: NDArray[np.float32]
    donors: NDArray[Any]
    sizes: NDArray[np.int64]
    typical: tuple[tuple[Hashable, ...], ...]
    effects: tuple[ViewEffects, ...]
    stability: NDArray[np.float32]
    merges: tuple[Merge, ...]

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Per cluster and view the features that set it apart most, the largest effect first."""
        return tuple(differences(self.effects, len(self.sizes), TOP))

    def samples(self) -> pd.DataFrame:
        """One row per sample: label, confidence, second-best cluster, weights and donors of the views."""
        return frame_of(sheets(self)["samples.csv"])

    def clusters(self) -> pd.DataFrame:
        """One row per cluster: its size, its typical samples, and whether it would be found again."""
        return frame_of(sheets(self)["clusters.csv"])

    def tree(self) -> pd.DataFrame:
        """One row per merge of clusters, the first first: who joins whom, at which distance, and how many are left."""
        return frame_of(sheets(self)["merges.csv"])

    def features(self, top: int | None = TOP) -> pd.DataFrame:
        """One row per distinguishing feature of a cluster, see `Difference`; `top` per cluster and view, None: all."""
        return frame_of(sheets(self, top)["features.csv"])

    def __repr__(self) -> str:
        means = zip(self.view_names, self.weights.mean(axis=0), strict=True)
        weights = ", ".join(f"{name} {mean:.2f}" for name, mean in means)
        return f"Explanation({len(self.ids)} samples, {len(self.sizes)} clusters; mean weights: {weights})"


def explain(
    model: Model,
    views: Views,
    placed: tuple[Samples, Tensor],
    training_ids: NDArray[Any],
    stability: NDArray[np.float32],
    merges: tuple[Merge, ...],
) -> Explanation:
    """Say why samples are where the model places them; `placed` is what `Model.place` gives of them."""
    samples, embedding = placed
    probabilities = model.assign(samples, embedding)
    labels, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    n_clusters = probabilities.shape[1]
    own = [typical_samples(np.flatnonzero(labels == c), confidence) for c in range(n_clusters)]
    return Explanation(
        views.ids,
        views.names,
        labels,
        confidence,
        *second_best(probabilities),
        weights=_weights(model, samples),
        donors=_donors(model, samples, training_ids),
        sizes=np.bincount(labels, minlength=n_clusters),
        typical=tuple(tuple(views.ids[rows].tolist()) for rows in own),
        effects=tuple(view_effects(views, v, labels, n_clusters) for v in range(len(views.names))),
        stability=stability,
        merges=merges,
    )


def sheets(one: Explanation, top: int | None = TOP) -> dict[str, Sheet]:
    """All tables by the names of their files; of features the `top` per cluster and view, or all."""
    facts = (one.ids, one.labels, one.confidence, one.second_labels, one.second_confidence, one.weights, one.donors)
    header = ["id", "label", "confidence", "second_label", "second_confidence"]
    header += [f"{kind}_{name}" for kind in ("weight", "donors") for name in one.view_names]
    samples = [
        (*placed, *weights, *map(joined, donors))
        for *placed, weights, donors in zip(*(fact.tolist() for fact in facts), strict=True)
    ]
    found = zip(one.sizes.tolist(), one.typical, one.stability.tolist(), strict=True)
    clusters = [(c, size, joined(ids), steady, in_a_word(steady)) for c, (size, ids, steady) in enumerate(found)]
    merges = [(joined(two.first), joined(two.second), two.distance, two.left) for two in one.merges]
    digits = ".7g"  # as many as float32 has
    for own in one.effects:  # means that are apart may be one number in float32, as beside a large offset
        alike = own.mean.astype(np.float32) == own.mean_of_others.astype(np.float32)
        digits = ".15g" if (alike & (np.abs(own.difference) > _APART)).any() else digits
    features, effects = (differences(one.effects, len(one.sizes), count) for count in (top, None))
    return {
        "samples.csv": Sheet(header, samples),
        "clusters.csv": Sheet(("label", "size", "typical", "stability", "again"), clusters),
        "merges.csv": Sheet(("first", "second", "distance", "left"), merges),
        "features.csv": Sheet(Difference._fields, features, digits),
        "effects.csv": Sheet(Difference._fields, effects, digits),
    }


def joined(ids: Sequence[Hashable]) -> str:
    """Ids in a cell of a table."""
    return " ".join(map(str, ids))


def frame_of(sheet: Sheet) -> pd.DataFrame:
    """A table as a data frame, where pandas is installed."""
    try:
        import pandas as pd
    except ImportError:
        fault = "data frames need pandas, which is not installed; pip install pandas, or use the arrays of the"
        raise MissingPackage(f"{fault} explanation or `viewfuse explain`, which do without") from None
    return pd.DataFrame(sheet.rows, columns=list(sheet.header))


def second_best(probabilities: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The likeliest cluster but one, and its probability; -1 and 0 where there is no other."""
    rows = np.arange(len(probabilities))
    if probabilities.shape[1] == 1:
        return np.full(len(rows), -1), np.zeros(len(rows), dtype=np.float32)
    others = probabilities.copy()
    others[rows, probabilities.argmax(axis=1)] = -1.0
    second = others.argmax(axis=1)
    return second, others[rows, second]


@torch.no_grad()
def _weights(model: Model, samples: Samples) -> NDArray[np.float32]:
    """How far each view moves the embedding, as a share of what all do; of shape (samples, views)."""
    parts = []
    for part in passes(samples, model.rows_per_pass(len(samples))):
        moved = model.method.view_influence(model.network, part, model.stored)
        holds = moved > -torch.inf
        moved = torch.where(holds, moved, 0.0)
        # An embedding that nothing moves owes as much to one view as to another.
        moved = torch.where(moved.sum(dim=1, keepdim=True) > 0, moved, holds.to(moved.dtype))
        parts.append(moved / moved.sum(dim=1, keepdim=True))
    return torch.cat(parts)[: len(samples)].cpu().numpy()


def _donors(model: Model, samples: Samples, training_ids: NDArray[Any]) -> NDArray[Any]:
    """Ids of those who stand in for missing views: an object array of shape (samples, views) of tuples."""
    names = training_ids.tolist()
    parts = [model.method.members(part, model.stored) for part in passes(samples, model.rows_per_pass(len(samples)))]
    members = torch.cat(parts)[: len(samples)].cpu().numpy()
    present = samples.present.cpu().numpy()
    donors = np.empty(present.shape, dtype=object)
    donors.fill(())
    for i, v in np.argwhere(~present).tolist():
        donors[i, v] = tuple(names[j] for j in members[i, v].tolist() if j != NO_NEIGHBOR)
    return donors
