"""Labels of samples that come a few at a time, written as they come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.empty_cells import Filled
from viewfuse.data.views import Views
from viewfuse.io.writers import write_predictions


@dataclass
class Placed:
    """What was found in samples, all together.

    Attributes
    ----------
    cluster_sizes : int64 array of shape (clusters,)
    uncertain : samples with less confidence than was asked for
    out_of_range : samples far outside of what the model was fitted on
    """

    cluster_sizes: NDArray[np.int64]
    filled: Filled
    uncertain: int = 0
    out_of_range: int = 0

    def facts(self) -> dict[str, Any]:
        """In a form that JSON can hold, without what was filled."""
        sizes = self.cluster_sizes.tolist()
        counted = {"uncertain": self.uncertain, "out_of_range": self.out_of_range}
        return {"samples": sum(sizes), "cluster_sizes": sizes, **counted}


def predict_parts(fitted: Any, parts: Iterable[Views], out: Path, uncertain_below: float) -> Placed:
    """Write the labels of samples to the CSV file `out`, as a whole or not at all.

    Parameters
    ----------
    fitted : a fitted estimator
    parts : samples, a few at a time
    """
    placed = Placed(np.zeros(len(fitted.cluster_centers_), dtype=np.int64), Filled(fitted))

    def place(views: Views) -> tuple[Views, NDArray[np.float32], NDArray[np.bool_]]:
        complete = placed.filled.complete(views)
        probabilities, far = fitted.predict_proba(complete), fitted.out_of_range(complete)
        placed.cluster_sizes += np.bincount(probabilities.argmax(axis=1), minlength=len(placed.cluster_sizes))
        placed.uncertain += int((probabilities.max(axis=1) < uncertain_below).sum())
        placed.out_of_range += int(far.sum())
        return views, probabilities, far

    write_predictions(out, map(place, parts), uncertain_below)
    return placed
