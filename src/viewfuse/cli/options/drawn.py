"""Options of verbs that draw pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from viewfuse.errors import SettingError
from viewfuse.plots.style import COLUMN_WIDTHS, FORMATS, PictureStyle


def pictures(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options --format and --columns as one argument, `style`."""

    @wraps(function)
    def with_style(*args: Any, formats: str, columns: str | None, **named: Any) -> Any:
        asked = tuple(dict.fromkeys(one.strip().lower() for one in formats.split(",") if one.strip()))
        unknown = [one for one in asked if one not in FORMATS]
        if unknown or not asked:
            raise SettingError(f"--format must be some of {', '.join(FORMATS)}, with commas between; got {formats!r}")
        return function(*args, **named, style=PictureStyle(asked, int(columns or 0)))

    widths = " or ".join(f"{width:g}" for width in COLUMN_WIDTHS.values())
    options = (
        click.option("--format", "formats", default="png", show_default=True, metavar="NAME,...",
                     help=f"Formats of pictures: some of {', '.join(FORMATS)}."),
        click.option("--columns", type=click.Choice([str(count) for count in COLUMN_WIDTHS]),
                     help=f"Pictures for one or two columns of a journal, {widths} inches wide; else for screens."),
    )  # fmt: skip
    for option in reversed(options):
        with_style = option(with_style)
    return with_style
