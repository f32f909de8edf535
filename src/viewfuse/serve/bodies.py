"""Limits of what is taken, and the body of a request as Views. Its author is unknown, so everything is checked."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from viewfuse.data.categories import encoded_rows
from viewfuse.data.views import Views
from viewfuse.errors import DataError, ViewfuseError
from viewfuse.io.readers import Reading, open_source

JSON = "application/json"
PARQUET = "application/vnd.apache.parquet"
_SHAPE = 'write {"views": {"NAME": [[number, ...], ...]}, "ids": [...]}; docs/serve.md has more'
_LONG = re.compile(rb"(?<!\d)\d{1000}")
"""More digits than any float needs: Python's time for a whole number grows with the square of their count."""
_TOO_MANY_DIGITS = "the body has a whole number with too many digits; write it as a float"
_FEW = {b"[": 300, b",": 30_000}
"""Lists in the body of a short request, about one per row and view, and values."""
_ROOM = 2
"""So many times more than samples of the model need may be in a body: it may have columns that the model lacks."""
TEMPORARY = "viewfuse-"
"""How the names of folders begin in which bodies lie."""
_BODY = "body"
"""What a table without a name would be called."""


class TooLarge(ViewfuseError):
    """A request that the service could answer, but does not: it, or its answer, is larger than allowed."""


class TooLong(ViewfuseError):
    """A request that was ended, since it took more time than allowed."""


class Busy(ViewfuseError):
    """All places are taken; the same request may succeed a moment later."""


@dataclass(frozen=True)
class Limits:
    """What the service takes."""

    rows: int = 10_000  # of one request
    bytes: int = 32_000_000  # of a body, of what a compressed one becomes, and of an answer, as far as that is known
    places: int = 64  # requests that wait or run at the same time; others are sent away
    seconds: float = 30.0  # of computing per request; then the process that computes is ended and replaced
    header_seconds: float = 10.0  # for a header to arrive
    body_seconds: float = 30.0
    answer_seconds: float = 60.0  # for an answer to be taken
    connections: int = 1000  # callers that are waited for; of more, the one that was waited for longest is let go

    def check_rows(self, n: int) -> None:
        """Refuse more samples than one request may have."""
        if n > self.rows:
            raise TooLarge(f"{n:,} samples are more than the {self.rows:,} of one request; send them in parts")

    def check_body(self, n: int) -> None:
        """Refuse a body that is too long, as it is or as it says that it will become."""
        if n > self.bytes:
            raise TooLarge(f"the body has more than {self.bytes:,} bytes; send the samples in parts")

    def check_answer(self, n: int) -> None:
        """Refuse a request whose answer would be too long."""
        if n > self.bytes:
            raise TooLarge(f"the answer would have about {n:,} bytes, more than {self.bytes:,}; send fewer samples")


class Signs:
    """Counts the signs of a JSON body as it arrives: what has far more than samples need would fill the memory.

    The model has `n_views` with `width` columns in all.
    """

    def __init__(self, limits: Limits, n_views: int, width: int) -> None:
        rows, names = limits.rows + 1, limits.rows + width + 100  # names may hold any sign, too
        needed = {b"[": rows * (n_views + 1), b"{": n_views, b":": 4 * n_views, b",": rows * (width + n_views + 1)}
        self._most = {sign: _ROOM * (n + names) for sign, n in needed.items()}
        self._rows, self._counts = limits.rows, dict.fromkeys(needed, 0)

    @property
    def are_few(self) -> bool:
        """Whether so far they are those of a short request."""
        return all(self._counts[sign] <= n for sign, n in _FEW.items())

    def add(self, part: bytes) -> None:
        """Count the next part, and refuse what cannot be the samples of one request."""
        for sign, most in self._most.items():
            self._counts[sign] += part.count(sign)
            if self._counts[sign] > most:
                said = f"the body has more than {most:,} times {sign.decode()!r}, far more than {self._rows:,} samples"
                raise TooLarge(f"{said} of this model need; send the samples in parts")


