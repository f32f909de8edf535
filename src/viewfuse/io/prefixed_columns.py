"""Wide tables whose columns are called VIEW.COLUMN, as `fit-large` takes them: each view by itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from viewfuse.io.source import FileSource, FileView


def split_by_prefix(source: FileSource, names: Collection[str]) -> FileSource:
    """The views of one wide table; anything else as it is.

    Only views that are known are looked for, as dots are common in names of columns, such as those of genes.

    Parameters
    ----------
    names : views of a model
    """
    (table, *others) = source.views
    heads = [str(column).partition(".") for column in table.columns]
    if others or table.name in names or not all(dot and view in names for view, dot, _ in heads):
        return source
    places = {name: [i for i, (view, *_) in enumerate(heads) if view == name] for name in names}
    parts = [_part(table, name, own) for name, own in places.items() if own]
    return FileSource(parts, ids=source.ids, order=source.ids.tolist(), labels=source.labels)


def _part(table: FileView, name: str, places: Sequence[int]) -> FileView:
    """One view of the table; of columns side by side nothing is copied."""
    first, last = places[0], places[-1] + 1
    chosen: Any = slice(first, last) if last - first == len(places) else list(places)
    columns = [table.columns[i] for i in places]
    return replace(table, name=name, values=table.values[:, chosen], columns=columns)
