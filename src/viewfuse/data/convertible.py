"""What NumPy may be asked to make an array of: anything else it would take apart cell by cell, for minutes or hours."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from numbers import Number
from typing import Any

from viewfuse.errors import DataError

_DEEPEST = 3
_OF_CELLS = (str, bytes, range, array, memoryview, Number)
"""Besides what has `__array__`, NumPy knows what to do with these."""


def check_convertible(name: str, view: Any) -> None:
    """Refuse a view that is no array, frame or list of rows, or a list that holds something else than rows of cells."""
    if not isinstance(view, (list, tuple)):
        if not _is_array(type(view)) and not issubclass(type(view), (array, memoryview, Number)):
            raise DataError(f"view {name!r} is a {type(view).__name__}, which is no table; {_cure(view)}")
        return
    lists: list[Sequence[Any]] = [view]
    for _ in range(_DEEPEST):
        kinds = {kind for one in lists for kind in set(map(type, one))}
        for kind in kinds:
            if _is_container(kind):
                raise DataError(f"view {name!r} is a list that holds {kind.__name__} objects; {_cure(None)}")
        nested = any(issubclass(kind, (list, tuple)) for kind in kinds)
        lists = [cell for one in lists for cell in one if isinstance(cell, (list, tuple))] if nested else []
    if lists:
        raise DataError(f"view {name!r} has more than {_DEEPEST} dimensions, not 2; {_cure(None)}")


def _cure(view: Any) -> str:
    files = "; files are read by read_views" if isinstance(view, str) else ""
    return f"a view is a (samples, columns) array, data frame, sparse matrix or AnnData{files}"


def _is_array(kind: type) -> bool:
    return any(hasattr(kind, name) for name in ("__array__", "__array_interface__", "__array_struct__"))


def _is_container(kind: type) -> bool:
    """Whether it has parts, and is no row or cell."""
    has_parts = any(hasattr(kind, name) for name in ("__getitem__", "__len__", "__iter__"))
    return has_parts and not _is_array(kind) and not issubclass(kind, (list, tuple, *_OF_CELLS))
