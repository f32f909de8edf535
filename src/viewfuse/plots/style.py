"""In which formats pictures are written, and how large; apart, so that --help loads nothing else."""

from __future__ import annotations

from typing import NamedTuple

FORMATS = ("png", "svg", "pdf")
COLUMN_WIDTHS = {1: 3.5, 2: 7.2}
"""Inches of a figure that is one or two columns of a journal wide."""


class PictureStyle(NamedTuple):
    """How pictures are written.

    Attributes
    ----------
    formats : some of `FORMATS`
    columns : 1 or 2, of a journal; 0 is for screens
    """

    formats: tuple[str, ...] = ("png",)
    columns: int = 0


ON_SCREEN = PictureStyle()
