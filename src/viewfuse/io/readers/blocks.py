"""One wide table holds several views: which columns belong to which."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from viewfuse.errors import DataError

Blocks = Mapping[str, str | Sequence[str]]
"""Per view the names of its columns, or a pattern such as "rna_*"."""


def pick_columns(path: Path, columns: Sequence[str], blocks: Blocks) -> dict[str, list[str]]:
    """Per view its columns: in the order of the file for a pattern, in that of the list for a list."""
    known = dict.fromkeys(columns)
    chosen = {view: _matching(path, known, view, wanted) for view, wanted in blocks.items()}
    owner: dict[str, str] = {}
    for view, found in chosen.items():
        for column in found:
            if column in owner:
                raise DataError(
                    f"{path}: column {column!r} belongs to blocks {owner[column]!r} and {view!r}; narrow one of them"
                )
            owner[column] = view
    return chosen


def _matching(path: Path, columns: Collection[str], view: str, wanted: str | Sequence[str]) -> list[str]:
    if isinstance(wanted, str):
        found = [column for column in columns if fnmatchcase(column, wanted)]
    else:
        absent = [column for column in wanted if column not in columns]
        if absent:
            raise DataError(
                f"{path}: block {view!r} names {absent[0]!r}, but the columns are {_some(columns)}; correct the name"
            )
        found = list(wanted)
    if not found:
        raise DataError(
            f"{path}: no column matches block {view!r} ({wanted!r}); the columns are {_some(columns)}; "
            "correct the pattern"
        )
    return found


def _some(columns: Collection[str]) -> str:
    return f"{', '.join(map(repr, islice(columns, 6)))}{', ...' if len(columns) > 6 else ''}"
