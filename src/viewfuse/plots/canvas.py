"""Figures that are drawn into files, whatever matplotlib is set to, and why one is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from viewfuse.errors import MissingPackage, ViewfuseError
from viewfuse.utils.atomic import writing
from viewfuse.utils.optional import how_to_install

_SETTINGS: Any = {
    "text.usetex": False,  # a matplotlibrc may ask for LaTeX where there is none
    "svg.hashsalt": "viewfuse",  # the same figure gives the same file
}


@contextmanager
def drawing(what: str) -> Iterator[Callable[..., Any]]:
    """Inside, `what` is drawn without LaTeX; gives matplotlib's class of figures, which needs no screen.

    Pyplot and its backend, which are the user's in notebooks, are not touched.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackage(f"{what} are drawn by matplotlib; {how_to_install('matplotlib', 'plot')}") from None
    with matplotlib.rc_context(_SETTINGS):
        yield Figure


@contextmanager
def picture(path: Path, what: str, size: tuple[float, float], dpi: int = 120) -> Iterator[Any]:
    """A figure of `size` in inches, to draw one of `what` on; afterwards it is a PNG file."""
    with drawing(what) as new_figure:
        figure = new_figure(figsize=size, layout="constrained")
        yield figure
        with writing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=dpi)


def why_not_drawn(draw: Callable[..., object], *given: Any, **named: Any) -> str | None:
    """Draw a picture, which is never worth the results beside it: why it is not there, None where it is."""
    try:
        draw(*given, **named)
    except ViewfuseError as error:
        return str(error)
    except Exception as error:  # whatever matplotlib, its settings and its fonts are up to
        return f"matplotlib failed ({type(error).__name__}: {error}); check its settings"
    return None
