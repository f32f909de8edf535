"""Data that come with the package.

Handwritten is the Multiple Features data set of the UCI Machine Learning Repository (R. Duin), used under
CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/), stored here as float32 in one compressed file.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

HANDWRITTEN_VIEWS = ("pixels", "fourier", "profiles", "karhunen_loeve", "zernike", "morphology")
"""What the six views of Handwritten are, in order."""


def load_handwritten() -> tuple[list[NDArray[np.float32]], NDArray[np.int64]]:
    """2000 handwritten digits in six views, 200 of each digit, in the order of the digits.

    Returns
    -------
    views : list of six float32 arrays of shape (2000, columns), of 240, 76, 216, 47, 64 and 6 columns
    labels : int64 array of shape (2000,), the digits; for scoring only
    """
    with files(__package__).joinpath("handwritten.npz").open("rb") as file, np.load(file, allow_pickle=False) as data:
        views = [data[f"view_{v}"] for v in range(len(HANDWRITTEN_VIEWS))]
        return views, data["labels"]
