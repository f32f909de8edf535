"""Sentences about Python's parameters, in the words of the command line."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping

import click

_VALUE = r"\[[^\]]*\]|\{[^}]*\}|'[^']*'|[\w+-]+(?:\.\w+)?"
_APART = r"(?<![\w./'\"\\-])"
"""What stands in quotes or in a path is somebody's name, and stays as it is."""
_OTHER_NAMES = {"blocks": "block"}
"""Parameters whose option is called otherwise."""
_PHRASES = {
    r"n_samples=(\d+) should be >= ": r"\1 samples are fewer than ",
    r"n_heads=(\d+)": r"\1, the number of attention heads",
    r"must be None, an integer from 0 to 2\*\*64 - 1 or a RandomState": "must be an integer from 0 to 2**64 - 1",
    r"must be None or ": "must be ",
    r", or a dict of these by view": ", or VIEW=HOW for each view",
    r", or predict chunk by chunk with read_chunks": "",
}
"""What only Python can do or see."""


def in_options(sentence: object, command: click.Command | None) -> str:
    """A sentence with the options of `command` for the parameters of Python: n_clusters=3 becomes --clusters 3."""
    text = str(sentence)
    for pattern, phrase in _PHRASES.items():
        text = re.sub(pattern, phrase, text)
    options = _options(command)
    if not options:
        return text
    names = "|".join(sorted(options, key=len, reverse=True))
    text = re.sub(rf"{_APART}({names})=({_VALUE})", lambda found: _written(options[found[1]], found[2]), text)
    # A name of several words can be nothing else; one of a single word may be English, but where a sentence begins.
    long = "|".join(sorted((name for name in options if "_" in name), key=len, reverse=True)) or "$^"
    begins = rf"(?:(?<=: )|(?<=; )|^)({names})(?= (?:must be|names|cut|has no meaning))"
    return re.sub(rf"{begins}|{_APART}({long})(?![\w'\"/=-]|\.\w)", lambda found: _flag(options, found), text)


def _options(command: click.Command | None) -> Mapping[str, click.Option]:
    """The options of a command by the names of their parameters."""
    params = command.params if command is not None else []
    found = {str(one.name): one for one in params if isinstance(one, click.Option)}
    return found | {name: found[own] for name, own in _OTHER_NAMES.items() if own in found}


def _flag(options: Mapping[str, click.Option], found: re.Match[str]) -> str:
    return options[found[1] or found[2]].opts[0]


def _written(option: click.Option, value: str) -> str:
    """An option with its value, as it is typed."""
    flag = option.opts[0]
    if value in ("True", "False") and option.is_flag:
        return flag if value == "True" else (option.secondary_opts or [f"no {flag}"])[0]
    values = ast.literal_eval(value) if value.startswith(("[", "{")) else [value.strip("'")]
    pairs = [f"{name}={one}" for name, one in values.items()] if isinstance(values, dict) else map(str, values)
    return " ".join(f"{flag} {shlex.quote(one)}" for one in pairs)
