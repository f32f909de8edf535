"""In which formats pictures are written, how large, and in colours and markers that tell many groups apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMATS = ("png", "svg", "pdf")
COLUMN_WIDTHS = {1: 3.5, 2: 7.2}
"""Inches of a figure that is one or two columns of a journal wide."""


class PictureStyle(NamedTuple):
    """How pictures are written."""

    formats: tuple[str, ...] = ("png",)  # some of `FORMATS`
    columns: int = 0  # 1 or 2, of a journal; 0 is for screens


ON_SCREEN = PictureStyle()


_FIRST = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000")
"""Okabe and Ito's colours but yellow, which is hard to see on white."""
_FIRST_ON_DARK = ("#2f8fdc", "#e69f00", "#00b585", "#e8742c", "#d98cb8", "#8fd0f5", "#ffffff")
"""The same for a dark ground, in the same order: none of them is lost there."""
MARKERS = ("s", "^", "D", "v", "P", "X")
"""Besides the dot."""
_STEPS = 12
"""Levels of red, green and blue that further colours are chosen from."""
_LIGHTNESS, _LIGHTNESS_ON_DARK = (0.3, 0.8), (0.5, 0.95)
"""Of colours that are seen on white and are not taken for black, and the other way round."""
_VISIONS = np.array(
    [
        np.eye(3),
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    ]
)
"""What normal eyes, and those without red or green cones, see of linear red, green and blue (Machado et al., 2009)."""
_TO_CONES = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
_TO_OKLAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip
"""Björn Ottosson's Oklab, in which equal distances look about equally large."""


def distinct_colors(n: int, *, on_dark: bool = False) -> NDArray[np.float64]:
    """Colours of shape (n, 3) from 0 to 1, each far from those before it for all readers; none twice."""
    chosen = [np.array([*bytes.fromhex(text[1:])]) / 255 for text in (_FIRST_ON_DARK if on_dark else _FIRST)]
    darkest, lightest = _LIGHTNESS_ON_DARK if on_dark else _LIGHTNESS
    levels = np.linspace(0, 1, _STEPS)
    grid = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1).reshape(-1, 3)
    seen = seen_by_all(grid)
    candidates = grid[(seen[0, :, 0] > darkest) & (seen[0, :, 0] < lightest)]
    seen, nearest = seen_by_all(candidates), np.full(len(candidates), np.inf)
    for number in range(max(n, len(chosen)) - 1):
        apart = np.linalg.norm(seen - seen_by_all(chosen[number][None]), axis=2)
        nearest = np.minimum(nearest, apart.min(axis=0))  # to those who see the least difference
        if number + 1 >= len(chosen):
            chosen.append(candidates[int(nearest.argmax())])
    return np.array(chosen[:n])


def as_hex(color: NDArray[np.float64]) -> str:
    """A colour as the web writes it."""
    return "#" + "".join(f"{round(255 * float(part)):02x}" for part in color)


def distinct_markers(n: int) -> list[str]:
    """A marker for each of n groups: dots for the first seven; those whose colours are nearer to others take turns."""
    return ["o" if group < len(_FIRST) else MARKERS[group % len(MARKERS)] for group in range(n)]


def seen_by_all(colors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Oklab coordinates of colours of shape (n, 3) for three kinds of eyes; of shape (3, n, 3)."""
    linear = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ _VISIONS.transpose(0, 2, 1), 0, 1)
    return np.cbrt(seen @ _TO_CONES.T) @ _TO_OKLAB.T
