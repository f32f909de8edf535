"""Limits of what the service takes, and what it says to requests beyond them."""

from __future__ import annotations

from dataclasses import dataclass

from viewfuse.errors import ViewfuseError

_FEW = {b"[": 300, b",": 30_000}
"""Lists in the body of a short request, about one per row and view, and values."""
_ROOM = 2
"""So many times more than samples of the model need may be in a body: it may have columns that the model lacks."""


class TooLarge(ViewfuseError):
    """A request that the service could answer, but does not: it, or its answer, is larger than allowed."""


class TooLong(ViewfuseError):
    """A request that was ended, since it took more time than allowed."""


class Busy(ViewfuseError):
    """All places are taken; the same request may succeed a moment later."""


@dataclass(frozen=True)
class Limits:
    """What the service takes."""

    rows: int = 10_000  # of one request
    bytes: int = 32_000_000  # of a body, of what a compressed one becomes, and of an answer, as far as that is known
    places: int = 64  # requests that wait or run at the same time; others are sent away
    seconds: float = 30.0  # of computing per request; then the process that computes is ended and replaced
    header_seconds: float = 10.0  # for a header to arrive
    body_seconds: float = 30.0
    answer_seconds: float = 60.0  # for an answer to be taken
    connections: int = 1000  # callers that are waited for; of more, the one that was waited for longest is let go

    def check_rows(self, n: int) -> None:
        """Refuse more samples than one request may have."""
        if n > self.rows:
            raise TooLarge(f"{n:,} samples are more than the {self.rows:,} of one request; send them in parts")

    def check_body(self, n: int) -> None:
        """Refuse a body that is too long, as it is or as it says that it will become."""
        if n > self.bytes:
            raise TooLarge(f"the body has more than {self.bytes:,} bytes; send the samples in parts")

    def check_answer(self, n: int) -> None:
        """Refuse a request whose answer would be too long."""
        if n > self.bytes:
            raise TooLarge(f"the answer would have about {n:,} bytes, more than {self.bytes:,}; send fewer samples")


class Signs:
    """Counts the signs of a JSON body as it arrives: what has far more than samples need would fill the memory.

    The model has `n_views` with `width` columns in all.
    """

    def __init__(self, limits: Limits, n_views: int, width: int) -> None:
        rows, names = limits.rows + 1, limits.rows + width + 100  # names may hold any sign, too
        needed = {b"[": rows * (n_views + 1), b"{": n_views, b":": 4 * n_views, b",": rows * (width + n_views + 1)}
        self._most = {sign: _ROOM * (n + names) for sign, n in needed.items()}
        self._rows, self._counts = limits.rows, dict.fromkeys(needed, 0)

    @property
    def are_few(self) -> bool:
        """Whether so far they are those of a short request."""
        return all(self._counts[sign] <= n for sign, n in _FEW.items())

    def add(self, part: bytes) -> None:
        """Count the next part, and refuse what cannot be the samples of one request."""
        for sign, most in self._most.items():
            self._counts[sign] += part.count(sign)
            if self._counts[sign] > most:
                said = f"the body has more than {most:,} times {sign.decode()!r}, far more than {self._rows:,} samples"
                raise TooLarge(f"{said} of this model need; send the samples in parts")
