"""Rows at equal distances: their keys against a literal reference, in any order of rows, and as random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from viewfuse.neighbors import index as search
from viewfuse.neighbors.index import (
    NO_NEIGHBOR,
    MultiViewIndex,
    RowIndex,
    TieKeys,
    ViewIndex,
    fingerprints,
    index_new_samples,
    index_training_set,
    row_keys,
)

_WRAP = 2**64
_STRIDE = 0x9E3779B97F4A7C15


def signed(number):
    return (number + 2**63) % _WRAP - 2**63


def literal_keys(values, mask, view):
    """Of every pair, of shape (queries, rows), by Python's own integers."""
    prints = fingerprints([torch.from_numpy(x) for x in values], torch.from_numpy(mask)).tolist()
    keys = [signed(own + prints[:i].count(own) * _STRIDE) for i, own in enumerate(prints)]
    rows = []
    for key in keys:
        mixed = signed(key + view)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = signed((mixed ^ (mixed >> shift)) * factor)
        rows.append(mixed ^ (mixed >> 31))
    return [[(query ^ row) * _STRIDE % 2**62 for row in rows] for query in keys]


def literal_neighbors(values, mask, view, count):
    """Per sample that has the view its nearest others, ties broken by keys."""
    ties, x = literal_keys(values, mask, view), values[view].astype(np.int64)
    found = {}
    for i in np.flatnonzero(mask[:, view]):
        others = [j for j in np.flatnonzero(mask[:, view]) if j != i]
        others.sort(key=lambda j: (int(((x[i] - x[j]) ** 2).sum()), ties[i][j]))
        found[i] = [int(j) for j in others[:count]]
    return found


def one_hot(rng, n, levels):
    return np.eye(levels, dtype=np.float32)[rng.integers(levels, size=n)]


