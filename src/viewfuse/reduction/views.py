"""The front ends of all views of a data set: views in, narrow dense views out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.scaling import Unit
from viewfuse.data.views import Views
from viewfuse.errors import DataError, SettingError
from viewfuse.reduction.frontend import HOW, FrontEnd, fit_front_end

Asked = str | Mapping[str, str]
"""How views are reduced: one of `HOW` for all, or one per name of a view; those that are not named are "auto"."""


@dataclass(frozen=True)
class Reduction:
    """One front end per view, in their order."""

    front_ends: tuple[FrontEnd, ...]

    @property
    def units(self) -> tuple[Unit, ...]:
        """Per view what has a unit of its own: its columns, all of the view (components), or its rows (words).

        Words beside other kinds of views are treated as components: made small, they would not be heard.
        """
        only_words = all(one.how == "words" for one in self.front_ends)
        return tuple(_unit(one, only_words=only_words) for one in self.front_ends)

    def apply(self, views: Views) -> Views:
        """The views with the columns that the network sees; a view that needs nothing is the same array."""
        pairs = list(enumerate(zip(self.front_ends, views.arrays, strict=True)))
        arrays = tuple(one.apply(a, views.mask[:, v]) if one.how != "none" else a for v, (one, a) in pairs)
        columns = tuple(range(one.columns) if one.how != "none" else views.columns[v] for v, (one, _) in pairs)
        offsets = tuple(0.0 if one.how != "none" else views.offsets[v] for v, (one, _) in pairs)
        return views.replace(arrays=arrays, columns=columns, offsets=offsets).dense()

    def invert(self, v: int, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Reduced values of one view, of shape (samples, components), in the user's columns and units."""
        return self.front_ends[v].invert(values)

    def decision(self, views: Views, asked: Asked = "auto") -> dict[str, Any]:
        """What was chosen for each view, from which evidence, and which views the user spoke of."""
        pairs = list(zip(views.names, self.front_ends, strict=True))
        evidence = {
            name: {**asdict(one.kind), "kept": one.kept, "transform": one.transform.name} for name, one in pairs
        }
        widths = {name: [width, one.columns] for (name, one), width in zip(pairs, views.widths, strict=True)}
        named = [name for name in views.names if _how(asked, name) != "auto"]
        chosen = {name: one.how for name, one in pairs}
        return {"chosen": chosen, "evidence": evidence, "columns": widths, "asked": named}


def _unit(front_end: FrontEnd, *, only_words: bool) -> Unit:
    if front_end.how == "none":
        return "columns"
    return "rows" if only_words else "view"


def fit_reduction(views: Views, asked: Asked = "auto") -> Reduction:
    """Fit the front end of every view on its observed rows."""
    check_reduction(asked, views.names)
    return Reduction(tuple(_fitted(views, v, _how(asked, name)) for v, name in enumerate(views.names)))


def _how(asked: Asked, name: str) -> str:
    return asked if isinstance(asked, str) else asked.get(name, "auto")


def _fitted(views: Views, v: int, how: str) -> FrontEnd:
    try:
        return fit_front_end(views.arrays[v], views.mask[:, v], how)
    except DataError as error:
        raise DataError(f"view {views.names[v]!r}: {error}") from None


def check_reduction(asked: Any, names: tuple[str, ...] | None = None) -> None:
    """Refuse what is no way to reduce views; where `names` are known, also names of views that are not there."""
    ways = list(asked.values()) if isinstance(asked, Mapping) else [asked]
    wrong = [way for way in ways if not isinstance(way, str) or way not in HOW]
    if wrong:
        raise SettingError(f"reduction must be one of {', '.join(HOW)}, or a dict of these by view; got {wrong[0]!r}")
    unknown = [name for name in asked if names is not None and name not in names] if isinstance(asked, Mapping) else []
    if unknown:
        raise SettingError(f"reduction names the view {unknown[0]!r}, but the views are {', '.join(names or ())}")
