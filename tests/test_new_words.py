"""Words that no fitted row has: fitted rows stay as they are, and novel rows get a direction of their own."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from viewfuse.reduction.reduce import fit_front_end, with_new_words


def texts(topics, seed, width=400):
    """Counts of words: a fifth of the columns are words of each of five topics, the rest of a row is any of them."""
    rng, topics = np.random.default_rng(seed), np.asarray(topics)
    rate = np.full((len(topics), width), 0.02)
    for row, topic in enumerate(topics):
        rate[row, topic * width // 5 : (topic + 1) * width // 5] = 0.5
    rate[:, 4 * width // 5 :] *= topics[:, None] == 4  # words that the topics before the last never have
    return rng.poisson(rate).astype(np.float32)


OLD, NEW = np.repeat([0, 1, 2], (60, 40, 20)), np.repeat([0, 4, 1], (9, 14, 5))


def literal(front_end, rows, novel, known):
    """One word at a time, with numpy's decompositions of dense tables."""
    table = np.asarray(front_end.transform.apply(rows[novel].astype(np.float64)))
    for column in range(table.shape[1]):
        if front_end.high[column] > 0 or front_end.axes[column].any():
            table[:, column] = 0.0
    vectors = np.linalg.svd(table, full_matrices=False)[2]
    sums = table @ vectors[0]
    weights = vectors[0] * np.sign(vectors[0].sum()) * np.sqrt((table**2).sum() / (sums**2).sum())
    direction = np.linalg.svd(known.astype(np.float64))[2][-1]
    if (known.mean(axis=0) * direction).sum() > 0:
        direction = -direction
    return front_end.axes + weights[:, None] * direction


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_fitted_rows_stay_and_novel_ones_lie_apart(kind):
    old, new = texts(OLD, 0), texts(NEW, 1)
    front_end = fit_front_end(kind(old), np.arange(len(old)) != 3, "words")
    reduced, novel = front_end.apply(kind(old)), NEW == 4
    found = with_new_words(front_end, kind(new), novel, reduced)
    assert np.array_equal(found.apply(kind(old)), reduced)
    np.testing.assert_allclose(found.axes, literal(front_end, new, novel, reduced), atol=2e-6)
    before, after = front_end.apply(kind(new)), found.apply(kind(new))
    has = (new[:, (found.axes != front_end.axes).any(axis=1)] > 0).any(axis=1)
    assert has[novel].all() > has.all()
    assert np.array_equal(before[~has], after[~has])
    assert (after[novel] @ reduced.T).max() < (before[novel] @ reduced.T).max()
    assert (after[novel] @ after[novel].T).min() > (before[novel] @ before[novel].T).min()
    found.check(old.shape[1])


def test_words_that_have_a_direction_keep_it():
    old, new = texts(OLD, 0), texts(NEW, 1)
    front_end = fit_front_end(old, np.ones(len(old), bool), "words")
    reduced = front_end.apply(old)
    first = with_new_words(front_end, new, (NEW == 4) & (np.arange(len(NEW)) < 12), reduced)
    second = with_new_words(first, new, NEW == 4, reduced)
    had = first.axes.any(axis=1)
    assert np.array_equal(second.axes[had], first.axes[had])
    assert second.axes.any(axis=1).sum() > had.sum() > front_end.axes.any(axis=1).sum()


def test_nothing_changes_without_novel_rows_known_rows_or_words():
    old, new = texts(OLD, 0), texts(NEW, 1)
    front_end = fit_front_end(old, np.ones(len(old), bool), "words")
    assert with_new_words(front_end, new, NEW == 3, front_end.apply(old)) is front_end
    assert with_new_words(front_end, new, NEW == 4, front_end.apply(old)[:0]) is front_end
    counts = fit_front_end(old, np.ones(len(old), bool), "counts")
    assert with_new_words(counts, new, NEW == 4, counts.apply(old)) is counts
    plain = fit_front_end(old, np.ones(len(old), bool), "none")
    assert with_new_words(plain, new, NEW == 4, plain.apply(old)) is plain
    known = with_new_words(front_end, old, OLD == 1, front_end.apply(old))  # rows without a new word
    assert np.array_equal(known.axes, front_end.axes)
