"""Ids and names of columns in a manifest: whatever pandas uses as labels comes back equal, or is refused in time.

Text and numbers stand there as they are, and tuples as lists; all else as an object with one key, its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from viewfuse.data.views import Views
from viewfuse.errors import DataError

_PLAIN = (str, bool, int, float, type(None))
_PLAIN_OF_NUMPY = (np.str_, np.bool_, np.integer, np.float16, np.float32, np.float64)
"""Complex and longer numbers are none that JSON has."""


def encode(names: Iterable[Hashable]) -> list[Any]:
    """Names as JSON can hold them; a TypeError names one that it cannot."""
    if isinstance(names, np.ndarray) and names.dtype.kind not in "mM":
        names = names.tolist()
    return [name if type(name) in _PLAIN else _encoded(name) for name in names]


def decode(names: Iterable[Any]) -> list[Hashable]:
    """The names again."""
    return [_decoded(name) if isinstance(name, (list, dict)) else name for name in names]


def check_storable(what: str, names: Iterable[Hashable]) -> None:
    """Refuse names that would not come back equal from a saved model, before hours of training."""
    if isinstance(names, range):
        return
    odd = [name for name in names if type(name) not in _PLAIN and not isinstance(name, _PLAIN_OF_NUMPY)]
    for name in odd:
        try:
            fine = _same(_decoded(_encoded(name)), name)
        except Exception:  # whatever a user's own class does
            fine = False
        if not fine:
            raise DataError(
                f"{what} such as {name!r} ({type(name).__name__}) cannot be saved with a model; use text instead, in "
                "pandas astype(str)"
            )


def _same(one: Any, other: Any) -> bool:
    """Whether names are equal; those of several levels may lack some, and what is missing equals itself."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return (type(one) is type(other) and (bool(one == other) or (one != one and other != other))) or one is other


def _encoded(name: Any) -> Any:
    if isinstance(name, (np.datetime64, np.timedelta64)):
        return {name.dtype.str[1:]: int(name.astype(np.int64))}
    if isinstance(name, np.generic):
        name = name.item()
    if type(name) in _PLAIN:
        return name
    if isinstance(name, tuple):
        return [_encoded(part) for part in name]
    kind = type(name).__name__
    if kind not in _WAYS:
        raise TypeError(f"{name!r} ({kind}) cannot be saved with a model; use text instead")
    return {kind: _WAYS[kind][0](name)}


def _decoded(name: Any) -> Any:
    if isinstance(name, list):
        return tuple(_decoded(part) for part in name)
    if not isinstance(name, dict):
        return name
    ((kind, value),) = name.items()
    if kind in _WAYS:
        return _WAYS[kind][1](value)
    dtype = np.dtype(kind)
    if dtype.kind not in "mM":
        raise ValueError(f"a name of the unknown kind {kind!r}")
    return np.int64(value).view(np.dtype(f"={kind}"))


def _timestamp(value: Sequence[Any]) -> Any:
    from pandas import Timestamp

    when, unit, zone = value
    found = Timestamp(when).as_unit(unit)
    return found if zone is None else found.tz_localize("UTC").tz_convert(zone)


def _timestamp_facts(when: Any) -> list[Any]:
    plain = when if when.tz is None else when.tz_convert("UTC").tz_localize(None)
    return [plain.isoformat(), when.unit, None if when.tz is None else str(when.tz)]


def _timedelta(value: Sequence[Any]) -> Any:
    from pandas import Timedelta

    return Timedelta(value[0]).as_unit(value[1])


def _interval(value: Sequence[Any]) -> Any:
    from pandas import Interval

    return Interval(_decoded(value[0]), _decoded(value[1]), value[2])


def _period(value: Sequence[str]) -> Any:
    from pandas import Period

    return Period(value[0], freq=value[1])


def _nothing(value: str) -> Any:
    import pandas

    return {"NaT": pandas.NaT, "NA": pandas.NA}[value]


_WAYS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bytes": (bytes.hex, bytes.fromhex),
    "Decimal": (str, Decimal),
    "UUID": (str, UUID),
    "datetime": (datetime.isoformat, datetime.fromisoformat),
    "date": (date.isoformat, date.fromisoformat),
    "time": (time_of_day.isoformat, time_of_day.fromisoformat),
    "timedelta": (lambda d: [d.days, d.seconds, d.microseconds], lambda v: timedelta(*v)),
    "Timestamp": (_timestamp_facts, _timestamp),
    "Timedelta": (lambda d: [d.isoformat(), d.unit], _timedelta),
    "Interval": (lambda i: [_encoded(i.left), _encoded(i.right), i.closed], _interval),
    "Period": (lambda p: [str(p), p.freqstr], _period),
    "NaTType": (lambda _: "NaT", _nothing),
    "NAType": (lambda _: "NA", _nothing),
    "frozenset": (lambda s: [_encoded(part) for part in s], lambda v: frozenset(map(_decoded, v))),
}
"""Per kind of name how it is written, and how it is read again."""


def check_names(views: Views) -> None:
    """Refuse ids and names of columns that could not be saved."""
    check_storable("ids", views.ids)
    for name, columns in zip(views.names, views.columns, strict=True):
        check_storable(f"names of columns of view {name!r}", columns)
