"""The front ends of views: what turns each into a few dense columns, and those back into the user's units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.input_types import (
    Values,
    column_deviations,
    column_sums,
    is_sparse,
    part_slices,
    parts_of,
    row_sums,
    stored,
    times_columns,
)
from viewfuse.data.scaling import Unit
from viewfuse.data.tables import column_bounds
from viewfuse.data.views import Views
from viewfuse.errors import DataError, SettingError
from viewfuse.reduction.components import Components, fit_components
from viewfuse.reduction.transforms import NAMES, SPARSE, WEIGHTED, Transform, fit_transform
from viewfuse.utils.settings import Setting, check_choice, wrong

HOW = ("auto", "none", "pca", "standard", "log1p", "counts", *SPARSE)
_NOT_BELOW_ZERO = ("log1p", "counts", *SPARSE)
_OF_KIND = {
    "measurements": "pca", "intensities": "pca", "binary": "links", "counts": "counts", "words": "words",
    "links": "links",
}  # fmt: skip
"""What suits each kind of view, where it is too wide. Samples of binary ones often differ most in how many ones they
have (results/reduction)."""
_TRANSFORMS = {"pca": "none", "counts": "log", "words": "weighted"}
"""What is done to rows, where it is not called like the way."""
_ONE_UNIT = 20
"""Largest deviation of a column over the median one, up to which columns may be of one unit."""
_NEARLY, _HIGH = 0.95, 100
"""Share of whole numbers among counts; a value that shares, weights and logarithms do not reach."""
_MOST, _FEWEST = 50, 10
"""Components that are worth having of any number of samples, and of few."""
Asked = str | Mapping[str, str]
"""How views are reduced: one of `HOW` for all, or one per name of a view; those that are not named are "auto"."""


@dataclass(frozen=True)
class Kind:
    """What a view is, and the numbers that say so, all over its present rows; by default nothing is known."""

    name: str = "measurements"  # or "counts", "words", "links", "intensities", "binary", see `_name`
    zeros: float = 0.0  # share of cells that are zero
    whole: float = 0.0  # share of other cells that are whole numbers
    least: float = 0.0  # of all cells, as is the largest
    largest: float = 0.0
    tail: float = 0.0  # largest value over the mean of the cells that are not zero; 0 where some value is negative
    per_row: float = 0.0  # median number of cells of a row that are not zero
    units: float = 1.0  # largest standard deviation of a column over the median of those that are not constant
    skew: float = 0.0  # median over columns of the largest value over the mean; 0 where some value is negative

    @property
    def said(self) -> str:
        """What the view is called: one of 0 and 1 is binary, also where it is reduced like words or links."""
        return "binary" if self.whole == self.largest == 1 and self.least >= 0 else self.name


def kind_of(values: Values, present: NDArray[np.bool_]) -> Kind:
    """Look at the present rows of a view of shape (samples, columns)."""
    cells = int(present.sum()) * values.shape[1]
    sums, ends, per_row = np.zeros(3), [], []
    for part in parts_of(values, present):
        there = stored(part)[stored(part) != 0]
        sums += there.size, int((there == np.rint(there)).sum()), float(there.sum(dtype=np.float64))
        ends += [float(there.min()), float(there.max())] if there.size else []
        per_row.append(row_sums(part != 0))
    count, whole, total = sums.tolist()
    ends += [0.0] * (count < cells or not cells)
    facts = {
        "zeros": 1 - count / cells if cells else 0.0,
        "whole": whole / count if count else 0.0,
        "least": min(ends),
        "largest": max(ends),
        "tail": max(ends) * count / total if total > 0 and min(ends) >= 0 else 0.0,
        "per_row": float(np.median(np.concatenate(per_row))) if per_row else 0.0,
    }
    deviations = column_deviations(values, present)
    varying = deviations[deviations > 0]
    units = float(varying.max() / np.median(varying)) if varying.size else 1.0
    if facts["tail"]:
        means = np.sum([column_sums(part) for part in parts_of(values, present)], axis=0) / present.sum()
        facts["skew"] = float(np.median(column_bounds(values, present)[1][means > 0] / means[means > 0]))
    return Kind(_name(**facts), **facts, units=units)


def _name(
    zeros: float, whole: float, least: float, largest: float, tail: float, per_row: float, skew: float = 0.0
) -> str:
    """The kind: counts have a long tail, pixels end at 255.

    A few counts with decimals change nothing. Where many have them, such as expected counts and counts per million, the
    tail must be longer; that of values of many units lies between columns, that of counts in every column.
    """
    if least < 0 or largest == 0:
        return "measurements"
    if zeros >= 0.9 and per_row < 500:  # a sequenced cell shows more genes than a text has words
        # Of links (who cites whom) two rows seldom share a column, and other cells hardly tell how often.
        return "links" if zeros >= 0.99 and whole == 1 and largest <= 1.1 * tail else "words"
    if whole == 1 and largest == 1:
        return "binary"
    if whole >= _NEARLY:  # pixels that are not black are bright, while most counts are 1 or 2
        return "counts" if tail > (3 if zeros > 0.5 else 10) else "intensities"
    return "counts" if tail > (10 if largest >= _HIGH and skew > 3 else 100) else "intensities"


@dataclass(frozen=True, eq=False)
class FrontEnd:
    """What `fit_front_end` found for one view."""

    how: str  # one of `HOW`, but never "auto"
    kind: Kind
    transform: Transform  # what is done to rows before they are projected
    mean: NDArray[np.float32]  # of shape (columns,); empty where `how` is "none", as are the bounds
    axes: NDArray[np.float32]  # of shape (columns, components); without components where `how` is "none"
    kept: float  # share of the variance of transformed rows that the components keep
    length: float  # 0, or the typical length of projected rows, each of which is then given length 1
    low: NDArray[np.float32]  # bounds of every column, of shape (columns,)
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
        components = Components(self.mean.astype(np.float64), self.axes.astype(np.float64))
        reduced = np.zeros((values.shape[0], self.columns), np.float32)
        there = np.ones(values.shape[0], dtype=bool) if present is None else present
        rows = np.flatnonzero(there)
        for part in parts_of(values, there):
            scores = components.project(self.transform.apply(part))
            if self.length:
                lengths = np.linalg.norm(scores, axis=1, keepdims=True)
                scores = scores / np.where(lengths > 0, lengths, 1.0)
            reduced[rows[: part.shape[0]]] = scores
            rows = rows[part.shape[0] :]
        return reduced

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
        weights = (width,) if self.transform.name in WEIGHTED else (0,)
        arrays, numbers = self.arrays().values(), (self.kept, self.length, self.transform.typical)
        fits = (
            self.how in HOW[1:] and self.transform.name in NAMES and self.kind.name in _OF_KIND
            and self.axes.ndim == 2 and len(self.axes) == width and self.transform.weights.shape == weights
            and {self.mean.shape, self.low.shape, self.high.shape} == {bounds}
            and all(isinstance(one, Real) and isfinite(one) for one in numbers)
            and all(one.dtype == np.float32 and np.isfinite(one).all() for one in arrays)
            and (self.low <= self.high).all()
        )  # fmt: skip
        if not fits:
            raise ValueError(f"the front end is not one of {width} columns")

    @classmethod
    def from_saved(cls, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[np.float32]]) -> FrontEnd:
        """The front end whose `facts` and `arrays` these are."""
        own: dict[str, Any] = {name: facts[name] for name in ("how", "kept", "length")}
        own |= {name: arrays[name] for name in ("mean", "axes", "low", "high")}
        transform = Transform(**facts["transform"], weights=arrays["weights"])
        return cls(kind=Kind(**facts["kind"]), transform=transform, **own)


def no_front_end(width: int, kind: Kind | None = None) -> FrontEnd:
    """That of a view which stays as it is."""
    none, axes = np.zeros(0, np.float32), np.zeros((width, 0), np.float32)
    return FrontEnd("none", kind or Kind(), Transform("none", 1.0, none), none, axes, 1.0, 0.0, none, none)


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
        narrow view as it is, and else takes what suits its kind. A view is narrow up to a quarter as many columns as
        there are samples, from 64 to 256 (results/reduction); up to 50, where it holds words or links. A reduced view
        has as many columns as the root of the number of samples, from 10 to 50
    """
    check_choice("how", how, HOW)
    kind = kind_of(values, present)
    width, chosen = values.shape[1], how
    if how == "auto":  # among so many zeros plain distances say who has few words, not who has the same
        usual = _OF_KIND[kind.name]
        chosen = "standard" if usual == "pca" and kind.units > _ONE_UNIT else usual
        if width <= (_MOST if kind.name in ("words", "links") else np.clip(len(present) // 4, 64, 256)):
            chosen = "none"
    if chosen == "none":
        return no_front_end(width, kind)
    if chosen in _NOT_BELOW_ZERO and kind.least < 0:
        raise DataError(
            f"{how!r} is for values of at least 0, but the least one is {kind.least:g}; correct it, or use 'pca'"
        )
    if chosen in ("counts", *SPARSE) and width == 1:
        raise DataError(f"{how!r} would leave nothing of a view of one column; use 'log1p'")
    name = _TRANSFORMS.get(chosen, chosen)
    transform = fit_transform(values, present, "terms" if chosen == "words" and kind.whole == 1 else name)

    def parts() -> Iterator[Values]:
        return (transform.apply(part) for part in parts_of(values, present))

    length = 0.0
    low = high = np.zeros(width, np.float32)
    found = Components(np.zeros(width), np.zeros((width, 1)))
    if present.any():
        # Samples that lack the view count as well, so the rank does not depend on which samples lack it.
        rank = int(np.clip(round(np.sqrt(len(present))), _FEWEST, _MOST))
        found = fit_components(parts, rank, centred=chosen not in SPARSE)
        if chosen == "links":
            squares = np.sum([np.square(found.project(part)).sum(axis=0) for part in parts()], axis=0)
            found = found._replace(axes=found.axes * (squares / max(float(squares.max()), 1e-300)))
        low, high = (bound.astype(np.float32) for bound in column_bounds(values, present))
    if chosen in SPARSE:  # the median length of projected rows; 1 where none has any
        lengths = [np.linalg.norm(found.project(part), axis=1) for part in parts()]
        length = float(np.median(np.concatenate(lengths))) or 1.0 if lengths else 1.0
    mean, axes = found.mean.astype(np.float32), found.axes.astype(np.float32)
    return FrontEnd(chosen, kind, transform, mean, axes, found.kept, length, low, high)


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
    def reduces(self) -> bool:
        """Whether any view becomes other columns than its own."""
        return any(one.how != "none" for one in self.front_ends)

    @property
    def has_words(self) -> bool:
        """Whether a view holds words or links."""
        return any(one.how in SPARSE for one in self.front_ends)

    @property
    def units(self) -> tuple[Unit, ...]:
        """Per view what has a unit of its own: its columns, all of the view (components), or its rows (words).

        Words beside other kinds of views are treated as components: made small, they would not be heard.
        """
        reduced: Unit = "rows" if all(one.how in SPARSE for one in self.front_ends) else "view"
        return tuple("columns" if one.how == "none" else reduced for one in self.front_ends)

    def apply(self, views: Views) -> Views:
        """The views with the columns that the network sees; a view that needs nothing is the same array."""
        arrays, columns, offsets = list(views.arrays), list(views.columns), list(views.offsets)
        for v, one in enumerate(self.front_ends):
            if one.how != "none":
                arrays[v] = one.apply(arrays[v], views.mask[:, v])
                columns[v], offsets[v] = range(one.columns), 0.0
        return views.replace(arrays=tuple(arrays), columns=tuple(columns), offsets=tuple(offsets)).dense()

    def facts(self, views: Views, asked: Asked = "auto") -> dict[str, Any]:
        """What was chosen for each view, from which evidence, and which views the user named."""
        pairs = list(zip(views.names, self.front_ends, strict=True))
        return {
            "chosen": {name: one.how for name, one in pairs},
            "evidence": {n: {**asdict(o.kind), "kept": o.kept, "transform": o.transform.name} for n, o in pairs},
            "columns": {name: [len(one.axes), one.columns] for name, one in pairs},
            "asked": [name for name in views.names if _how(asked, name) != "auto"],
        }


def fit_reduction(views: Views, asked: Asked = "auto") -> Reduction:
    """Fit the front end of every view on its observed rows."""
    check_reduction(asked, views.names)
    found = []
    for name, array, present in zip(views.names, views.arrays, views.mask.T, strict=True):
        try:
            found.append(fit_front_end(array, present, _how(asked, name)))
        except DataError as error:
            raise DataError(f"view {name!r}: ", *error.parts) from None
    return Reduction(tuple(found))


def _how(asked: Asked, name: str) -> str:
    return asked if isinstance(asked, str) else asked.get(name, "auto")


def check_reduction(asked: Any, names: tuple[str, ...] | None = None) -> None:
    """Refuse what is no way to reduce views; where `names` are known, also names of views that are not there."""
    for name, way in asked.items() if isinstance(asked, Mapping) else [(None, asked)]:
        if not isinstance(way, str) or way not in HOW:
            raise wrong("reduction", f"one of {', '.join(HOW)}, for all views or for each", way)
        if names is not None and name not in (None, *names):
            fault = f" names the view {name!r}, but the views are {', '.join(names)}"
            raise SettingError(Setting("reduction"), fault)


def with_new_words(
    front_end: FrontEnd, values: Values, novel: NDArray[np.bool_], known: NDArray[np.floating[Any]]
) -> FrontEnd:
    """The front end that tells novel rows by their new words; itself where they have none.

    Their words are summed with the weights of their first singular vector, times what makes this sum as long, on
    average, as the new words of a row are: the one direction stands for all of them. Values are rows of a view of
    words, of which some are novel, and `known` are reduced rows of other samples.
    """
    if front_end.how != "words" or not novel.any() or not len(known):
        return front_end
    fresh = ((front_end.high <= 0) & ~front_end.axes.any(axis=1)).astype(np.float64)

    def parts() -> Iterator[Values]:
        return (times_columns(front_end.transform.apply(part), fresh) for part in parts_of(values, novel))

    found = fit_components(parts, 1, centred=False)
    loadings = found.axes[:, 0] / np.sqrt(found.kept)
    rows = known.astype(np.float64)
    least_used = np.linalg.eigh(rows.T @ rows)[1][:, 0]  # the direction along which known rows are shortest
    least_used = -least_used if rows.mean(axis=0) @ least_used > 0 else least_used  # and away from their mean
    axes = front_end.axes + np.outer(loadings, least_used)
    return replace(front_end, axes=axes.astype(np.float32))
