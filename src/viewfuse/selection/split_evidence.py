"""What speaks for one split of samples in two, with views missing and without labels.

- **agreement**: how much rarer than by chance neighbours lie on different sides (1: never, 0: chance), in the graph of
  neighbours of these samples alone. It is compared with the split that the same tree finds in Gaussians of the same
  covariance with the same views missing.
- **held-out views**: the sides are found again without a view, from embeddings that never saw it; do neighbours in it
  agree with them, among the samples that have it?
- **one view alone**: what only one view shows, no other can confirm. The neighbours in that view are compared with
  those of the Gaussians' splits in the same view.
- **gap**: by how much border samples lie further from their neighbours than others do, in the views (a logarithm).
  Where sides are crisp only because the data are a curve or a sheet, it is near 0.
- **valley**: where Gaussians are split nearly as crisply, as in few dimensions, samples must be rarer at the border
  than on either side, see `viewfuse.selection.split_valley`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import ndtr
from torch import Tensor

from viewfuse.neighbors.index import NO_NEIGHBOR
from viewfuse.selection.kmeans import Tree, gaussian_like
from viewfuse.selection.linkage import cluster_tree, edges, nearest, nearest_different, neighbor_graph
from viewfuse.selection.scores import AGREEMENT_DEPTH
from viewfuse.selection.split_valley import LEVEL, Sides, valley_p_value

LEAST = 8
"""Samples that a side has at least; fewer are outliers, and stay where they are."""
_UNKNOWN = 0.25
"""Stands for the evidence of held-out views where no sample has two views: as much as of a weak split."""
_HALVED = _UNKNOWN ** (1 / 3)
"""The weight of one view alone, as if little were known of held-out views."""
_CRISP = 0.76
"""Where Gaussians are split with more agreement than this, any crisp split may come for free (results/clusters)."""
NO_BORDER = 0.995
"""Sides that agree so well have no border whose density would tell anything."""


@dataclass(frozen=True)
class Look:
    """Samples as a network sees them."""

    embedding: Tensor  # of shape (samples, columns)
    hidden: Tensor  # embeddings without each view, of shape (views, samples, columns)
    values: Sequence[Tensor]  # per view of shape (samples, columns)
    present: Tensor  # boolean, of shape (samples, views)
    table: Tensor  # all views side by side, missing ones filled, of shape (samples, all columns)

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: NDArray[np.int64]) -> Look:
        """The samples at `rows`."""
        at = torch.from_numpy(rows).to(self.present.device)
        values = [view[at] for view in self.values]
        return Look(self.embedding[at], self.hidden[:, at], values, self.present[at], self.table[at])

    @cached_property
    def neighbors(self) -> Tensor:
        """The neighbours in every view among these samples, int64 tensor of shape (samples, views, depth)."""
        ids = self.present.new_full((*self.present.shape, AGREEMENT_DEPTH), NO_NEIGHBOR, dtype=torch.int64)
        for v, view in enumerate(self.values):
            rows = self.present[:, v].nonzero().squeeze(1)
            if len(rows) > 1:
                found = nearest_different(view[rows])
                ids[rows, v, : found.shape[1]] = torch.where(found == NO_NEIGHBOR, NO_NEIGHBOR, rows[found])
        return ids

    @cached_property
    def graph(self) -> csr_array:
        """Who is whose neighbour in embedding and views, see `viewfuse.selection.linkage.neighbor_graph`."""
        return neighbor_graph(nearest(self.embedding), self.neighbors)

    def drawn(self, generator: torch.Generator) -> Look:
        """A Gaussian of views and embedding together, with the same views missing; nothing is hidden from it."""
        parts = torch.cat([self.table, self.embedding], dim=1)
        widths = [*(view.shape[1] for view in self.values), self.embedding.shape[1]]
        *views, embedding = torch.split(gaussian_like(parts, generator), widths, dim=1)
        return Look(embedding, self.hidden[:0], views, self.present, self.table[:, :0])


@dataclass(frozen=True, kw_only=True)
class Split:
    """A split and what speaks for it; the fields are those of `viewfuse.selection.decisions.ClusterNumber.splits`."""

    parent: int = -1
    side: int = 0
    strength: float
    error: float
    p_value: float
    agreement: float
    null: float
    held_out: Mapping[str, float | None]
    views: Mapping[str, float | None]
    alone: str | bool
    stability: float
    gap: float
    valley: float | None
    level: float = LEVEL
    sizes: Sequence[int]
    stands: bool = False


class Contrast(NamedTuple):
    """The agreement in a split beside those in splits of Gaussians; of one view alone with its gap."""

    agreement: float
    nulls: Sequence[float]
    weight: float  # what held-out views say
    gap: float | None = None

    @property
    def strength(self) -> float:
        """How many times rarer than in Gaussians neighbours cross, a logarithm, times the weight.

        One view alone has none unless it is clear. Without a second view to confirm it, neighbours must cross e times
        as rarely as in Gaussians, the split must be stronger than the agreement in these, and its border sparser than
        the rest: so are no heavy tails, curves or single factors of one view.
        """
        null = float(np.mean(self.nulls))
        found = (crossing(null) - crossing(self.agreement)) * self.weight
        is_clear = self.gap is None or (found >= max(null, _HALVED) and self.gap > 0)
        return found if is_clear else float("-inf")


def crossing(agreement: float) -> float:
    """The logarithm of the share of neighbours that cross, over that by chance; below 2 % they are a handful."""
    return float(np.log(np.clip(1.0 - agreement, 0.02, 1.0)))


def evidence(look: Look, sides: Sides, names: Sequence[str], draws: int, generator: torch.Generator) -> Split:
    """What speaks for a split of all samples of a look, compared with `draws` Gaussians."""
    found, *own = _agreements(look, sides)
    nulls = np.array([_split_of(look.drawn(generator), generator) for _ in range(draws)]).T.tolist()
    again = [sides_in(points, sides) for points in look.hidden]
    stays = [float(other[sides].mean() - other[~sides].mean()) for other in again]
    gaps = border_gaps(look, sides)
    # Infinite where no neighbours cross.
    *by_view, gap = (float(np.mean(one)) if one else float("inf") for one in (*gaps, list(chain(*gaps))))
    held_out, views, present = dict[str, float](), dict[str, Contrast](), look.present.cpu().numpy()
    for v, name in enumerate(names if len(names) > 1 else ()):
        among = present[:, v] & (present.sum(axis=1) > 1)
        held_out[name] = agreement(edges(look.neighbors[:, v].cpu().numpy()), again[v], among)
        views[name] = Contrast(own[v], nulls[v + 1], _HALVED, by_view[v])
    known = [one for one in held_out.values() if not np.isnan(one)]
    weight = float((max(float(np.mean(known)), 0.0) if known else _UNKNOWN) ** (1 / 3))
    parts = {False: Contrast(found, nulls[0], weight)} | views
    alone = max(parts, key=lambda name: parts[name].strength)  # False where all together say as much
    best, null = parts[alone], float(np.mean(nulls[0]))
    p = p_value(best.agreement, best.nulls)
    return Split(
        strength=best.strength,
        error=best.weight * float(np.std([crossing(one) for one in best.nulls], ddof=1)),
        p_value=p if alone is False else min(1.0, len(views) * p),
        agreement=found,
        null=null,
        held_out={name: None if np.isnan(one) else one for name, one in held_out.items()},
        views={name: None if np.isnan(one.agreement) else one.agreement for name, one in views.items()},
        alone=alone,
        stability=float(np.mean(stays)),
        gap=min(gap, 9.0),
        valley=valley_p_value(look.table.cpu().numpy(), sides) if null > _CRISP and found <= NO_BORDER else None,
        sizes=[int((~sides).sum()), int(sides.sum())],
    )


def _agreements(look: Look, sides: Sides) -> list[float]:
    """The agreement in embedding and views together, and in each view among the samples that have it."""
    present, near = look.present.cpu().numpy(), look.neighbors.cpu().numpy()
    own = [agreement(edges(near[:, v]), sides, present[:, v]) for v in range(present.shape[1])]
    return [agreement(look.graph, sides), *own]


def agreement(graph: csr_array, sides: Sides, among: Sides | None = None) -> float:
    """How much rarer than by chance edges `among` samples, else all, join different sides; NaN where one has none."""
    there = np.ones(len(sides)) if among is None else among.astype(float)
    left, right = there * ~sides, there * sides
    across, own, other = (float(a @ (graph @ b)) for a, b in ((left, right), (left, left), (right, right)))
    if min(own + across, other + across) <= 0:
        return float("nan")
    return 1.0 - across * (own + other + 2 * across) / ((own + across) * (other + across))


def p_value(found: float, null: Sequence[float]) -> float:
    """The chance of an agreement as high in another Gaussian: a normal fit to the logarithms of crossing neighbours.

    Their spread is at least 0.03, that of many samples.
    """
    logs = np.array([crossing(one) for one in null])
    spread = max(float(logs.std(ddof=1)), 0.03) * np.sqrt(1 + 1 / len(logs))
    return float(ndtr((crossing(found) - logs.mean()) / spread))


def _split_of(look: Look, generator: torch.Generator) -> list[float]:
    """The agreements of the first split of a tree of its own, as of `_agreements`."""
    sides = first_cut(look.embedding, look.neighbors, int(torch.randint(2**31, (), generator=generator)))
    return [0.0] * (1 + len(look.values)) if sides is None else np.nan_to_num(_agreements(look, sides)).tolist()


def first_cut(points: Tensor, neighbor_ids: Tensor, seed: int) -> Sides | None:
    """The sides of the first split of a tree of its own, of which the second is the smaller; None without a split."""
    splits = splits_of(cluster_tree(points, neighbor_ids, seed))
    return np.isin(np.arange(len(points)), splits[0].right) if splits else None


def sides_in(points: Tensor, sides: Sides) -> Sides:
    """The sides that three rounds of two means find in other embeddings of the samples, beginning with the sides."""
    where = points.double().cpu().numpy()
    for _ in range(3):
        far = [np.square(where - where[at].mean(axis=0)).sum(axis=1) for at in (~sides, sides)]
        moved = far[1] < far[0]
        if moved.all() or not moved.any():
            break
        sides = moved
    return sides


def border_gaps(look: Look, sides: Sides) -> list[list[float]]:
    """Per view how much further the neighbours of border samples are, a logarithm, on either side.

    A sample is at the border as far as its neighbours are on the other side. Sides where no neighbours cross are left
    out.
    """
    gaps: list[list[float]] = [[] for _ in look.values]
    for v, view in enumerate(look.values):
        rows = (look.neighbors[:, v] != NO_NEIGHBOR).all(dim=1).nonzero().squeeze(1)
        near = look.neighbors[rows, v]
        if not len(rows):
            continue
        far = (view[rows, None] - view[near]).double().square().sum(dim=2).sqrt().mean(dim=1).cpu().numpy()
        far = np.log(np.maximum(far, 1e-3 * max(float(np.median(far)), 1e-9)))
        own = sides[rows.cpu().numpy()]
        crossing = (sides[near.cpu().numpy()] != own[:, None]).mean(axis=1)
        for side in (own, ~own):
            border, inner = crossing[side], 1 - crossing[side]
            if border.sum() > 0 and inner.sum() > 0:
                gaps[v].append(float(np.average(far[side], weights=border) - np.average(far[side], weights=inner)))
    return gaps


@dataclass(frozen=True)
class Branching:
    """A split of a tree whose sides both have `LEAST` samples."""

    parent: int  # the place of the split above in the list; -1 of the first
    side: int  # of the split above, 0 or 1
    left: NDArray[np.int64]  # its samples, in rising order
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
