"""Pages from the templates in `assets`; jinja2 escapes whatever comes from the data."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from viewfuse.plots.style import distinct_markers
from viewfuse.report.tables import count, mean_in_words, percent

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

CORNERS = {
    "s": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
    "^": ((0, -5), (4.5, 4), (-4.5, 4)),
    "v": ((0, 5), (4.5, -4), (-4.5, -4)),
    "D": ((0, -5), (5, 0), (0, 5), (-5, 0)),
    "P": ((-2, -5), (2, -5), (2, -2), (5, -2), (5, 2), (2, 2), (2, 5), (-2, 5), (-2, 2), (-5, 2), (-5, -2), (-2, -2)),
    "X": ((-5, -3), (-3, -5), (0, -2), (3, -5), (5, -3), (2, 0), (5, 3), (3, 5), (0, 2), (-3, 5), (-5, 3), (-2, 0)),
}
"""Marks under matplotlib's names; any other is a dot."""


def asset(name: str) -> str:
    """The text of a file in `assets`."""
    return (resources.files("viewfuse.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def templates() -> Environment:
    """The templates, with what they need besides their values."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # only where a page is made

    found = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {"percent": percent, "counted": count}
    found.globals |= {"corners": _corners, "difference_span": difference_span, "mean_in_words": mean_in_words}
    return found


def filled(name: str, **values: Any) -> Markup:
    """A template with these values."""
    from markupsafe import Markup

    return Markup(templates().get_template(name).render(values))


def _corners(label: int) -> str:
    """The mark of a cluster as points of SVG; empty for a dot."""
    return " ".join(f"{x},{y}" for x, y in CORNERS.get(distinct_markers(label + 1)[label], ()))


def difference_span(value: float, most: float) -> tuple[float, float]:
    """Where a bar begins and its length, of 100: to the right of the middle for more, to the left for less."""
    length = 50 * min(abs(value) / most, 1)
    start = 50 if value > 0 else 50 - length
    return start, length
