"""Parameters that messages name, spelled when the message is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_UNSET = object()


@dataclass(frozen=True)
class Setting:
    """A parameter that a message names, with a value or without one.

    Messages hold it as an object, so that its spelling is chosen when the message is shown: `str` gives Python's,
    ``n_init=3``, and the command line has its own, ``--n-init 3``.
    """

    name: str
    value: Any = _UNSET

    @property
    def has_value(self) -> bool:
        """Whether the message names a value, too."""
        return self.value is not _UNSET

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}" if self.has_value else self.name
