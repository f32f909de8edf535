"""New samples among those that a model knows: where they lie, which of them fit nowhere, and what is new in them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.data.known.hints import UNKNOWN
from viewfuse.data.views import Views
from viewfuse.engine.batches import clusters
from viewfuse.fitted.model import Model
from viewfuse.fitted.novelty import USUAL, unseen_shares
from viewfuse.methods.numbering import without_gaps
from viewfuse.neighbors.samples import RowIndex, Samples, find_rows, index_rows, index_training_set
from viewfuse.reduction.frontend import Reduction
from viewfuse.reduction.new_words import with_new_words
from viewfuse.selection.splits import LEAST


class Enlarged(NamedTuple):
    """A model with new samples among those that it knows, before it is trained on them.

    Attributes
    ----------
    model : its clusters are numbered without gaps
    numbers : of shape (clusters,): the numbers that they have
    labels : of shape (samples,): clusters, without gaps: those that the old samples had, and where the model places
        the new ones
    novel : of shape (samples,): samples that fit nowhere, new ones and those that waited
    n_old : how many samples were there before
    width : how many numbers the clusters had
    """

    model: Model
    numbers: NDArray[np.int64]
    labels: NDArray[np.int64]
    novel: NDArray[np.bool_]
    n_old: int
    width: int

    @classmethod
    def of(cls, model: Model, labels: NDArray[np.int64], waiting: NDArray[np.bool_], views: Views) -> Enlarged:
        """Let complete samples join.

        Parameters
        ----------
        labels : of shape (old samples,): their clusters
        waiting : of shape (old samples,): those that fitted nowhere when they came, and have no cluster of their own
        """
        new, embedding = model.place(views)
        placed = clusters(model.method, model.network, embedding).cpu().numpy()
        unseen = unseen_shares(model.reduction, views)[:, : model.unseen.shape[1]]
        novel = _novel(model, new, unseen, waiting)
        late = novel[len(labels) :]
        if late.sum() >= LEAST:
            model = replace(model, reduction=_with_new_words(model, views, late, ~waiting))
            new = model.locate(*model.tensors(views))
        values = [torch.cat(pair) for pair in zip(model.stored.values, new.values, strict=True)]
        present = torch.cat([model.stored.present, new.present])
        rows = index_rows(values, present)
        stored = _with_former_neighbors(index_training_set(values, present, model.method.neighbor_depth), rows, model)
        numbers = np.flatnonzero(model.in_use)
        joined = replace(
            without_gaps(model, numbers), stored=stored, row_index=rows,
            unseen=np.concatenate([model.unseen, unseen]),
        )  # fmt: skip
        own = np.searchsorted(numbers, np.concatenate([labels, placed]))
        return cls(joined, numbers, own, novel, len(labels), model.method.n_clusters)

    def settled(self) -> NDArray[np.int64]:
        """Of shape (samples,): the clusters of old samples that do not wait, else -1."""
        is_old = np.arange(len(self.labels)) < self.n_old
        return np.where(is_old & ~self.novel, self.labels, UNKNOWN)


def _with_former_neighbors(stored: Samples, rows: RowIndex, model: Model) -> Samples:
    """Samples of which the first are those of a model, and keep their neighbours: else some of them would move.

    Equal samples have those of the first of them.
    """
    neighbor_ids = torch.cat([model.stored.neighbor_ids, stored.neighbor_ids[len(model.stored) :]])
    first = find_rows(rows, stored.values, stored.present, stored.values, stored.present)
    return replace(stored, neighbor_ids=neighbor_ids[first])


def _novel(model: Model, new: Samples, unseen: NDArray[np.float64], waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which samples, old ones and then new ones, fit nowhere among the old ones that do not wait."""
    known, later = model, [new]
    if waiting.any():
        known = model.thinned(np.flatnonzero(~waiting))
        own = model.stored.take(torch.from_numpy(np.flatnonzero(waiting)).to(model.stored.present.device))
        later, unseen = [own, new], np.concatenate([model.unseen[waiting], unseen])
    values = [torch.cat(views) for views in zip(*(one.values for one in later), strict=True)]
    samples = known.locate(values, torch.cat([one.present for one in later]))
    found = known.surroundings.novelty(samples, unseen) > USUAL
    before = np.zeros(len(waiting), dtype=bool)
    before[waiting] = found[: waiting.sum()]
    return np.concatenate([before, found[waiting.sum() :]])


def _with_new_words(model: Model, views: Views, novel: NDArray[np.bool_], settled: NDArray[np.bool_]) -> Reduction:
    """What reduces views of words, with the new words of novel samples.

    Samples of the fit have none of these, and stay as they are; those that joined since stay as if they had none.

    Parameters
    ----------
    novel : of shape (new samples,)
    settled : of shape (old samples,): those that do not wait
    """
    found, present = [], model.stored.present.cpu().numpy()
    for v, front_end in enumerate(model.reduction.front_ends):
        known = model.scaler.undo(v, model.stored.values[v].cpu().numpy()[settled & present[:, v]])
        found.append(with_new_words(front_end, views.arrays[v], novel & views.mask[:, v], known))
    return Reduction(tuple(found))
