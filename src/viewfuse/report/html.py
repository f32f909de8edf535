"""HTML that is safe by construction: whatever was not made here is text, and is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any


class Html(str):
    """Markup that was made here."""


def tag(name: str, *inside: object, **attributes: Any) -> Html:
    """An element; text inside is escaped, what is None or False is left out, class_ and aria_label lose underscores."""
    written = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            own = "" if value is True else f'="{escape(str(value))}"'
            written += f" {key.rstrip('_').replace('_', '-')}{own}"
    return Html(f"<{name}{written}>{join(inside)}</{name}>")


def join(parts: Iterable[object]) -> Html:
    """Several elements and texts, one after the other."""
    return Html("".join(one if isinstance(one, Html) else escape(str(one)) for one in parts if one is not None))


def paragraphs(*sentences: object) -> Html:
    """A paragraph each."""
    return join(tag("p", sentence) for sentence in sentences if sentence)


def cell(shown: object, value: object = None, *, number: bool = False) -> Html:
    """A cell of a table; `value` is what it is sorted by, and what stands in the CSV file."""
    return tag("td", shown, class_="number" if number else None, data_value=value)


def whole(n: int) -> Html:
    """A cell with a whole number."""
    return cell(f"{n:,}", n, number=True)


def samples(names: Iterable[str], **attributes: Any) -> Html:
    """A cell with samples, which are looked up where they are pressed."""
    names = list(names)
    buttons = [tag("button", name, type="button", class_="sample", data_sample=name) for name in names]
    return tag("td", *buttons, data_value=" ".join(names), **attributes)


def note(words: str) -> Html:
    """A remark."""
    return tag("p", words, class_="note")


def unfolding(title: object, *inside: object, **attributes: Any) -> Html:
    """Something that is shown where its title is pressed."""
    return tag("details", tag("summary", title), *inside, **attributes)


def table(name: str, caption: str, header: Sequence[object], rows: Iterable[Sequence[Html]]) -> Html:
    """A table that can be sorted and saved under `name`."""
    head = tag("tr", *(tag("th", one, scope="col") for one in header))
    body = [tag("tr", *row) for row in rows]
    inside = tag("caption", caption), tag("thead", head), tag("tbody", *body)
    return tag("div", tag("table", *inside, data_name=name, class_="sortable"), class_="scroll")


def asset(name: str) -> str:
    """The text of a file in `assets`."""
    return (resources.files("viewfuse.report") / "assets" / name).read_text(encoding="utf-8")


def filled(name: str, **values: object) -> Html:
    """A template of `assets` with these values in the place of their names; text in them is escaped."""
    return Html(Template(asset(name)).substitute({key: join([value]) for key, value in values.items()}))
