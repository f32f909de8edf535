"""The front ends of views: what turns each into a few dense columns, and those back into the user's units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.given import is_sparse
from viewfuse.data.scaling import Unit
from viewfuse.data.tables import column_bounds
from viewfuse.data.views import Views
from viewfuse.errors import DataError, SettingError
from viewfuse.reduction.components import Components, fit_components, project
from viewfuse.reduction.transforms import (
    KINDS,
    NAMES,
    WEIGHTED,
    Kind,
    Transform,
    Values,
    fit_transform,
    kind_of,
    part_slices,
    parts_of,
)
from viewfuse.utils.settings import Setting, check_choice, wrong

SPARSE = ("words", "links")
"""Ways for views of mostly zeros: rows of length 1 on singular vectors."""
HOW = ("auto", "none", "pca", "standard", "log1p", "counts", *SPARSE)
_NOT_BELOW_ZERO = ("log1p", "counts", *SPARSE)
_OF_KIND = {
    "measurements": "pca", "intensities": "pca", "binary": "pca", "counts": "counts", "words": "words",
    "links": "links",
}  # fmt: skip
_ONE_UNIT = 20
"""Largest deviation of a column over the median one, up to which columns may be of one unit."""
_NARROW = 256
"""Columns up to which a view stays as it is."""
_FEWEST, _MOST = 10, 50
"""Components that are worth having of few samples, and of any number of them."""
Asked = str | Mapping[str, str]
"""How views are reduced: one of `HOW` for all, or one per name of a view; those that are not named are "auto"."""


@dataclass(frozen=True, eq=False)
class FrontEnd:
    """What `fit_front_end` found for one view.

    Attributes
    ----------
    how : one of `HOW`, but never "auto"
    kind : what the view is, and the numbers that say so
    transform : what is done to rows before they are projected
    mean, axes : float32 of shape (columns,) and (columns, components); `axes` has no components where `how` is "none"
    kept : share of the variance of transformed rows that the components keep
    length : 0, or the typical length of projected rows, each of which is then given length 1
    low, high : float32 bounds of every column, of shape (columns,), empty where `how` is "none"
    """

    how: str
    kind: Kind
    transform: Transform
    mean: NDArray[np.float32]
    axes: NDArray[np.float32]
    kept: float
    length: float
    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @property
    def columns(self) -> int:
        """How many columns `apply` gives."""
        return self.axes.shape[0] if self.how == "none" else self.axes.shape[1]

    def apply(self, values: Values, present: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
        """The reduced view, float32 of shape (samples, components).

        Rows that are not `present`, of shape (samples,), become zeros. Where there is nothing to do, a dense array
        comes back as the same object.
        """
        _check_width(values, self.axes.shape[0])
        if self.how == "none":
            return _dense(values)
        reduced = np.zeros((values.shape[0], self.columns), np.float32)
        there = np.ones(values.shape[0], dtype=bool) if present is None else present
        rows = np.flatnonzero(there)
        for part in parts_of(values, there):
            reduced[rows[: part.shape[0]]] = self._projected(part)
            rows = rows[part.shape[0] :]
        return reduced

    def _projected(self, part: Values) -> NDArray[np.float64]:
        components = Components(self.mean.astype(np.float64), self.axes.astype(np.float64), self.kept)
        scores = project(self.transform.apply(part), components)
        if not self.length:
            return scores
        lengths = np.linalg.norm(scores, axis=1, keepdims=True)
        return scores / np.where(lengths > 0, lengths, 1.0)

    def invert(self, reduced: NDArray[Any]) -> NDArray[np.float32]:
        """Reduced rows, of shape (samples, components), in the user's units: float32 of shape (samples, columns).

        Counts come back as if every row had the median sum, words as if every row had the median length; no value
        leaves the range that its column had in fitted rows.
        """
        _check_width(reduced, self.columns)
        if self.how == "none":
            return _dense(reduced)
        values = np.zeros((len(reduced), len(self.mean)), np.float32)
        back = self.axes.astype(np.float64)
        if self.how == "links":  # whose axes are as long as they weigh
            lengths = np.square(back).sum(axis=0)
            back = back / np.where(lengths > 0, lengths, 1.0)
        for rows in part_slices(values):
            scores = reduced[rows].astype(np.float64) * (self.length or 1.0)
            full = self.transform.undo(scores @ back.T + self.mean)
            values[rows] = np.clip(full, self.low, self.high)
        return values

    def facts(self) -> dict[str, Any]:
        """All but the arrays, such as JSON can hold."""
        transform = {"name": self.transform.name, "typical": self.transform.typical}
        own: dict[str, Any] = {"how": self.how, "kept": self.kept, "length": self.length}
        return own | {"kind": asdict(self.kind), "transform": transform}

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The arrays, by name."""
        own = {name: getattr(self, name) for name in ("mean", "axes", "low", "high")}
        return own | {"weights": self.transform.weights}

    def check(self, width: int) -> None:
        """Refuse arrays that do not belong together, or to a view of that width."""
        bounds = (0,) if self.how == "none" else (width,)
        shapes = {getattr(self, name).shape for name in ("mean", "low", "high")}
        weights = (width,) if self.transform.name in WEIGHTED else (0,)
        fits = self.axes.ndim == 2 and self.axes.shape[0] == width and shapes == {bounds}
        fits = fits and self.transform.weights.shape == weights and (self.low <= self.high).all()
        numbers = (self.kept, self.length, self.transform.typical)
        fits = fits and all(isinstance(one, Real) and isfinite(one) for one in numbers)
        fits = fits and all(one.dtype == np.float32 and np.isfinite(one).all() for one in self.arrays().values())
        named = self.how in HOW[1:] and self.transform.name in NAMES and self.kind.name in KINDS
        if not fits or not named:
            raise ValueError(f"the front end is not one of {width} columns")

    @classmethod
    def from_saved(cls, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[np.float32]]) -> FrontEnd:
        """The front end whose `facts` and `arrays` these are."""
        own: dict[str, Any] = {name: facts[name] for name in ("how", "kept", "length")}
        own |= {name: arrays[name] for name in ("mean", "axes", "low", "high")}
        transform = Transform(**facts["transform"], weights=arrays["weights"])
        return cls(kind=Kind(**facts["kind"]), transform=transform, **own)


