"""Parameters that messages name: messages hold them as objects, and spell them when they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from viewfuse.errors import DataError, SettingError


@dataclass(frozen=True)
class Setting:
    """A parameter, or another name that not all readers have: `str` spells it as in Python, ``n_init=3``."""

    name: str
    value: Any = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"


class Field(Setting):
    """A parameter of the network or its training: in Python ``config=Config(joint_epochs=0)``."""

    def __str__(self) -> str:
        return f"config=Config({super().__str__()})"


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


def check_choice(name: str, given: Any, choices: Sequence[str]) -> None:
    """Refuse what is none of the words that a parameter may be."""
    if not isinstance(given, str) or given not in choices:
        raise wrong(name, f"one of {', '.join(choices)}", given)


def checked_count(name: str, given: Any, least: int = 1, *, auto: int | None = None) -> int:
    """A whole number of at least `least`; "auto" stands for the number `auto`, where there is one."""
    if auto is not None and isinstance(given, str) and given == "auto":
        return auto
    if not isinstance(given, Integral) or isinstance(given, bool) or int(given) < least:
        raise wrong(name, f"{'' if auto is None else repr('auto') + ' or '}an integer of at least {least}", given)
    return int(given)


def spelled(message: object, spell: Spell) -> str:
    """An error, a warning or a text, with its parameters as the reader writes them."""
    text = ""
    for part in message if isinstance(message, Advice) else getattr(message, "parts", (str(message),)):
        if isinstance(part, Setting):
            text += written(part, spell)
        elif not isinstance(part, Advice):
            text += str(part)
        elif not any(isinstance(one, Setting) and spell(one) is None for one in part):
            text += spelled(part, spell)
    return text


def written(setting: Setting, spell: Spell) -> str:
    """A parameter as the reader writes it, and as in Python where there is no such parameter."""
    return spell(setting) or str(setting)


def named_values(what: str, texts: Sequence[str]) -> dict[str, str] | None:
    """NAME=VALUE, several times, as a dict; None without any. `what` errors speak of."""
    found = dict(text.partition("=")[::2] for text in texts)
    wrong = [text for text in texts if not all(text.partition("="))]
    if wrong or len(found) < len(texts):
        raise DataError(f"{what} {(wrong or list(texts))[0]!r}: write NAME=VALUE, each name once")
    return found or None


def checked_range(within: Any) -> tuple[int, int]:
    """Two whole numbers, the first at least 1 and not above the second."""
    is_pair = isinstance(within, Sequence) and not isinstance(within, str) and len(within) == 2
    if not is_pair or any(isinstance(one, bool) or not hasattr(one, "__index__") for one in within):
        raise wrong("cluster_range", "two whole numbers, such as (2, 30)", within)
    least, most = int(within[0]), int(within[1])
    if not 1 <= least <= most or most < 2:
        raise SettingError(Setting("cluster_range"), f" must rise from 1 or more to 2 or more; got {within!r}")
    return least, most