def tied_views(rng, n):
    """Binary, categorical and count views, and some rows that are copies of others in all of them."""
    views = [
        rng.integers(0, 2, size=(n, 5)),
        np.concatenate([one_hot(rng, n, 3), one_hot(rng, n, 4)], axis=1),
        rng.poisson(1.0, size=(n, 3)),
    ]
    mask = rng.random((n, 3)) < 0.8
    mask[np.arange(n), rng.integers(3, size=n)] = True
    views = [np.where(mask[:, [v]], view, 0).astype(np.float32) for v, view in enumerate(views)]
    for view in (*views, mask):
        view[-n // 10 :] = view[: n // 10]
    return views, mask


def own_neighbors(values, mask, depth=9):
    return MultiViewIndex([torch.from_numpy(x) for x in values], torch.from_numpy(mask)).neighbors_of_own(depth)


@pytest.fixture(params=["all", "no spare candidates", "small blocks"])
def way(request, monkeypatch):
    """Ways that a search can take."""
    if request.param == "no spare candidates":
        monkeypatch.setattr(search, "_SPARE_CANDIDATES", 0)
    if request.param == "small blocks":
        monkeypatch.setattr(search, "_BYTES_PER_CHUNK", 8 * 700)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("count", [1, 4])
def test_neighbours_are_those_of_the_literal_reference(count):
    values, mask = tied_views(np.random.default_rng(1), 70)
    found = own_neighbors(values, mask, count)
    for v in range(3):
        wanted = literal_neighbors(values, mask, v, count)
        assert {i: found[i, v].tolist() for i in wanted} == wanted


def test_candidates_are_ranked_as_all_rows_are():
    values, mask = tied_views(np.random.default_rng(2), 80)
    pool = torch.from_numpy(values[0])[mask[:, 0]]
    index = MultiViewIndex([torch.from_numpy(x) for x in values], torch.from_numpy(mask))
    ties = TieKeys(index._keys[mask[:, 0]], row_keys(index._keys[mask[:, 0]], 0))
    everyone = torch.arange(len(pool)).flip(0).repeat(len(pool), 1)
    found = ViewIndex(pool, ties.rows).among(pool, everyone, ties, 6, same=True)
    rows = np.flatnonzero(mask[:, 0])
    wanted = literal_neighbors(values, mask, 0, 6)
    assert [rows[own].tolist() for own in found.numpy()] == [wanted[i] for i in rows]


@pytest.mark.parametrize(
    "search", [own_neighbors, lambda *data: index_training_set(*torch_data(*data), 9).neighbor_ids]
)
def test_what_the_neighbours_hold_does_not_depend_on_the_order_of_rows(search):
    rng = np.random.default_rng(3)
    values, mask = tied_views(rng, 300)
    order = rng.permutation(300)
    whole = np.concatenate([*values, mask], axis=1)

    def contents(x, present):
        ids, held = search(x, present).numpy(), np.concatenate([*x, present], axis=1)
        return np.where((ids == NO_NEIGHBOR)[..., None], -1, held[ids])

    first, second = contents(values, mask), contents([x[order] for x in values], mask[order])
    # Copies are interchangeable, and so are their lists.
    sample = {tuple(row): lists for row, lists in zip(whole[:270], first[:270], strict=True)}
    seen = 0
    for row, lists in zip(whole[order], second, strict=True):
        if (whole == row).all(axis=1).sum() == 1:
            assert (sample[tuple(row)] == lists).all()
            seen += 1
    assert seen > 150


def torch_data(values, mask):
    return [torch.from_numpy(x) for x in values], torch.from_numpy(mask)


def drawn_at_random(x, count, rng):
    """Neighbours of every row; equally far ones by independent random numbers."""
    far = ((x[:, None] - x) ** 2).sum(axis=2) + rng.random((len(x), len(x))) / 2
    np.fill_diagonal(far, np.inf)
    return far.argsort(axis=1)[:, :count]


@pytest.mark.parametrize("kind", ["binary", "categorical", "counts"])
def test_no_row_is_everybodys_neighbour(kind):
    """As many rows are somebody's neighbour, and the largest in-degree is, as where ties are drawn at random."""
    rng = np.random.default_rng(4)
    x = {
        "binary": rng.integers(0, 2, size=(300, 5)),
        "categorical": one_hot(rng, 300, 6),
        "counts": rng.poisson(2.0, size=(300, 2)),
    }[kind].astype(np.float32)
    found = own_neighbors([x], np.ones((300, 1), dtype=bool))[:, 0].numpy()
    wanted = np.array([np.bincount(drawn_at_random(x, 9, rng).ravel(), minlength=300) for _ in range(20)])
    counts = np.bincount(found.ravel(), minlength=300)
    assert (counts > 0).sum() >= (wanted > 0).sum(axis=1).min() - 5
    assert counts.max() <= wanted.max() + 3
    assert abs(counts.std() / wanted.std(axis=1).mean() - 1) < 0.15


def test_independent_views_share_as_many_neighbours_as_chance_gives():
    rng = np.random.default_rng(5)
    views = [rng.integers(0, 2, size=(300, 5)).astype(np.float32) for _ in range(2)]
    found = own_neighbors(views, np.ones((300, 2), dtype=bool)).numpy()
    shared = np.mean([len(set(a) & set(b)) / 9 for a, b in found])
    by_chance = [
        np.mean([len(set(a) & set(b)) / 9 for a, b in zip(*(drawn_at_random(x, 9, rng) for x in views), strict=True)])
        for _ in range(10)
    ]
    assert abs(shared - np.mean(by_chance)) < 4 * np.std(by_chance) + 0.002


def test_one_is_no_more_often_the_others_neighbour_because_the_other_is_its_own():
    """The key of A for B says nothing of that of B for A."""
    rng = np.random.default_rng(6)
    x = np.zeros((400, 2), dtype=np.float32)
    other = rng.normal(size=(400, 1)).astype(np.float32)
    found = own_neighbors([x, other], np.ones((400, 2), dtype=bool))[:, 0].numpy()
    joined = np.zeros((400, 400), dtype=bool)
    joined[np.arange(400)[:, None], found] = True
    assert (joined & joined.T).sum() / joined.sum() < 3 * 9 / 399


def test_a_new_sample_has_the_same_neighbours_alone_and_in_any_batch():
    rng = np.random.default_rng(7)
    values, present = torch_data(*tied_views(rng, 150))
    stored = index_training_set(values, present, 9)
    new_values, new_present = torch_data(*tied_views(rng, 40))
    known = RowIndex(values, present).find(new_values, new_present)
    together = index_new_samples(new_values, new_present, stored, known).neighbor_ids
    for i in range(40):
        alone = index_new_samples([x[[i]] for x in new_values], new_present[[i]], stored, known[[i]]).neighbor_ids
        assert torch.equal(alone[0], together[i])
    again = RowIndex(values, present).find(values, present)
    assert torch.equal(index_new_samples(values, present, stored, again).neighbor_ids, stored.neighbor_ids)
