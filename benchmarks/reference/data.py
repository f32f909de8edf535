"""The data of the plain reference: scikit-learn's neighbours, Algorithm 1 in a loop, one sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from torch.utils.data import Dataset

from viewfuse.methods.urrl.config import Config

Lists = list[list[list[int]]]
"""Per sample and view the stored samples nearest to it, nearest first; empty where the view is missing."""
Item = dict[str, Any]


@dataclass(frozen=True)
class ScaledTable:
    """Scaled samples.

    Attributes
    ----------
    values : per view a float32 array of shape (samples, columns), zero where missing
    present : boolean array of shape (samples, views)
    """

    values: Sequence[NDArray[np.float32]]
    present: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.present)


class NeighborSearch:
    """scikit-learn's search per view, among the stored samples that have it."""

    def __init__(self, stored: ScaledTable, depth: int) -> None:
        self._depth = depth
        self._rows = [np.flatnonzero(here) for here in stored.present.T]
        self._searches = [
            NearestNeighbors(n_neighbors=min(depth, len(rows))).fit(view[rows]) if len(rows) else None
            for view, rows in zip(stored.values, self._rows, strict=True)
        ]

    def of_stored(self, n: int) -> Lists:
        """Neighbours of the `n` stored samples, none of which is its own."""
        lists: Lists = [[[] for _ in self._rows] for _ in range(n)]
        for v, (search, rows) in enumerate(zip(self._searches, self._rows, strict=True)):
            if search is None or len(rows) < 2:
                continue
            found = search.kneighbors(n_neighbors=min(self._depth, len(rows) - 1), return_distance=False)
            for row, neighbor_ids in zip(rows.tolist(), rows[found].tolist(), strict=True):
                lists[row][v] = neighbor_ids
        return lists

    def of_new(self, new: ScaledTable) -> Lists:
        """Neighbours of other samples."""
        lists: Lists = [[[] for _ in self._rows] for _ in range(len(new))]
        for v, (search, rows) in enumerate(zip(self._searches, self._rows, strict=True)):
            asked = np.flatnonzero(new.present[:, v])
            if search is None or not len(asked):
                continue
            found = search.kneighbors(new.values[v][asked], return_distance=False)
            for row, neighbor_ids in zip(asked.tolist(), rows[found].tolist(), strict=True):
                lists[row][v] = neighbor_ids
        return lists


def donors(
    neighbor_ids: Sequence[Sequence[int]],
    available: Sequence[bool],
    present: Sequence[Sequence[bool]],
    view: int,
    k: int,
    depth: int,
) -> list[int]:
    """Algorithm 1 for a missing view: neighbours in the views that are there, which themselves have the missing one.

    Parameters
    ----------
    neighbor_ids : per view the nearest stored samples, the sample itself not among them
    depth : how many of each list are looked at
    """
    found: list[int] = []
    for a in range(depth):
        for b, there in enumerate(available):
            if there and a < len(neighbor_ids[b]) and present[neighbor_ids[b][a]][view]:
                found.append(neighbor_ids[b][a])
                if len(found) == k:
                    return found
    return found


class PlainSamples(Dataset[Item]):
    """Samples with their neighbour lists, each gathered when it is asked for.

    Parameters
    ----------
    samples, stored : the samples and those among which they have neighbours; one and the same in training
    neighbor_ids : neighbours of `samples` among `stored`
    rate : view dropout of the augmented branch; None where there is no such branch
    """

    def __init__(
        self,
        samples: ScaledTable,
        stored: ScaledTable,
        neighbor_ids: Lists,
        settings: Config,
        rate: float | None,
        seed: int = 0,
    ) -> None:
        self._samples, self._stored, self._near = samples, stored, neighbor_ids
        self._settings, self._rate = settings, rate
        self._present: list[list[bool]] = stored.present.tolist()  # lists are read faster, one by one, than arrays
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, i: int) -> Item:
        available = self._samples.present[i]
        item = {
            "plain": self.gather(i, available),
            "values": [view[i] for view in self._samples.values],
            "present": available,
        }
        if self._rate is not None:
            item["augmented"] = self._with_noise(self.gather(i, self._drop_views(available, self._rate)))
        return item

    def gather(self, i: int, available: NDArray[np.bool_]) -> Item:
        """Tokens per view of shape (list length, columns), what of them is filled, and the views used."""
        k = self._settings.list_length
        usable = available.tolist()
        tokens, valid = [], np.zeros((len(usable), k), dtype=bool)
        for v, view in enumerate(self._stored.values):
            block = np.zeros((k, view.shape[1]), dtype=np.float32)
            own = int(usable[v])
            rows = self._near[i][v][: k - 1] if own else self._donors(i, usable, v)
            if own:
                block[0] = self._samples.values[v][i]
            block[own : own + len(rows)] = view[rows]
            valid[v, : own + len(rows)] = True
            tokens.append(block)
        return {"tokens": tokens, "filled": valid, "have": available}

    def _donors(self, i: int, available: Sequence[bool], view: int) -> list[int]:
        """As printed; where that finds no donor, among more distant neighbours, as this package does."""
        k, neighbor_ids = self._settings.list_length, self._near[i]
        printed = donors(neighbor_ids, available, self._present, view, k, k - 1)
        return printed or donors(neighbor_ids, available, self._present, view, k, self._settings.search_depth)

    def _drop_views(self, available: NDArray[np.bool_], rate: float) -> NDArray[np.bool_]:
        kept = available & (self._rng.random(len(available)) >= rate)
        if not kept.any():
            kept[self._rng.choice(np.flatnonzero(available))] = True
        return kept

    def _with_noise(self, item: Item) -> Item:
        deviation, rate = self._settings.noise, self._settings.feature_dropout
        for v, block in enumerate(item["tokens"]):
            block += deviation * self._rng.standard_normal(block.shape, dtype=np.float32)
            block *= (self._rng.random(block.shape, dtype=np.float32) >= rate) & item["filled"][v, :, None]
        return item