def read_json(body: bytes | bytearray, limits: Limits, names: Sequence[str]) -> Views:
    """Samples from JSON: per view a list of rows, or an object of `columns` and `values`; null is what is missing.

    `names` are those of the model's views.
    """
    content = _parsed(body)
    views = content.get("views") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(views, dict) or not views:
        raise DataError(f"the body names no views; {_SHAPE}")
    unknown = sorted(set(content) - {"views", "ids"})
    if unknown:
        raise DataError(f"the body has {unknown[0]!r}, which means nothing here; {_SHAPE}")
    if len(views) > len(names):
        raise DataError(f"the body has {len(views):,} views, but the model has {', '.join(names)}; give no others")
    tables = {name: _table(name, view) for name, view in views.items()}
    ids = content.get("ids")
    if ids is not None and (not isinstance(ids, list) or not all(type(one) in (str, int) for one in ids)):
        raise DataError("ids are no list of texts or whole numbers; give one per sample, or leave them out")
    counts = {name: len(rows) for name, (rows, _) in tables.items()} | ({} if ids is None else {"ids": len(ids)})
    limits.check_rows(max(counts.values()))
    if len(set(counts.values())) > 1:
        differ = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
        raise DataError(f"the numbers of samples differ ({differ}); give each view one row per sample, null for none")
    given = {name: (rows if any(rows) else None) for name, (rows, _) in tables.items()}
    if not any(given.values()):
        raise DataError("no view has a row; give at least one")
    columns = [() if given[name] is None else listed for name, (_, listed) in tables.items()]
    return Views(given, ids=ids, columns=columns, allow_disjoint=True)


def read_parquet(
    body: bytes | bytearray, limits: Limits, names: Sequence[str], view: str | None, blocks: Mapping[str, str] | None,
    id_column: str | None,
) -> Views:  # fmt: skip
    """Samples from a Parquet file: the one `view`, columns of lists, or one wide table in `blocks`.

    A process of its own parses it, whose time and memory are limited; what comes back is measured before it is used.
    `names` are those of the model's views: a table of its only one needs no name.
    """
    view = view or (names[0] if len(names) == 1 and not blocks else None)
    with TemporaryDirectory(prefix=TEMPORARY) as folder:
        path = Path(folder, f"{_BODY}.parquet")
        path.write_bytes(body)
        source = open_source(path if view is None else {view: path}, Reading(id_column=id_column, blocks=blocks))
        limits.check_rows(len(source))
        limits.check_body(sum(one.values.nbytes for one in source.views))
        views = source.read(placed=True)
    if views.names == (_BODY,) and _BODY not in names:
        listed = ", ".join(names)
        raise DataError(f"the body is one table: say which view it is with ?view=NAME; the model has {listed}")
    return views


def _parsed(body: bytes | bytearray) -> Any:
    """The content of JSON, in which no number is endless and no name stands twice."""

    def no_number(name: str) -> NoReturn:
        raise DataError(f"the body has {name}, which JSON does not know; write null for what is missing")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
            raise DataError(f"{twice!r} stands twice in one object of the body; keep one")
        return found

    if _LONG.search(body):
        raise DataError(_TOO_MANY_DIGITS)
    try:
        return json.loads(body, parse_constant=no_number, object_pairs_hook=once)
    except DataError:
        raise
    except RecursionError:
        raise DataError(f"the body is nested too deeply; {_SHAPE}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"the body is no JSON ({error}); {_SHAPE}") from None
    except ValueError:
        raise DataError(_TOO_MANY_DIGITS) from None


def _table(name: str, view: Any) -> tuple[Sequence[Sequence[Any] | None], Sequence[Hashable]]:
    """The rows of a view, None where a sample lacks it, and what its columns are called."""
    named = isinstance(view, dict)
    if named and set(view) != {"columns", "values"}:
        raise DataError(f"view {name!r} has {sorted(view)}; an object needs 'columns' and 'values', and nothing else")
    rows = view["values"] if named else view
    if not isinstance(rows, list) or not all(row is None or isinstance(row, list) for row in rows):
        raise DataError(f"view {name!r} is no list of rows; give a list of numbers per sample, null for none")
    width = max((len(row) for row in rows if row is not None), default=0)
    columns = view["columns"] if named else range(width)
    if named and not (isinstance(columns, list) and all(type(one) in (str, int) for one in columns)):
        raise DataError(f"view {name!r}: its columns are no list of names; give one text per column")
    if width and len(columns) != width:
        raise DataError(f"view {name!r} has {len(columns)} names of columns, but rows of {width} numbers; give as many")
    for r, row in enumerate(rows):
        if row is not None and any(isinstance(cell, (list, dict)) for cell in row):  # text is looked at elsewhere
            raise DataError(f"view {name!r}, row {r} holds a list or an object; give numbers, null for none")
    return encoded_rows(rows, columns) if named else (rows, columns)
