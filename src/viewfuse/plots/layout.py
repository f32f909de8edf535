"""Where samples lie on a map: the embedding in two dimensions; and which views samples lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_BY_TSNE = 5_000
"""Of more samples than this t-SNE places a random choice of so many: half a minute of computing."""
MOST_PLACED = 20_000
"""Of more samples than this a random choice of so many has a place: more dots would cover each other."""
_STEPS = 500
"""Of t-SNE. Twice as many, its default, draw the same map with clusters a little denser (results/speed)."""
_NEAREST = 5
_WORTH_THREADS = 1_000
"""With fewer dots threads wait for each other most of the time."""


class Places(NamedTuple):
    """Samples on a map."""

    rows: NDArray[np.int64]  # which samples have a place, in ascending order
    xy: NDArray[np.float32]  # of shape (2, rows)
    n: int  # of how many samples these are

    def table(self) -> NDArray[np.float32]:
        """Coordinates of all samples, of shape (samples, 2); NaN for those without a place."""
        found = np.full((self.n, 2), np.nan, dtype=np.float32)
        found[self.rows] = self.xy.T
        return found


def place_samples(embedding: NDArray[np.float32]) -> Places:
    """Places of samples, or of a choice of them, from embeddings of shape (samples, width).

    t-SNE places up to `MOST_BY_TSNE`; each of the others lies between its nearest among these.
    """
    n = len(embedding)
    order = np.random.default_rng(0).permutation(n)[:MOST_PLACED]
    first, others = np.sort(order[:MOST_BY_TSNE]), np.sort(order[MOST_BY_TSNE:])
    known = plane(embedding[first])
    xy = np.hstack([known, _between_nearest(embedding[others], embedding[first], known)])
    rows = np.concatenate([first, others])
    ascending = np.argsort(rows)
    return Places(rows[ascending], xy[:, ascending], n)


def _between_nearest(
    points: NDArray[np.float32], known: NDArray[np.float32], xy: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Places of shape (2, points): the mean of those of the nearest known points, near ones counting more."""
    from sklearn.neighbors import KNeighborsRegressor

    if not len(points):
        return np.empty((2, 0), dtype=np.float32)
    least = 1e-6 * float(np.square(known).sum(axis=1).mean()) + 1e-12
    nearest = KNeighborsRegressor(min(_NEAREST, len(known)), weights=lambda apart: 1 / (np.square(apart) + least))
    return nearest.fit(known, xy.T).predict(points).T.astype(np.float32)


def plane(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Coordinates of shape (2, samples), by t-SNE."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if len(points) < 10:  # too few for neighbourhoods
        flat = np.zeros((len(points), 2), dtype=np.float32)
        count = min(2, *points.shape)
        if len(points) > 1:  # one point has no directions
            flat[:, :count] = PCA(count).fit_transform(points)
        return flat.T
    start = PCA(2, random_state=0).fit_transform(points)
    start = start / max(float(start[:, 0].std()), 1e-12) * 1e-4  # as t-SNE wants it; equal points divide by zero there
    perplexity = min(30.0, (len(points) - 1) / 3)
    with threadpool_limits(1 if len(points) < _WORTH_THREADS else None):
        drawn = TSNE(init=start.astype(np.float32), perplexity=perplexity, max_iter=_STEPS, random_state=0)
        return drawn.fit_transform(points).T


def find_patterns(mask: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Which views are missing together: the patterns in a mask, how many samples have each, and that of each sample.

    The pattern of all views comes first, then the most frequent ones.
    """
    found, of_sample, sizes = np.unique(mask, axis=0, return_inverse=True, return_counts=True)
    order = np.array(sorted(range(len(found)), key=lambda p: (not found[p].all(), -sizes[p])))
    place = np.empty(len(found), dtype=np.int64)
    place[order] = np.arange(len(found))
    return found[order], sizes[order], place[of_sample.ravel()]


def lacking(present: NDArray[np.bool_], view_names: Sequence[str], longest: int = 40) -> str:
    """A pattern in words of at most `longest` characters."""
    if present.all():
        return "all views"
    there = [name for name, is_there in zip(view_names, present, strict=True) if is_there]
    lost = [name for name, is_there in zip(view_names, present, strict=True) if not is_there]
    words = f"only {', '.join(there)}" if len(there) < len(lost) else f"without {', '.join(lost)}"
    return shortened(words, longest)


def shortened(words: str, longest: int) -> str:
    """The beginning of a text that is too long."""
    return words if len(words) <= longest else words[: longest - 1] + "…"