def no_front_end(width: int) -> FrontEnd:
    """That of a view of which nothing is known, and which stays as it is."""
    return _untouched(width, Kind("measurements", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0))


def fit_front_end(values: Values, present: NDArray[np.bool_], how: str = "auto") -> FrontEnd:
    """Find out from the present rows of a view what it is, and how it becomes few columns.

    Parameters
    ----------
    values : float32 array or scipy.sparse matrix of shape (samples, columns)
    present : booleans of shape (samples,); other rows are never looked at
    how : "none" leaves the view as it is, and "pca" projects it on its principal components; "standard" does so after
        every column was divided by its deviation; "log1p" after log(1 + x) was taken of every value; "counts" after
        every row was given the same sum, and then log(1 + x) taken; "words" takes log(1 + x) times idf (no idf where
        values are not whole numbers), rows of length 1, singular vectors, and rows of length 1 again; "links" divides
        by the roots of the sums of row and column, takes singular vectors, weighs each by the square of its singular
        value, as two steps of a walk from samples to their links and back do, and rows of length 1; "auto" leaves a
        view of at most 256 columns as it is (of at most 50, where it holds words or links), and else takes what suits
        its kind. There are then as many columns as the root of the number of samples, from 10 to 50
    """
    check_choice("how", how, HOW)
    kind = kind_of(values, present)
    chosen = _suited(kind, values.shape[1]) if how == "auto" else how
    if chosen == "none":
        return _untouched(values.shape[1], kind)
    if chosen in _NOT_BELOW_ZERO and kind.least < 0:
        raise DataError(f"{how!r} is for values of at least 0, but the least one is {kind.least:g}; use 'pca'")
    if chosen in ("counts", *SPARSE) and values.shape[1] == 1:
        raise DataError(f"{how!r} would leave nothing of a view of one column; use 'log1p'")
    return _fitted(values, present, chosen, kind)


def _suited(kind: Kind, width: int) -> str:
    """What the field of such a view does, where it is too wide.

    Words are so earlier: among so many zeros plain distances say who has few words, not who has the same. Columns
    whose deviations lie far apart are of different units.
    """
    usual = _OF_KIND[kind.name]
    if width <= (_MOST if usual in SPARSE else _NARROW):
        return "none"
    return "standard" if usual == "pca" and kind.units > _ONE_UNIT else usual


