"""Numbers of clusters that stay from one fit to the next.

Clusters of a fit are matched to those of the former, one to one, so that as many samples as possible keep their number.
The rest gets new numbers, and a number that no cluster has any more stays empty.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.utils.validation import check_is_fitted
from torch.nn import Parameter

from viewfuse.data.input_types import only_counted
from viewfuse.data.side_information.known_labels import UNKNOWN
from viewfuse.data.views import Views
from viewfuse.fitted.model import Model
from viewfuse.fitted.novelty import USUAL
from viewfuse.methods.clusterer import trust_in
from viewfuse.methods.fitted_estimator import MultiViewClusterer
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.fit import Fitted
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod
from viewfuse.selection.decision_texts import records
from viewfuse.selection.decisions import KeptNumbers
from viewfuse.utils.settings import wrong


class FormerLabels(NamedTuple):
    """What a former model says of samples: their clusters, of shape (samples,), and -1 where it does not know.

    `by_ids` says whether it was fitted on them; else it placed them. `n_numbers` is how many numbers it has given.
    """

    labels: NDArray[np.int64]
    by_ids: bool
    n_numbers: int

    @classmethod
    def of(cls, former: Any, views: Views) -> FormerLabels:
        """Look the samples up by their ids; where few are known, or ids only count the rows, place them.

        With fewer than a tenth of the smaller set in common most clusters would have no sample that tells of them.
        """
        if not isinstance(former, MultiViewClusterer):
            raise wrong("like", "a fitted model", type(former).__name__)
        check_is_fitted(former)
        rows = {name: row for row, name in enumerate(former.ids_.tolist())}
        found = np.array([rows.get(name, UNKNOWN) for name in views.ids.tolist()])
        known = found != UNKNOWN
        is_counted = only_counted(views.ids) or only_counted(former.ids_)
        by_ids = known.sum() >= 0.1 * min(len(rows), len(views)) and not is_counted
        if by_ids:
            labels = former._clusters()[found]
        else:
            judged = former.judge(views)
            labels, known = judged.chances.argmax(axis=1), judged.novelty <= USUAL
        return cls(np.where(known, labels, UNKNOWN), bool(by_ids), former.n_clusters_)

    def numbers(self, labels: NDArray[np.int64], n_clusters: int) -> NDArray[np.int64]:
        """The number of each new cluster, of shape (clusters,), given the new labels of the same samples."""
        shared = np.zeros((n_clusters, self.n_numbers), dtype=np.int64)
        known = self.labels != UNKNOWN
        np.add.at(shared, (labels[known], self.labels[known]), 1)
        # Clusters that are one share a quarter of each: a few strays must not give the number of a kind that is gone.
        alike = shared >= 0.25 * np.maximum(shared.sum(axis=1, keepdims=True), shared.sum(axis=0))
        shared = np.where(alike, shared, 0)
        rows, columns = linear_sum_assignment(shared, maximize=True)
        numbers = np.full(n_clusters, UNKNOWN)
        numbers[rows] = np.where(shared[rows, columns] > 0, columns, UNKNOWN)
        fresh = numbers == UNKNOWN
        numbers[fresh] = self.n_numbers + np.arange(fresh.sum())
        return numbers


def renumbered(fitted: Fitted, former: FormerLabels) -> Fitted:
    """The same clusters under the numbers of a former model: centres, chances and all that is in their order."""
    labels, n_clusters = fitted.labels(), len(fitted.model.network.centers)
    numbers = former.numbers(labels, n_clusters)
    found = with_numbers(fitted, numbers, max(former.n_numbers, int(numbers.max()) + 1))
    return found._replace(decisions={**found.decisions, **records(_decision(former, numbers, numbers[labels]))})


def with_numbers(fitted: Fitted, numbers: NDArray[np.int64], width: int) -> Fitted:
    """The same clusters under other numbers, below `width`; those that none has are infinitely far from all samples."""
    decisions, trust = dict(fitted.decisions), trust_in(fitted.decisions)
    if trust is not None:
        own = dict(zip(numbers.tolist(), trust.clusters, strict=True))
        reasons = [
            {**one, "clusters": sorted(numbers[one["clusters"]].tolist())} if "clusters" in one else one
            for one in trust.reasons
        ]
        clusters = [own.get(number, {"again": 0.0, "low": 0.0, "high": 0.0}) for number in range(width)]
        decisions |= records(replace(trust, n_clusters=width, clusters=clusters, reasons=reasons))
    source = np.full(width, UNKNOWN)
    source[numbers] = np.arange(len(numbers))
    return fitted._replace(model=with_clusters(fitted.model, source), decisions=decisions)


def with_clusters(model: Model, source: NDArray[np.int64]) -> Model:
    """A copy of a model with the clusters of these former numbers; -1 is a number without a cluster."""
    network, known = copy.deepcopy(model.network), model.calibration
    centers, at = network.centers.detach(), torch.from_numpy(source)
    network.centers = Parameter(torch.where(at[:, None].to(centers.device) < 0, torch.inf, centers[at]))
    if known is not None:
        is_there, numbers = source != UNKNOWN, torch.zeros(len(centers)).to(known.labels)
        numbers[at[is_there].to(numbers.device)] = torch.from_numpy(np.flatnonzero(is_there)).to(numbers)
        again, shifts = (np.where(is_there, own[source], 0.0) for own in (known.again, known.shifts))
        known = replace(known, labels=numbers[known.labels.long()], again=again, shifts=shifts)
    return replace(model, network=network, method=of_number(model.method, len(source)), calibration=known)


def _decision(former: FormerLabels, numbers: NDArray[np.int64], labels: NDArray[np.int64]) -> KeptNumbers:
    known, given = former.labels != UNKNOWN, set(numbers.tolist())
    share = float((labels == former.labels)[known].mean()) if known.any() else 0.0
    before = set(range(former.n_numbers))
    evidence = {"samples": int(known.sum()), "share": share, "by_ids": former.by_ids}
    return KeptNumbers(sorted(given & before), evidence, sorted(given - before), sorted(before - given))


def of_number(method: Any, n_clusters: int) -> URRLMethod:
    """The method for so many clusters; the layers stay as wide as they are."""
    config: Config = method.config
    return URRLMethod(replace(config, n_clusters=n_clusters, hidden_dim=config.hidden_width))
