"""One wide table holds several views: which columns belong to which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.errors import DataError

Blocks = Mapping[str, str | Sequence[str]]
"""Per view the names of its columns, or a pattern such as "rna_*"."""


def pick_columns(path: Path, columns: Sequence[str], blocks: Blocks) -> dict[str, list[str]]:
    """Per view its columns, in the order of the file."""
    chosen = {view: _matching(path, columns, view, wanted) for view, wanted in blocks.items()}
    owner: dict[str, str] = {}
    for view, found in chosen.items():
        for column in found:
            if column in owner:
                raise DataError(
                    f"{path}: column {column!r} belongs to blocks {owner[column]!r} and {view!r}; narrow one of them"
                )
            owner[column] = view
    return chosen


def _matching(path: Path, columns: Sequence[str], view: str, wanted: str | Sequence[str]) -> list[str]:
    if isinstance(wanted, str):
        found = [column for column in columns if fnmatchcase(column, wanted)]
    else:
        absent = [column for column in wanted if column not in columns]
        if absent:
            raise DataError(f"{path}: block {view!r} names {absent[0]!r}, but the columns are {_some(columns)}")
        found = list(wanted)
    if not found:
        raise DataError(f"{path}: no column matches block {view!r} ({wanted!r}); the columns are {_some(columns)}")
    return found


def _some(columns: Sequence[str]) -> str:
    return f"{', '.join(map(repr, columns[:6]))}{', ...' if len(columns) > 6 else ''}"


@dataclass(frozen=True)
class ColumnsOf:
    """Some columns of a larger table, cut out when rows are asked for."""

    table: NDArray[Any]
    columns: Sequence[int]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.table), len(self.columns)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        return np.asarray(self.table[rows][:, self.columns])