def _fitted(values: Values, present: NDArray[np.bool_], how: str, kind: Kind) -> FrontEnd:
    words = "terms" if kind.whole == 1 else "weighted"
    names = {"pca": "none", "standard": "standard", "log1p": "log1p", "counts": "log", "words": words,
             "links": "links"}  # fmt: skip
    transform = fit_transform(values, present, names[how])

    def parts() -> Iterator[Values]:
        return (transform.apply(part) for part in parts_of(values, present))

    low = high = np.zeros(values.shape[1], np.float32)
    if not present.any():
        found = Components(np.zeros(values.shape[1]), np.zeros((values.shape[1], 1)), 1.0)
    else:
        found = fit_components(parts, _rank(len(present)), centred=how not in SPARSE)
        if how == "links":
            found = replace(found, axes=found.axes * _energy(parts, found))
        low, high = (bound.astype(np.float32) for bound in column_bounds(values, present))
    length = _typical_length(parts, found) if how in SPARSE else 0.0
    mean, axes = found.mean.astype(np.float32), found.axes.astype(np.float32)
    return FrontEnd(how, kind, transform, mean, axes, found.kept, length, low, high)


def _energy(parts: Any, found: Components) -> NDArray[np.float64]:
    """The squares of the singular values over the largest, of shape (components,)."""
    squares = np.sum([np.square(project(part, found)).sum(axis=0) for part in parts()], axis=0)
    return np.asarray(squares / max(float(squares.max()), 1e-300))


def _rank(n_samples: int) -> int:
    """The root of the number of samples, within bounds: the more samples, the more directions are no accident.

    Samples that lack the view count as well, so that the number does not depend on which samples lack it.
    """
    return int(np.clip(round(np.sqrt(n_samples)), _FEWEST, _MOST))


def _typical_length(parts: Any, found: Components) -> float:
    """The median length of projected rows; 1 where none has any."""
    lengths = [np.linalg.norm(project(part, found), axis=1) for part in parts()]
    return float(np.median(np.concatenate(lengths))) or 1.0 if lengths else 1.0


def _untouched(width: int, kind: Kind) -> FrontEnd:
    none = np.zeros(0, np.float32)
    return FrontEnd("none", kind, Transform("none"), none, np.zeros((width, 0), np.float32), 1.0, 0.0, none, none)


def _dense(values: Values) -> NDArray[np.float32]:
    """A sparse table as a dense one; a float32 array as the same object."""
    return np.asarray(values.toarray() if is_sparse(values) else values, dtype=np.float32)


def _check_width(values: Values, width: int) -> None:
    if values.shape[1] != width:
        raise DataError(
            f"the view has {values.shape[1]} columns, but its front end was fitted on {width}; "
            "give the same columns in the same order"
        )


@dataclass(frozen=True)
class Reduction:
    """One front end per view, in their order."""

    front_ends: tuple[FrontEnd, ...]

    @property
    def has_words(self) -> bool:
        """Whether a view holds words or links."""
        return any(one.how in SPARSE for one in self.front_ends)

    @property
    def units(self) -> tuple[Unit, ...]:
        """Per view what has a unit of its own: its columns, all of the view (components), or its rows (words).

        Words beside other kinds of views are treated as components: made small, they would not be heard.
        """
        only_words = all(one.how in SPARSE for one in self.front_ends)
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

    def facts(self, views: Views, asked: Asked = "auto") -> dict[str, Any]:
        """What was chosen for each view, from which evidence, and which views the user named."""
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
    return Reduction(tuple(_fitted_on(views, v, _how(asked, name)) for v, name in enumerate(views.names)))


def _how(asked: Asked, name: str) -> str:
    return asked if isinstance(asked, str) else asked.get(name, "auto")


def _fitted_on(views: Views, v: int, how: str) -> FrontEnd:
    try:
        return fit_front_end(views.arrays[v], views.mask[:, v], how)
    except DataError as error:
        raise DataError(f"view {views.names[v]!r}: ", *error.parts) from None


def check_reduction(asked: Any, names: tuple[str, ...] | None = None) -> None:
    """Refuse what is no way to reduce views; where `names` are known, also names of views that are not there."""
    ways = list(asked.values()) if isinstance(asked, Mapping) else [asked]
    bad = [way for way in ways if not isinstance(way, str) or way not in HOW]
    if bad:
        raise wrong("reduction", f"one of {', '.join(HOW)}, for all views or for each", bad[0])
    unknown = [name for name in asked if names is not None and name not in names] if isinstance(asked, Mapping) else []
    if unknown:
        fault = f" names the view {unknown[0]!r}, but the views are {', '.join(names or ())}"
        raise SettingError(Setting("reduction"), fault)
