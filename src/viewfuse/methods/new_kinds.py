"""Kinds of samples that a model does not know: groups of novel samples that are as clearly apart as its clusters are.

Where are they? In a tree of samples, most of which the model knows, a new kind is a branch that is mostly novel
(`viewfuse.fitted.novelty`), far more than by chance. Is it one? The branch and the cluster next to it are tested as any
split of a tree (`viewfuse.selection.splits`); it must be as strong as the splits between the clusters that there are.
Then the splits within the branch are tested: several new kinds may have come at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from viewfuse.selection.cluster_number import LEVEL, evidence_record, strongest, tested
from viewfuse.selection.splits import LEAST, Branching, Look, splits_of
from viewfuse.selection.tree import cluster_tree, nearest, neighbor_graph

_MOSTLY = 0.5
"""Of a branch must be novel. Of known kinds one sample in twenty is; of a class that was left out of Handwritten nine
in ten are, of one of BBCSport two in three."""


class NewKind(NamedTuple):
    """Samples that are a cluster of their own.

    Attributes
    ----------
    rows : of the look
    facts : what speaks for it, see `ClusterNumber.splits`; "beside", the cluster that it was tested against
    """

    rows: NDArray[np.int64]
    facts: dict[str, Any]


def new_kinds(
    look: Look, labels: NDArray[np.int64], novel: NDArray[np.bool_], names: Sequence[str], seed: int
) -> list[NewKind]:
    """The new kinds among samples, the largest first.

    Parameters
    ----------
    labels : of shape (samples,): their clusters, as far as known; those of novel samples are not looked at
    novel : of shape (samples,): those that fit nowhere
    names : of the views
    """
    if novel.sum() < LEAST:
        return []
    tree = _Tested(look, labels, novel, names, seed)
    found = [kind for branch in tree.novel_branches() for kind in tree.kinds(branch)]
    return sorted(found, key=lambda kind: -len(kind.rows))


class _Branch(NamedTuple):
    """A side of a split, and the split below it, if there is one."""

    rows: NDArray[np.int64]
    below: int | None


class _Tested:
    """A tree of samples, and the splits that were tested."""

    def __init__(
        self, look: Look, labels: NDArray[np.int64], novel: NDArray[np.bool_], names: Sequence[str], seed: int
    ) -> None:
        ids = look.neighbors()
        self._look, self._labels, self._novel, self._names = look, labels, novel, names
        self._generator = torch.Generator().manual_seed(seed)
        self._splits = splits_of(cluster_tree(look.embedding, ids, seed % 2**32))
        self._below = {(one.parent, one.side): place for place, one in enumerate(self._splits)}
        self._graph = neighbor_graph(nearest(look.embedding), ids)
        self._weights = np.asarray(self._graph.sum(axis=1)).ravel()
        self._records: list[dict[str, Any]] = []

    def novel_branches(self) -> list[_Branch]:
        """The largest branches that are mostly novel."""
        waiting, found = [0] if self._splits else [], []
        while waiting:
            for branch in self._sides(waiting.pop()):
                if self._is_novel(branch.rows):
                    found.append(branch)
                elif branch.below is not None:
                    waiting.append(branch.below)
        return found

    def _sides(self, place: int) -> list[_Branch]:
        split: Branching = self._splits[place]
        return [_Branch(rows, self._below.get((place, side))) for side, rows in enumerate((split.left, split.right))]

    def _is_novel(self, rows: NDArray[np.int64]) -> bool:
        count, usual = int(self._novel[rows].sum()), float(self._novel.mean())
        by_chance = float(binom.sf(count - 1, len(rows), usual)) * 2 * len(self._splits)
        return count >= _MOSTLY * len(rows) and by_chance < LEVEL

    def kinds(self, branch: _Branch) -> list[NewKind]:
        """One new kind or several in a branch; none where it is not apart from the cluster next to it."""
        if not self._records:
            self._test_clusters()
        beside = self._next_cluster(branch.rows)
        own = self._members(beside)
        own = own[~np.isin(own, branch.rows)]
        if len(own) < LEAST:
            return []
        facts = {**self._test(own, branch.rows), "beside": beside}
        return self._divided(branch, facts) if facts["stands"] else []

    def _divided(self, branch: _Branch, facts: dict[str, Any]) -> list[NewKind]:
        """A branch that stands, as one kind or as what its splits leave."""
        if branch.below is not None:
            sides = self._sides(branch.below)
            between = self._test(*(side.rows for side in sides))
            if between["stands"]:
                return [kind for side in sides for kind in self._divided(side, {**between, "beside": facts["beside"]})]
        return [NewKind(branch.rows, facts)]

    def _test_clusters(self) -> None:
        """How clearly the clusters that there are lie apart: each beside the next."""
        for label in np.unique(self._labels[~self._novel]).tolist():
            own = self._members(label)
            if len(own) >= LEAST:
                other = self._members(self._next_cluster(own, label))
                if len(other) >= LEAST:
                    self._test(other, own)

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

    def _test(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> dict[str, Any]:
        """What speaks for two groups of samples as two, and whether they stand."""
        rows, sides = np.concatenate([left, right]), np.arange(len(left) + len(right)) >= len(left)
        record = evidence_record(self._look.take(rows), sides, self._names, self._generator)
        record["level"] = LEVEL * (len(rows) - 1) / (len(self._look) - 1)
        self._records.append(record)
        return {**record, "stands": tested(record, strongest(self._records)), "sizes": [len(left), len(right)]}
