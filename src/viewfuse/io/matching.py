"""Ids of several tables: the part of them that counts, and whether they belong together, before they are joined."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from viewfuse.data.alignment import in_words, read_alike
from viewfuse.errors import DataError, SettingError
from viewfuse.io.safety import computing_limit
from viewfuse.io.source import FileView, alike
from viewfuse.utils.console import some
from viewfuse.utils.settings import Setting

_FEW, _SHARE = 20, 0.05
"""Fewer common ids than this number, and than this share of the smaller table, are hardly any."""
_SECONDS = 10.0
"""Of computing for the ids of a file: ten million are matched in less, and (a+)+$ may take years for a single one."""
Names = dict[Hashable, None]
"""A set that keeps its order, so that examples are the first ones."""


class _Side(NamedTuple):
    """A table: the names of its rows and of its columns, as text; columns with numbers only have none."""

    view: str
    path: Path
    ids: Names
    columns: Names


def with_pattern(view: FileView, pattern: str | None) -> FileView:
    """The view with the part of each id that a pattern matches: its first group, or all of it."""
    if pattern is None:
        return view
    asked = Setting("id_pattern"), f" {pattern!r} "
    try:
        with computing_limit(_SECONDS):
            found = [re.search(pattern, str(name)) for name in view.ids or ()]
    except (re.error, OverflowError, RecursionError, TypeError) as error:
        raise SettingError(*asked, f"is no regular expression ({error})") from None
    except TimeoutError:
        slow = f"was not compared with the ids of {view.path} in {_SECONDS:g} s of computing"
        raise SettingError(*asked, f"{slow}; give one without repetitions inside of repetitions") from None
    for name, one in zip(view.ids or (), found, strict=True):
        if one is None:
            raise DataError(f"{view.path}: id {name!r} does not match ", Setting("id_pattern"), f" {pattern!r}")
    return replace(view, ids=[one[min(1, one.re.groups)] for one in found if one is not None])


def check_matching(views: Sequence[FileView], *, new_samples: bool = False) -> None:
    """Refuse tables whose ids never or hardly match those of any other table.

    Where the names of a table's columns are ids of others, its samples seem to stand in columns. Those of new samples
    may be apart, unless they are spelled otherwise.
    """
    sides: dict[Path, _Side] = {}  # one per file: several views of one have the same ids
    for view, ids in zip(views, alike([list(view.ids or ()) for view in views]), strict=True):
        columns = () if isinstance(view.columns, range) else (str(name).strip() for name in view.columns)
        sides.setdefault(view.path, _Side(view.name, view.path, dict.fromkeys(ids), dict.fromkeys(columns)))

    def others(own: _Side) -> Names:
        return {name: None for side in sides.values() if side is not own for name in side.ids}

    alone = [side for side in sides.values() if not _match(side.ids, others(side))]
    if len(sides) < 2 or not alone:
        return
    turned = [side for side in alone if _match(side.columns, others(side))]
    if turned:
        first = turned[0]
        common = len(first.columns.keys() & others(first).keys())
        raise DataError(
            f"{first.path}: {common:,} of the names of its {len(first.columns):,} columns are ids in another file, so "
            "its samples seem to stand in columns; ",
            Setting("transpose", [side.view for side in turned]),
            " reads it the other way round",
        )
    pairs = [(side, other) for side in alone for other in sides.values() if side is not other]
    spelled = [pair for pair in pairs if read_alike(pair[0].ids, pair[1].ids)]
    if spelled or not new_samples:
        raise _share_nothing(*(spelled or pairs)[0])


def _match(one: Names, other: Names) -> bool:
    """Whether two sets of names share some, and not hardly any."""
    common = len(one.keys() & other.keys())
    return common > 0 and common >= min(_FEW, _SHARE * min(len(one), len(other)))


def _share_nothing(one: _Side, other: _Side) -> DataError:
    common = len(one.ids.keys() & other.ids.keys())
    shared = f"{common:,} of {min(len(one.ids), len(other.ids)):,} ids" if common else "no id"
    columns = len(one.columns.keys() & other.columns.keys())
    alike = f" (but {columns:,} names of columns)" if columns and _match(one.columns, other.columns) else ""
    mine, theirs = (some([name for name in a.ids if name not in b.ids]) for a, b in ((one, other), (other, one)))
    cure: tuple[str | Setting, ...] = ("spell them alike in all files",)
    spelled = read_alike(one.ids, other.ids)
    if spelled:
        cure = (in_words(spelled, one.view, other.view),)
    elif alike:
        turned = Setting("transpose", [one.view, other.view])
        cure = "if samples stand in columns, use ", turned, "; if the files have other samples, join them into one"
    return DataError(
        f"{one.path} and {other.path} share {shared}{alike}: {mine} against {theirs}; ",
        *cure,
        "; if they are meant to be apart, use ",
        Setting("allow_disjoint", True),
    )
