"""Hints: the classes of some samples, which are known before the fit; those of all others are not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.categories import is_nothing
from viewfuse.data.input_types import has_row_labels, id_key, only_counted
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.utils.console import warn

UNKNOWN = -1
_NO_CLASS = ("-1", "-1.0", "None", "<NA>", "NaT", "?")
"""How labels are written that stand for none, besides empty cells: -1 in scikit-learn, a question mark in tables, the
others in pandas."""


@dataclass(frozen=True)
class Hints:
    """The classes of some samples: their names, in order of the numbers of their clusters, and per sample the number.

    `codes`, of shape (samples,), are UNKNOWN where nothing is known.
    """

    classes: tuple[str, ...]
    codes: NDArray[np.int64]

    @classmethod
    def of(cls, y: Any, ids: NDArray[Any]) -> Hints | None:
        """Read labels of any type, see `labels_of`; -1, None, NaN or empty where unknown. None without any."""
        if y is None:
            return None
        names = labels_of(y, ids, "y")
        classes = sorted({name for name in names if name}, key=_natural)
        if not classes:
            return None
        if all(names) and len(classes) < len(names):
            what = "y has the label of every sample, and the fit learns them all: a score against them means nothing"
            warn(
                SuspiciousDataWarning(f"{what}; leave y out, or give the labels that you would know, and -1 elsewhere")
            )
        place = {name: code for code, name in enumerate(classes)}
        return cls(tuple(classes), np.array([place.get(name, UNKNOWN) for name in names], dtype=np.int64))

    def __len__(self) -> int:
        return int((self.codes != UNKNOWN).sum())

    def take(self, rows: NDArray[np.int64]) -> Hints:
        """Those of some samples; all classes keep their numbers."""
        return Hints(self.classes, self.codes[rows])

    def by_class(self, ids: NDArray[Any]) -> dict[str, list[str]]:
        """Per class the ids of its samples, as text."""
        return {name: [str(ids[i]) for i in np.flatnonzero(self.codes == c)] for c, name in enumerate(self.classes)}

    def digest(self) -> str:
        """A checksum of all of them."""
        return digest(repr(self.classes).encode(), self.codes.tobytes())

    @classmethod
    def from_classes(cls, known: Mapping[str, Sequence[str]], ids: NDArray[Any]) -> Hints:
        """The reverse of `by_class`, for samples some of which may be gone."""
        place = {name: c for c, names in enumerate(known.values()) for name in names}
        return cls(tuple(known), np.array([place.get(str(one), UNKNOWN) for one in ids.tolist()], dtype=np.int64))


def digest(*parts: bytes) -> str:
    """A checksum of bytes."""
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def labels_of(given: Any, ids: NDArray[Any], what: str) -> list[str]:
    """One text per sample, empty where none is known, from a sequence, or by id from a mapping or a pandas Series."""
    if hasattr(given, "iloc") and np.ndim(given) == 2 and given.shape[1] == 1:
        given = given.iloc[:, 0]  # with its index of ids
    if (listed := by_id(given, ids, what)) is None:
        found = [one[0] if np.shape(one) == (1,) else one for one in np.atleast_1d(as_objects(given)).tolist()]
        cure = "give one label per sample, -1 where it is not known"
        if any(np.ndim(one) for one in found):
            raise DataError(f"{what} holds lists instead of labels; {cure}")
        if len(found) != len(ids):
            raise DataError(f"{what} has {len(found):,} labels for {len(ids):,} samples; {cure}")
        return [_written(one) for one in found]
    samples = list(map(key_of(ids), ids.tolist()))
    named = [name for name, label in listed.items() if _written(label)]
    known = set(samples)
    strange = [name for name in named if name not in known]
    if strange and len(strange) == len(named):
        raise DataError(f"{what} is about no sample: {strange[0]!r} is no id, but {str(ids[0])!r} is; write ids alike")
    if strange:
        such = f"{len(strange)} labels of {what}, such as that of {strange[0]!r}, are about no sample"
        warn(SuspiciousDataWarning(such))
    return [_written(listed.get(one)) for one in samples]


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers in their own order, before text."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


def _written(label: Any) -> str:
    """A label as text, empty where it stands for none; 2.0 is 2, as a column of integers with gaps has floats."""
    if isinstance(label, (float, np.floating)) and float(label).is_integer():
        label = int(label)
    text = id_key(label.decode("utf-8", "replace") if isinstance(label, bytes) else label)
    return "" if is_unknown(text) else text


def is_unknown(text: str) -> bool:
    """Whether a label stands for none: as an empty cell, but "none" may well be a class."""
    return text in _NO_CLASS or (is_nothing(text) and text.strip().lower() != "none")


def as_objects(given: Any) -> NDArray[np.object_]:
    """Values as they were given, in an array; NaN for what a masked array hides."""
    shown = np.ma.filled(given.astype(object), np.nan) if isinstance(given, np.ma.MaskedArray) else given
    return np.asarray(shown, dtype=object)


def by_id(given: Any, ids: NDArray[Any], what: str) -> dict[str, Any] | None:
    """By `key_of` the values of a mapping, or of a pandas Series beside samples with ids; None of what is in order."""
    is_series = hasattr(given, "iloc") and np.ndim(given) == 1
    if not isinstance(given, Mapping) and not (is_series and has_row_labels(given) and not only_counted(ids)):
        if is_series:
            _warn_of_order(given.index.tolist(), ids.tolist(), what)
        return None
    listed: dict[str, Any] = {}
    key = key_of(ids)
    for name, value in given.items():
        if key(name) in listed:
            raise DataError(f"{what} names the id {key(name)!r} twice; keep one")
        listed[key(name)] = value
    return listed


def _warn_of_order(index: list[Hashable], ids: list[Hashable], what: str) -> None:
    """Warn where what is taken in order has the ids of the samples as index, but in another order."""
    if index != ids and len(index) == len(ids) and set(index) == set(ids):
        fault = f"{what} is taken in its order, though its index has the ids of the samples in another one"
        cure = f"give {what}.to_numpy() if that is meant, else put it into the order of the samples"
        warn(SuspiciousDataWarning(f"{fault}; {cure}"))


def key_of(ids: NDArray[Any]) -> Callable[[Hashable], str]:
    """What ids are compared by: as files have them, or as they are where two of the samples would be one."""
    return id_key if len(set(map(id_key, ids.tolist()))) == len(ids) else str
