"""What the model says of samples, in a form that JSON can hold, in the order of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.views import Views
from viewfuse.io.writers import UNCERTAIN_BELOW
from viewfuse.serve.limits import Limits

if TYPE_CHECKING:
    from viewfuse.methods.base import MultiViewClusterer

_BYTES_PER_NUMBER = 12
"""In JSON, about."""

Answer = dict[str, Any]
Question = Callable[["MultiViewClusterer", Views, Limits], Answer]


def predict(fitted: MultiViewClusterer, views: Views, limits: Limits) -> Answer:
    """The cluster of each sample, and how sure that is."""
    limits.check_answer(_BYTES_PER_NUMBER * len(views) * len(fitted.cluster_centers_))
    complete, filled = fitted.complete(views)
    probabilities = fitted.predict_proba(complete)
    best = probabilities.max(axis=1)
    return {
        "ids": views.ids.tolist(),
        "labels": probabilities.argmax(axis=1).tolist(),
        "confidence": _shortest(best),
        "uncertain": (best < UNCERTAIN_BELOW).tolist(),
        "out_of_range": fitted.out_of_range(complete).tolist(),
        "probabilities": [_shortest(row) for row in probabilities],
        "filled_cells": {cells.view: cells.facts() for cells in filled},
    }


def impute(fitted: MultiViewClusterer, views: Views, limits: Limits) -> Answer:
    """All views of each sample, with what the model expects where one is missing."""
    complete, filled = fitted.complete(views)
    limits.check_answer(_BYTES_PER_NUMBER * len(complete) * sum(complete.widths))
    whole = fitted.impute(complete)
    return {
        "ids": views.ids.tolist(),
        "views": {
            name: {
                "columns": plain_names(columns),
                "values": [_shortest(row) for row in array],
                "imputed": (~complete.mask[:, v]).tolist(),
            }
            for v, (name, columns, array) in enumerate(zip(whole.names, whole.columns, whole.arrays, strict=True))
        },
        "filled_cells": {cells.view: cells.facts() for cells in filled},
    }


def explain(fitted: MultiViewClusterer, views: Views, limits: Limits) -> Answer:
    """Why each sample is where it is: the second-best cluster, the weights of its views, who stands in for them."""
    found = fitted.explain(views)
    return {
        "ids": found.ids.tolist(),
        "labels": found.labels.tolist(),
        "confidence": _shortest(found.confidence),
        "second_labels": found.second_labels.tolist(),
        "second_confidence": _shortest(found.second_confidence),
        "weights": {name: _shortest(found.weights[:, v]) for v, name in enumerate(found.view_names)},
        "donors": {name: [list(ids) for ids in found.donors[:, v]] for v, name in enumerate(found.view_names)},
    }


QUESTIONS: Mapping[str, Question] = {"predict": predict, "impute": impute, "explain": explain}
"""By the names of their addresses."""


def plain_names(columns: Sequence[Any]) -> list[str | int]:
    """Names of columns as bodies give them."""
    return [column if isinstance(column, (str, int)) else str(column) for column in columns]


def _shortest(values: NDArray[np.float32]) -> list[float]:
    """Numbers with as few digits as tell them from other float32 numbers: 0.1, and not 0.10000000149011612."""
    return [float(str(value)) for value in values]
