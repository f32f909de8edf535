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
    sides = _sides(views)
    if len({side.path for side in sides}) < 2:
        return
    alone = [side for side in sides if not _match(side.ids, _of_others(sides, side))]
    if not alone:
        return
    turned = [side for side in alone if _match(side.columns, _of_others(sides, side))]
    if turned:
        raise _seem_turned(turned, sides)
    pairs = [(side, other) for side in alone for other in sides if side is not other]
    alike = [pair for pair in pairs if read_alike(pair[0].ids, pair[1].ids)]
    if alike or not new_samples:
        raise _share_nothing(*(alike or pairs)[0])


def _sides(views: Sequence[FileView]) -> list[_Side]:
    """One per file: several views of one have the same ids."""
    listed = alike([list(view.ids or ()) for view in views])
    found: dict[Path, _Side] = {}
    for view, ids in zip(views, listed, strict=True):
        columns = () if isinstance(view.columns, range) else (str(name).strip() for name in view.columns)
        found.setdefault(view.path, _Side(view.name, view.path, dict.fromkeys(ids), dict.fromkeys(columns)))
    return list(found.values())


def _of_others(sides: Sequence[_Side], own: _Side) -> Names:
    return {name: None for side in sides if side is not own for name in side.ids}


def _common(one: Names, other: Names) -> int:
    return len(one.keys() & other.keys())


def _match(one: Names, other: Names) -> bool:
    """Whether two sets of names share some, and not hardly any."""
    common = _common(one, other)
    return common > 0 and common >= min(_FEW, _SHARE * min(len(one), len(other)))


def _seem_turned(turned: Sequence[_Side], sides: Sequence[_Side]) -> DataError:
    first = turned[0]
    common = _common(first.columns, _of_others(sides, first))
    return DataError(
        f"{first.path}: {common:,} of the names of its {len(first.columns):,} columns are ids in another file, so its "
        "samples seem to stand in columns; ",
        Setting("transpose", [side.view for side in turned]),
        " reads it the other way round",
    )


def _share_nothing(one: _Side, other: _Side) -> DataError:
    common = _common(one.ids, other.ids)
    shared = f"{common:,} of {min(len(one.ids), len(other.ids)):,} ids" if common else "no id"
    columns = _common(one.columns, other.columns)
    alike = f" (but {columns:,} names of columns)" if columns and _match(one.columns, other.columns) else ""
    cure: tuple[str | Setting, ...] = ("spell them alike in all files",)
    spelled = read_alike(one.ids, other.ids)
    if spelled:
        cure = (in_words(spelled, one.view, other.view),)
    elif alike:
        turned = Setting("transpose", [one.view, other.view])
        cure = "if samples stand in columns, use ", turned, "; if the files have other samples, join them into one"
    return DataError(
        f"{one.path} and {other.path} share {shared}{alike}: {_alone(one, other)} against {_alone(other, one)}; ",
        *cure,
        "; if they are meant to be apart, use ",
        Setting("allow_disjoint", True),
    )


def _alone(one: _Side, other: _Side) -> str:
    """Ids of one that the other lacks."""
    return some([name for name in one.ids if name not in other.ids])
