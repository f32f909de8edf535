"""What speaks for one split of samples in two, with views missing and without labels.

- **agreement**: how much rarer than by chance neighbours lie on different sides (1: never, 0: chance), in the graph of
  neighbours of these samples alone. It is compared with the split that the same tree finds in Gaussians of the same
  covariance with the same views missing.
- **held-out views**: the sides are found again without a view, from embeddings that never saw it. Then its values are
  asked: how much rarer than by chance do neighbours in that view lie on different sides, among the samples that have
  it?
- **gap**: by how much border samples lie further from their neighbours than others do, in the views (a logarithm).
  Where sides are crisp only because the data are a curve or a sheet, it is near 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import ndtr
from torch import Tensor

from viewfuse.neighbors.search import NO_NEIGHBOR
from viewfuse.selection.tree import DEPTH, Tree, edges, joined_groups, nearest, neighbor_graph, small_clusters

LEAST = 8
"""Samples that a side has at least; fewer are outliers, and stay where they are."""
_CLEAR = 0.02
"""Shares of crossing neighbours below that count as this much: they are a handful of samples."""
_STEADY = 0.03
"""The least spread of the logarithm over Gaussians: what many samples have."""
_UNKNOWN = 0.25
"""Stands for the evidence of held-out views where no sample has two views: as much as of a weak split."""
_ROUNDS = 3
Sides = NDArray[np.bool_]


@dataclass(frozen=True)
class Look:
    """Samples as a network sees them.

    Attributes
    ----------
    embedding : tensor of shape (samples, columns)
    hidden : tensor of shape (views, samples, columns): embeddings without that view
    values : per view a tensor of shape (samples, columns)
    present : boolean tensor of shape (samples, views)
    table : all views side by side, missing ones filled, of shape (samples, all columns)
    """

    embedding: Tensor
    hidden: Tensor
    values: Sequence[Tensor]
    present: Tensor
    table: Tensor

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: NDArray[np.int64]) -> Look:
        """The samples at `rows`."""
        at = torch.from_numpy(rows).to(self.present.device)
        values = [view[at] for view in self.values]
        return Look(self.embedding[at], self.hidden[:, at], values, self.present[at], self.table[at])

    def neighbors(self) -> Tensor:
        """The neighbours in every view among these samples, int64 tensor of shape (samples, views, depth)."""
        ids = self.present.new_full((*self.present.shape, DEPTH), NO_NEIGHBOR, dtype=torch.int64)
        for v, view in enumerate(self.values):
            rows = self.present[:, v].nonzero().squeeze(1)
            if len(rows) > 1:
                found = rows[nearest(view[rows])]
                ids[rows, v, : found.shape[1]] = found
        return ids

    def drawn(self, generator: torch.Generator) -> Look:
        """A Gaussian of views and embedding together, with the same views missing; nothing is hidden from it."""
        parts = torch.cat([self.table, self.embedding], dim=1)
        widths = [*(view.shape[1] for view in self.values), self.embedding.shape[1]]
        *views, embedding = torch.split(gaussian_like(parts, generator), widths, dim=1)
        return Look(embedding, self.hidden[:0], views, self.present, self.table[:, :0])


def gaussian_like(table: Tensor, generator: torch.Generator) -> Tensor:
    """A Gaussian of the mean and covariance of a table, of the same shape: random sums of its rows."""
    n, middle = len(table), table.double().mean(dim=0).to(table)
    drawn = torch.randn(n, n, generator=generator, dtype=table.dtype).to(table)
    return drawn @ (table - middle) / n**0.5 + middle


@dataclass(frozen=True)
class Evidence:
    """What speaks for a split.

    Attributes
    ----------
    agreement : of the neighbours, less chance
    null : the mean of that in the splits of Gaussians
    p_value : how likely a Gaussian gives such a split
    held_out : per view the agreement of sides that were found without it; NaN where too few samples tell
    stability : the share of the samples, less chance, that stay on their side when a view is hidden
    gap : how much sparser the border is
    """

    agreement: float
    null: float
    p_value: float
    held_out: Sequence[float]
    stability: float
    gap: float

    @property
    def strength(self) -> float:
        """How many times rarer than in a Gaussian neighbours cross, a logarithm, less where held-out views say no."""
        known = [one for one in self.held_out if not np.isnan(one)]
        held = max(float(np.mean(known)), 0.0) if known else _UNKNOWN
        return float(_crossing(self.null) - _crossing(self.agreement)) * held ** (1 / 3)


def _crossing(agreement: float) -> float:
    """The logarithm of the share of neighbours that cross, over that by chance."""
    return float(np.log(np.clip(1.0 - agreement, _CLEAR, 1.0)))


def evidence(look: Look, sides: Sides, draws: int, generator: torch.Generator) -> Evidence:
    """What speaks for a split of all samples of a look.

    Parameters
    ----------
    sides : boolean array of shape (samples,)
    draws : Gaussians
    """
    ids = look.neighbors()
    found = agreement(neighbor_graph(nearest(look.embedding), ids), sides)
    null = [_split_of(look.drawn(generator), generator) for _ in range(draws)]
    again = [_sides_without(points, sides) for points in look.hidden]
    held = [_held_out(look, ids, v, own) for v, own in enumerate(again)] if look.present.shape[1] > 1 else []
    stays = [float(own[sides].mean() - own[~sides].mean()) for own in again]
    mean = float(np.mean(null))
    return Evidence(found, mean, p_value(found, null), held, float(np.mean(stays)), border_gap(look, ids, sides))


def agreement(graph: csr_array, sides: Sides, among: Sides | None = None) -> float:
    """How much rarer than by chance edges join different sides; NaN where one side has none.

    Parameters
    ----------
    among : the samples that count; else all
    """
    there = np.ones(len(sides)) if among is None else among.astype(float)
    left, right = there * ~sides, there * sides
    across, own, other = (float(a @ (graph @ b)) for a, b in ((left, right), (left, left), (right, right)))
    if min(own + across, other + across) <= 0:
        return float("nan")
    return 1.0 - across * (own + other + 2 * across) / ((own + across) * (other + across))


def p_value(found: float, null: Sequence[float]) -> float:
    """The chance of an agreement as high in another Gaussian: a normal fit to the logarithms of crossing neighbours."""
    logs = np.array([_crossing(one) for one in null])
    spread = max(float(logs.std(ddof=1)), _STEADY) * np.sqrt(1 + 1 / len(logs))
    return float(ndtr((_crossing(found) - logs.mean()) / spread))


def _split_of(look: Look, generator: torch.Generator) -> float:
    """The agreement of the first split of a tree of its own."""
    graph = neighbor_graph(nearest(look.embedding), look.neighbors())
    groups = small_clusters(look.embedding, int(torch.randint(2**31, (), generator=generator)))
    first = next(
        iter(splits_of(Tree(groups, joined_groups(graph, groups, look.embedding, int(groups.max()) + 1)))), None
    )
    found = np.nan if first is None else agreement(graph, np.isin(np.arange(len(look)), first.right))
    return 0.0 if np.isnan(found) else found


def _sides_without(points: Tensor, sides: Sides) -> Sides:
    """The sides that two means find in other embeddings of the samples, beginning with those of the sides."""
    where = points.double().cpu().numpy()
    own = sides
    for _ in range(_ROUNDS):
        far = [np.square(where - where[at].mean(axis=0)).sum(axis=1) for at in (~own, own)]
        moved = far[1] < far[0]
        if moved.all() or not moved.any():
            break
        own = moved
    return own


def _held_out(look: Look, ids: Tensor, view: int, sides: Sides) -> float:
    """How well neighbours in a view agree with sides that were found without it."""
    present = look.present.cpu().numpy()
    return agreement(edges(ids[:, view].cpu().numpy()), sides, present[:, view] & (present.sum(axis=1) > 1))


def border_gap(look: Look, ids: Tensor, sides: Sides) -> float:
    """How much further the neighbours of border samples are, a logarithm; the mean over views and sides.

    A sample is at the border as far as its neighbours are on the other side. Infinite where no neighbours cross.
    """
    found = []
    for v, view in enumerate(look.values):
        rows = look.present[:, v].nonzero().squeeze(1)
        near = ids[rows, v]
        if len(rows) <= DEPTH:
            continue
        far = (view[rows, None] - view[near]).double().square().sum(dim=2).sqrt().mean(dim=1).cpu().numpy()
        far = np.log(np.maximum(far, 1e-3 * max(float(np.median(far)), 1e-9)))
        own = sides[rows.cpu().numpy()]
        crossing = (sides[near.cpu().numpy()] != own[:, None]).mean(axis=1)
        for side in (own, ~own):
            border, inner = crossing[side], 1 - crossing[side]
            if border.sum() > 0 and inner.sum() > 0:
                found.append(float(np.average(far[side], weights=border) - np.average(far[side], weights=inner)))
    return float(np.mean(found)) if found else float("inf")


@dataclass(frozen=True)
class Branching:
    """A split of a tree whose sides both have `LEAST` samples.

    Attributes
    ----------
    parent : the place of the split above in the list; -1 of the first
    side : of the split above, 0 or 1
    left, right : the samples of each side, in rising order
    """

    parent: int
    side: int
    left: NDArray[np.int64]
    right: NDArray[np.int64]


def splits_of(tree: Tree) -> list[Branching]:
    """All splits of a tree, parents before their children; parts that are too small are left out on the way down."""
    count, found = tree.n_groups, list[Branching]()
    order = np.argsort(tree.groups, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(tree.groups, minlength=count))])
    rows = [order[a:b] for a, b in pairwise(bounds.tolist())]
    for first, second in tree.merges.tolist():
        rows.append(np.sort(np.concatenate([rows[first], rows[second]])))
    waiting = [(-1, 0, 2 * count - 2)]
    while waiting:
        parent, side, node = waiting.pop()
        if node < count:
            continue
        first, second = sorted(tree.merges[node - count].tolist(), key=lambda one: -len(rows[one]))
        if len(rows[second]) < LEAST:
            waiting.append((parent, side, first))
            continue
        found.append(Branching(parent, side, rows[first], rows[second]))
        waiting += [(len(found) - 1, 1, second), (len(found) - 1, 0, first)]
    return found
