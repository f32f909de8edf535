"""Which of several trainings to keep, without labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score


def most_typical(labels: Sequence[NDArray[np.int64]], objectives: Sequence[float]) -> int:
    """The training that agrees most with the others; the lower loss decides where that says nothing.

    Trainings that went astray go astray each in its own way, so agreement tells them; their loss does not. Agreement is
    the adjusted Rand index with each of the others, on average.

    Parameters
    ----------
    labels : per training an int array of shape (samples,)
    objectives : per training the loss of its last epoch
    """
    agreement = np.zeros(len(labels))
    for one in range(len(labels)):
        for other in range(one):
            index = adjusted_rand_score(labels[one], labels[other])
            agreement[one] += index
            agreement[other] += index
    return min(range(len(labels)), key=lambda one: (-round(float(agreement[one]), 9), objectives[one]))
