"""Ids that are those of another view with something before or after them, such as the tissue after a patient."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.alignment import alike_in_views, read_alike, shown

_SIGN = re.compile(r"[\W_]")
_MOST_SIGNS = 20
"""Places where an id is cut; ids are short, and texts are no ids."""
_MOST = 50_000
"""Ids of a view that are looked at."""
_LEAST, _SHARE = 2, 0.1
"""So many ids, and such a share of those that a view has alone, must be others' with the same text beside them."""


def misread_ids(names: Sequence[str], mask: NDArray[np.bool_], ids: Sequence[Hashable]) -> list[str]:
    """A line for ids of a view that seem to be those of another one, but are written otherwise, or longer.

    `mask` of shape (samples, views) says which views have which ids.
    """
    return [*alike_in_views(names, mask, ids), *longer_in_views(names, mask, ids)]


def longer_in_views(names: Sequence[str], mask: NDArray[np.bool_], ids: Sequence[Hashable]) -> list[str]:
    """A line for each view whose own ids become those of another when one text is taken off all of them."""
    lines, is_alone = [], mask.sum(axis=1) == 1
    places = {str(name): row for row, name in enumerate(ids)} if is_alone.any() else {}
    for v, name in enumerate(names):
        rows = np.flatnonzero(is_alone & mask[:, v])[:_MOST].tolist()
        found: dict[tuple[str, bool], list[tuple[int, int]]] = {}
        for row in rows:
            for rest, text, is_after in _cuts(str(ids[row])):
                other = places.get(rest)
                if other is not None and not mask[other, v]:
                    found.setdefault((text, is_after), []).append((row, other))
        found = {key: pairs for key, pairs in found.items() if not read_alike(*([ids[r]] for r in pairs[0]))}
        (text, is_after), pairs = max(found.items(), key=lambda one: len(one[1]), default=(("", True), []))
        if len(pairs) >= max(_LEAST, _SHARE * len(rows)):
            own, other = pairs[0]
            theirs, place = names[int(mask[other].argmax())], "after" if is_after else "before"
            lines.append(
                f"view {name!r} has ids such as {shown(ids[own])}, view {theirs!r} such as {shown(ids[other])}: "
                f"{len(pairs):,} of them differ only in {text!r} {place} them; if they are the same "
                f"samples, write ids alike in all views, or read files with --id-pattern '{_pattern(text, is_after)}' "
                "(in Python id_pattern)"
            )
    return lines


def _cuts(name: str) -> Iterator[tuple[str, str, bool]]:
    """An id without what begins or ends with a sign, that text, and whether it was the end."""
    for sign in islice(_SIGN.finditer(name), _MOST_SIGNS):
        first, last = sign.span()
        if first:
            yield name[:first], name[first:], True
        if last < len(name):
            yield name[last:], name[:last], False


def _pattern(text: str, is_after: bool) -> str:
    """A regular expression whose first group is an id without that text, where it has it."""
    escaped = re.escape(text).replace("\\-", "-")
    part = f"(?:{escaped})?"
    return f"^(.*?){part}$" if is_after else f"^{part}(.*)$"
