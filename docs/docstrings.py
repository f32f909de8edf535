"""Docstrings of this project as reStructuredText, for `conf.py`.

They are numpy's, with one freedom: ``name : words`` may go on in the next line, where numpy has a type and a body.
"""

from __future__ import annotations

import re
from itertools import pairwise

LISTS = ("Parameters", "Attributes", "Returns")


def convert(app, what, name, obj, options, lines: list[str]) -> None:
    """What Sphinx calls for each docstring; `lines` are changed in place."""
    lines[:] = [line for title, body in sections(lines) for line in written(title, body)]


def sections(lines: list[str]) -> list[tuple[str, list[str]]]:
    """The text before the first section under no title, then title and lines of each."""
    starts = [number for number, (_, below) in enumerate(pairwise(lines)) if re.fullmatch("-{3,}", below)]
    found = [("", lines[: starts[0] if starts else len(lines)])]
    for start, end in pairwise([*starts, len(lines)]):
        found.append((lines[start], lines[start + 2 : end]))
    return found


def written(title: str, body: list[str]) -> list[str]:
    """A section as text, a field or a rubric."""
    if not title:
        return [*body, ""]
    if title not in LISTS:
        return [f".. rubric:: {title}", "", *body, ""]
    if title == "Returns" and not any(line.startswith(" ") or " : " in line for line in body):
        return [":Returns:", *(f"    {line}" for line in body), ""]
    return [f":{title}:", *(f"    {line}" for one in items(body) for line in entry(*one)), ""]


def items(body: list[str]) -> list[tuple[str, list[str]]]:
    """First line and further lines, without their indentation, of each item."""
    found: list[tuple[str, list[str]]] = []
    for line in body:
        if line.startswith(" ") or not line:
            found[-1][1].append(line[4:])
        else:
            found.append((line, []))
    return found


def entry(first: str, rest: list[str]) -> list[str]:
    """An item of a definition list. Words that go on in the next line are no type."""
    name, _, words = first.partition(" : ")
    is_type = bool(rest and re.match(r"[A-Z]|- ", rest[0])) and not words.endswith(".")
    if is_type:
        return [f"**{name}**" + (f" : {words}" if words else ""), *_indented(rest), ""]
    return [f"**{name.removesuffix(' :')}**", *_indented([words, *rest] if words else rest), ""]


def _indented(lines: list[str]) -> list[str]:
    """Lines below a term; a list in them begins after an empty line."""
    found: list[str] = []
    for before, line in pairwise(["", *lines]):
        if line.startswith("- ") and not before.startswith(("- ", "  ")):
            found.append("")
        found.append(f"    {line}" if line else "")
    return found
