"""Where warnings point: at the user's line that called the package, however deep inside they are raised."""

from __future__ import annotations

import sys

_INSIDE = ("viewfuse", "sklearn", "torch")


def outside() -> int:
    """The `stacklevel` of a warning that is given where this is called: the first line outside of the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    return level
