"""Words that no fitted row has, in the columns that there are: what new kinds of texts are about.

A fitted front end drops them, so that texts of a new kind lie among those that share their common words. Fitted rows
do not have them: what is done with these words changes no fitted row. They get one direction, that in which known rows
differ the least; each as much as it says what the novel texts have in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.given import Values, parts_of, times_columns
from viewfuse.reduction.components import fit_components
from viewfuse.reduction.frontend import FrontEnd


def with_new_words(
    front_end: FrontEnd, values: Values, novel: NDArray[np.bool_], known: NDArray[np.floating[Any]]
) -> FrontEnd:
    """The front end that tells novel rows by their new words; itself where they have none.

    Their words are summed with the weights of their first singular vector, times what makes this sum as long, on
    average, as the new words of a row are: the one direction stands for all of them.

    Parameters
    ----------
    values : rows of a view of words, of shape (samples, columns)
    novel : of shape (samples,): which of them look like nothing that is known
    known : reduced rows of known samples, of shape (known samples, components)
    """
    if front_end.how != "words" or not novel.any() or not len(known):
        return front_end
    fresh = ((front_end.high <= 0) & ~front_end.axes.any(axis=1)).astype(np.float64)

    def parts() -> Iterator[Values]:
        return (times_columns(front_end.transform.apply(part), fresh) for part in parts_of(values, novel))

    found = fit_components(parts, 1, centred=False)
    loadings = found.axes[:, 0] / np.sqrt(found.kept)
    axes = front_end.axes + np.outer(loadings, _least_used(known.astype(np.float64)))
    return replace(front_end, axes=axes.astype(np.float32))


def _least_used(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The direction of length 1 along which rows are shortest, away from their mean, of shape (columns,)."""
    direction = np.linalg.eigh(rows.T @ rows)[1][:, 0]
    return -direction if rows.mean(axis=0) @ direction > 0 else direction
