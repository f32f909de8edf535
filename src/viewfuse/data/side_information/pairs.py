"""Pairs: samples that belong together or apart, which is known before the fit; contradictions are named before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, shortest_path

from viewfuse.data.alignment import plainly
from viewfuse.data.input_types import id_key
from viewfuse.data.side_information.known_labels import UNKNOWN, Hints, as_objects
from viewfuse.errors import DataError

MUST, CANNOT = "must_link", "cannot_link"


class PairTable(NamedTuple):
    """Pairs of ids as a file has them: `rows`, and for each the `places` where it stands, such as "pairs.csv, line 2".

    The first row is a header where neither of its cells is an id, or reads like one.
    """

    rows: list[tuple[str, str]]
    places: list[str]


@dataclass(frozen=True)
class Pairs:
    """Pairs of samples: `rows`, of shape (pairs, 2), whether they belong `together` or apart, and where they stood."""

    rows: NDArray[np.int64]
    together: NDArray[np.bool_]
    places: tuple[str, ...]

    @classmethod
    def of(cls, must_link: Any, cannot_link: Any, ids: NDArray[Any]) -> Pairs | None:
        """Read pairs of ids or row numbers; None where there are none. A sample that is linked to itself is no pair.

        They are array-likes of shape (pairs, 2), or a `PairTable`.
        """
        musts, must_places = _read(must_link, ids, MUST)
        cannots, cannot_places = _read(cannot_link, ids, CANNOT)
        for (one, other), place in zip(cannots, cannot_places, strict=True):
            if one == other:
                raise DataError(f"{place}: {str(ids[one])!r} cannot be apart from itself; delete the row")
        rows = np.array([*musts, *cannots], dtype=np.int64).reshape(-1, 2)
        pairs = cls(rows, np.arange(len(rows)) < len(musts), (*must_places, *cannot_places))
        pairs = pairs._some(rows[:, 0] != rows[:, 1])
        groups = pairs.groups(len(ids))
        for place, one, other in pairs._apart():
            if groups[one] == groups[other]:
                raise DataError(
                    f"{place}: {str(ids[one])!r} and {str(ids[other])!r} must be apart, but also together "
                    f"({pairs._chain(one, other, ids)}); delete one of these rows"
                )
        return pairs if len(pairs) else None

    def __len__(self) -> int:
        return len(self.rows)

    def _some(self, keep: NDArray[np.bool_]) -> Pairs:
        places = tuple(place for place, is_kept in zip(self.places, keep.tolist(), strict=True) if is_kept)
        return Pairs(self.rows[keep], self.together[keep], places)

    def take(self, rows: NDArray[np.int64], n: int) -> Pairs | None:
        """Those among some of `n` samples, in the numbers that they have there; None without any."""
        place = np.full(n, UNKNOWN, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        kept = self._some((place[self.rows] != UNKNOWN).all(axis=1))
        return replace(kept, rows=place[kept.rows]) if len(kept) else None

    def _apart(self) -> list[tuple[str, int, int]]:
        """Of each pair that must be apart, where it was given, and its samples."""
        cannots = self._some(~self.together)
        return [(place, *pair) for place, pair in zip(cannots.places, cannots.rows.tolist(), strict=True)]

    def by_ids(self, ids: NDArray[Any]) -> dict[str, list[list[str]]]:
        """The pairs of each kind as text, see `of`."""
        kinds = ((MUST, self.together), (CANNOT, ~self.together))
        return {name: [[str(ids[i]) for i in pair] for pair in self.rows[own].tolist()] for name, own in kinds}

    def broken(self, labels: NDArray[np.int64]) -> Pairs:
        """Those that a partition, of shape (samples,), does not keep."""
        return self._some((labels[self.rows[:, 0]] == labels[self.rows[:, 1]]) != self.together)

    def groups(self, n: int) -> NDArray[np.int64]:
        """Of shape (n,): the number of the group of samples that belong together, directly or through others."""
        return np.asarray(connected_components(self._graph(n), directed=False)[1], dtype=np.int64)

    def _graph(self, n: int) -> coo_array:
        one, other = self.rows[self.together].T
        return coo_array((np.ones(len(one)), (one, other)), shape=(n, n))

    def least_clusters(self, n: int) -> int:
        """A number of clusters below which not all can be apart: the largest clique that is found greedily."""
        groups, apart = self.groups(n), dict[int, set[int]]()
        for one, other in groups[self.rows[~self.together]].tolist():
            apart.setdefault(one, set()).add(other)
            apart.setdefault(other, set()).add(one)
        largest = 1
        for first, others in apart.items():
            clique = {first}
            for other in sorted(others, key=lambda one: -len(apart[one])):
                if clique <= apart[other]:
                    clique.add(other)
            largest = max(largest, len(clique))
        return largest

    def spread(self, hints: Hints, ids: NDArray[Any]) -> Hints:
        """Hints that samples share which belong together; two classes in one such group are refused."""
        groups, codes, classes = self.groups(len(ids)), hints.codes, hints.classes
        first: dict[int, int] = {}
        for row in np.flatnonzero(codes != UNKNOWN).tolist():
            other = first.setdefault(groups[row], row)
            if codes[row] != codes[other]:
                raise DataError(
                    f"{str(ids[other])!r} and {str(ids[row])!r} have the hints {classes[codes[other]]!r} and "
                    f"{classes[codes[row]]!r}, but must be together ({self._chain(other, row, ids)}); correct one"
                )
        shared = np.array([codes[first[group]] if group in first else UNKNOWN for group in groups.tolist()])
        for place, one, other in self._apart():
            if shared[one] == shared[other] != UNKNOWN:
                known = f"both have the hint {classes[shared[one]]!r}, themselves or through must-links"
                raise DataError(f"{place}: {str(ids[one])!r} and {str(ids[other])!r} must be apart, but {known}")
        return Hints(classes, shared.astype(np.int64))

    def _chain(self, one: int, other: int, ids: NDArray[Any]) -> str:
        """The shortest way from one sample to another over must-links, and where these stand."""
        graph = self._graph(len(ids)).tocsr()
        before = shortest_path(graph, directed=False, unweighted=True, indices=one, return_predecessors=True)[1]
        way = [other]
        while way[-1] != one:
            way.append(int(before[way[-1]]))
        musts = self._some(self.together)
        steps = {frozenset(pair): place for pair, place in zip(musts.rows.tolist(), musts.places, strict=True)}
        places = [steps[frozenset(step)] for step in zip(way[::-1], way[-2::-1], strict=False)]
        return " - ".join(repr(str(ids[row])) for row in way[::-1]) + ": " + "; ".join(places)


def _read(given: Any, ids: NDArray[Any], name: str) -> tuple[list[list[int]], list[str]]:
    """The row numbers of pairs, and where each was given."""
    if given is None:
        return [], []
    rows_of = {id_key(one): row for row, one in enumerate(ids.tolist())}
    if isinstance(given, PairTable):
        cells: list[list[Any]] = [list(pair) for pair in given.rows]
        places = given.places
        alike = {plainly(one) for one in rows_of}
        if cells and not any(plainly(one) in alike for one in cells[0]):
            cells, places = cells[1:], places[1:]
    else:
        table = as_objects(given)
        if table.size and (table.ndim != 2 or table.shape[1] != 2):
            raise DataError(f"{name} is of shape {table.shape}; give pairs of samples, of shape (pairs, 2)")
        cells = table.reshape(-1, 2).tolist()
        places = [f"{name}[{i}]" for i in range(len(cells))]
        flat = [one for pair in cells for one in pair]
        whole = all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in flat)
        if whole and not any(id_key(one) in rows_of for one in flat) and all(0 <= one < len(ids) for one in flat):
            return cells, places  # integers, none of which is an id, are row numbers
    for pair, place in zip(cells, places, strict=True):
        for one in pair:
            if id_key(one) not in rows_of:
                raise DataError(f"{place}: {str(one)!r} is no id, but {str(ids[0])!r} is; write ids alike")
    return [[rows_of[id_key(one)] for one in pair] for pair in cells], list(places)
