"""Parameters that messages name: messages hold them as objects, and spell them when they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from viewfuse.errors import SettingError

_UNSET = ...


@dataclass(frozen=True)
class Setting:
    """A parameter, or another name that not all readers have: `str` spells it as in Python, ``n_init=3``."""

    name: str
    value: Any = _UNSET

    @property
    def has_value(self) -> bool:
        """Whether the message names a value, too."""
        return self.value is not _UNSET

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}" if self.has_value else self.name


class Advice(tuple[str | Setting, ...]):
    """Parts of a message that are left out for readers who do not have the parameter."""

    __slots__ = ()

    def __str__(self) -> str:
        return "".join(map(str, self))


Spell = Callable[[Setting], str | None]
"""How a reader writes a parameter; None where there is no such parameter."""


def wrong(name: str, wanted: str, got: object) -> SettingError:
    """The error of a parameter that has a value which it cannot have."""
    return SettingError(Setting(name), f" must be {wanted}; got {got!r}")


def spelled(message: object, spell: Spell) -> str:
    """An error, a warning or a text, with its parameters as the reader writes them."""
    return "".join(_spelled(part, spell) for part in getattr(message, "parts", (str(message),)))


def written(setting: Setting, spell: Spell) -> str:
    """A parameter as the reader writes it, and as in Python where there is no such parameter."""
    return spell(setting) or str(setting)


def _spelled(part: object, spell: Spell) -> str:
    if isinstance(part, Setting):
        return written(part, spell)
    if not isinstance(part, Advice):
        return str(part)
    unknown = any(isinstance(one, Setting) and spell(one) is None for one in part)
    return "" if unknown else "".join(_spelled(one, spell) for one in part)


def as_plain(parts: Iterable[object]) -> list[Any]:
    """The parts of a message in a form that JSON can hold."""
    return [_as_plain(part) for part in parts]


def _as_plain(part: object) -> Any:
    if isinstance(part, Advice):
        return as_plain(part)
    if isinstance(part, Setting):
        return {"name": part.name} | ({"value": part.value} if part.has_value else {})
    return str(part)


def from_plain(parts: Iterable[Any]) -> list[Any]:
    """The parts of a message from what `as_plain` made of them."""
    return [_from_plain(part) for part in parts]


def _from_plain(part: Any) -> str | Setting | Advice:
    if isinstance(part, list):
        return Advice(from_plain(part))
    return Setting(**part) if isinstance(part, dict) else str(part)
