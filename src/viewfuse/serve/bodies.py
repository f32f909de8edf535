"""The body of a request as Views. Its author is unknown, so everything is checked."""

from __future__ import annotations

import json
import re
import reprlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from viewfuse.data.categories import encoded_rows
from viewfuse.data.precision import is_too_small
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.io.readers import Reading, open_source
from viewfuse.serve.limits import Limits

JSON = "application/json"
PARQUET = "application/vnd.apache.parquet"
_SHAPE = 'write {"views": {"NAME": [[number, ...], ...]}, "ids": [...]}; docs/serve.md has more'
_LONG = re.compile(rb"(?<!\d)\d{1000}")
"""More digits than any float needs: Python's time for a whole number grows with the square of their count."""
_MAY_BE_SMALL = re.compile(rb"[eE]-\d{3}|0{200}")
"""What a number has that 64-bit floats can only hold as zero."""
_TOO_MANY_DIGITS = "the body has a whole number with too many digits; write it as a float"
TEMPORARY = "viewfuse-"
"""How the names of folders begin in which bodies lie."""
_BODY = "body"
"""What a table without a name would be called."""


def read_json(body: bytes | bytearray, limits: Limits, names: Sequence[str]) -> Views:
    """Samples from JSON: per view a list of rows, or an object of `columns` and `values`; null is what is missing."""
    content = _parsed(body)
    views = content.get("views") if isinstance(content, dict) else None
    if not isinstance(views, dict) or not views:
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
    """The content of JSON, in which no number is endless or would become zero, and no name stands twice."""

    def no_number(name: str) -> NoReturn:
        raise DataError(f"the body has {name}, which JSON does not know; write null for what is missing")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
            raise DataError(f"{twice!r} stands twice in one object of the body; keep one")
        return found

    def not_lost(number: str) -> float:
        if is_too_small(number):
            fault = f"the body has {reprlib.repr(number)}, which is too small for 64-bit floats, it would be 0"
            raise DataError(f"{fault}; rescale the column")
        return float(number)

    if _LONG.search(body):
        raise DataError(_TOO_MANY_DIGITS)
    try:
        parse = not_lost if _MAY_BE_SMALL.search(body) else None
        return json.loads(body, parse_constant=no_number, object_pairs_hook=once, parse_float=parse)
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
