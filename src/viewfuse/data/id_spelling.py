"""Ids that may mean one sample but are not the same: 17, "17" and "017", blanks, capitals."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CURE = "write ids alike in all views, as text with all their zeros, say (pandas: dtype=str)"

_MOST = 50_000
"""Ids of a view that are looked at; who misspells ids does not begin after so many."""


class Pair(NamedTuple):
    """Two ids that read alike, of two views."""

    first: Hashable
    second: Hashable


def read_alike(first: Iterable[Hashable], second: Iterable[Hashable]) -> list[Pair]:
    """Ids that each side has alone, and which differ only in how they are written."""
    ours, theirs = list(first), list(second)
    common = set(ours) & set(theirs)
    known = {plainly(name): name for name in ours if name not in common}
    others = [(plainly(name), name) for name in theirs if name not in common]
    return [Pair(known[plain], name) for plain, name in others if plain in known]


def plainly(name: Hashable) -> str:
    """An id without blanks around it, zeros before it, capitals, and the fraction of 17.0."""
    text = str(name).strip().casefold().removesuffix(".0")
    return text.lstrip("0") or "0" if text.isdigit() else text


def written(name: Hashable) -> str:
    """How an id is written: as a number (17), or as text ('017')."""
    return f"as text ({name!r})" if isinstance(name, str) else f"as numbers ({name})"


def in_words(pairs: Sequence[Pair], first: str, second: str) -> str:
    """What is alike in two views, and the cure."""
    one = pairs[0]
    return (
        f"view {first!r} has ids {written(one.first)}, view {second!r} {written(one.second)}: {len(pairs):,} of them "
        f"differ only in how they are written; {CURE}"
    )


def alike_in_views(names: Sequence[str], mask: NDArray[np.bool_], ids: Sequence[Hashable]) -> list[str]:
    """A line for every two views of which each has ids alone that read like ids of the other."""
    lines = []
    for v, first in enumerate(names):
        for w in range(v + 1, len(names)):
            alone = ((mask[:, a] & ~mask[:, b]).nonzero()[0][:_MOST].tolist() for a, b in ((v, w), (w, v)))
            pairs = read_alike(*([ids[row] for row in rows] for rows in alone))
            lines += [in_words(pairs, first, names[w])] if pairs else []
    return lines
