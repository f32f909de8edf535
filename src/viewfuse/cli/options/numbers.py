"""Numbers on the command line, in plain digits, and parameters that messages name, spelled as options.

Python itself also takes 1_0 for ten, and digits of other scripts.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from viewfuse.data.digits import is_number
from viewfuse.utils.settings import Setting, Spell


class _InPlainDigits(click.ParamType):  # type: ignore[type-arg]
    """What the kinds of numbers below have in common."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that text says."""
        try:
            _number_or_text(float, value)
        except ValueError:
            self.fail(f"{value!r} is not in plain digits", param, ctx)
        return super().convert(value, param, ctx)


class Whole(_InPlainDigits, click.types.IntParamType):
    """A whole number."""


class WholeRange(_InPlainDigits, click.IntRange):
    """A whole number within bounds."""


class Number(_InPlainDigits, click.types.FloatParamType):
    """A number."""


class NumberRange(_InPlainDigits, click.FloatRange):
    """A number within bounds, of which NaN is beyond none; it must not cost a training before it is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number that text says."""
        found = super().convert(value, param, ctx)
        return self.fail(f"{value} is no number", param, ctx) if found != found else found


def int_or_text(value: str) -> int | str:
    """Text as a whole number where it is one; the estimator says what else is wrong."""
    return _number_or_text(int, value)


def float_or_text(value: str) -> float | str:
    """Text as a number where it is one; the estimator says what else is wrong."""
    return _number_or_text(float, value)


def _number_or_text(kind: type[Any], value: Any) -> Any:
    try:
        number = kind(value)
    except ValueError:
        return value
    if not is_number(value):
        raise ValueError  # click says whose it was
    return number


def spelling(command: click.Command) -> Spell:
    """How messages of a command spell parameters: as its options."""
    options = {str(one.name): one for one in command.params if isinstance(one, click.Option)}
    options |= {"blocks": options["block"]} if "block" in options else {}

    def spelled(setting: Setting) -> str | None:
        option = options.get(setting.name)
        if option is None:
            return None
        flag, value = option.opts[0], setting.value
        if value is None:
            return flag
        if option.is_flag:
            return flag if value else (option.secondary_opts or [f"no {flag}"])[0]
        values = [f"{name}={one}" for name, one in value.items()] if isinstance(value, Mapping) else value
        values = values if isinstance(values, list) else [values]
        return " ".join(f"{flag} {shlex.quote(str(one))}" for one in values)

    return spelled
