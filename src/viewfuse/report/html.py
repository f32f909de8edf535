"""HTML that is safe by construction: whatever was not made here is text, and is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Html(str):
    """Markup that was made here."""


def tag(name: str, *inside: object, **attributes: Any) -> Html:
    """An element; text inside is escaped, what is None or False is left out, class_ and aria_label lose underscores."""
    written = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    return Html(f"<{name}{written}>{join(inside)}</{name}>")


def _attribute(key: str, value: Any) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def join(parts: Iterable[object]) -> Html:
    """Several elements and texts, one after the other."""
    return Html("".join(one if isinstance(one, Html) else escape(str(one)) for one in parts if one is not None))


def paragraphs(*sentences: object) -> Html:
    """A paragraph each."""
    return join(tag("p", sentence) for sentence in sentences if sentence)


def cell(shown: object, value: object = None, *, number: bool = False) -> Html:
    """A cell of a table; `value` is what it is sorted by, and what stands in the CSV file."""
    return tag("td", shown, class_="number" if number else None, data_value=value)


def table(name: str, caption: str, header: Sequence[object], rows: Iterable[Sequence[Html]]) -> Html:
    """A table that can be sorted and saved under `name`."""
    head = tag("tr", *(tag("th", one, scope="col") for one in header))
    body = [tag("tr", *row) for row in rows]
    inside = tag("caption", caption), tag("thead", head), tag("tbody", *body)
    return tag("div", tag("table", *inside, data_name=name, class_="sortable"), class_="scroll")
