"""Neighbour search and donors against brute force and against Algorithm 1 written out."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from viewfuse.methods.urrl.config import Config
from viewfuse.neighbors import approximate as candidates
from viewfuse.neighbors import index as search
from viewfuse.neighbors.index import (
    NO_NEIGHBOR,
    MultiViewIndex,
    TieKeys,
    ViewIndex,
    content_keys,
    fingerprints,
    index_training_set,
    neighbor_lists,
    row_keys,
)


class BytesOfResults(torch.overrides.TorchFunctionMode):
    """How large the largest tensor is that a function of torch returns."""

    most = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.most = max(self.most, result.numel() * result.element_size())
        return result


def there(view):
    return torch.ones(len(view), 1, dtype=torch.bool)


def lots_of(queries, pool):
    """Where there is one view only."""
    return TieKeys(fingerprints([queries], there(queries)), row_keys(content_keys([pool], there(pool)), 0))


def nearest(queries, pool, count, *, same):
    return search.nearest(queries, search.centred(pool), lots_of(queries, pool), count, same=same)


def indexed(pool):
    """A view index and what it finds for new rows, as a function."""
    index = ViewIndex(pool, lots_of(pool, pool).rows)
    return index, lambda queries, count, same=False: index.nearest(
        queries, lots_of(queries, pool).queries, count, same=same
    )


@st.composite
def incomplete_data(draw, max_rows=14, max_views=4):
    """Views of random widths with a mask that leaves every sample a view."""
    n, n_views = draw(st.integers(1, max_rows)), draw(st.integers(1, max_views))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    widths = [draw(st.integers(1, 6)) for _ in range(n_views)]
    mask = rng.random((n, n_views)) >= draw(st.sampled_from([0.0, 0.3, 0.6, 0.9]))
    mask[np.arange(n), rng.integers(n_views, size=n)] = True
    values = [rng.normal(size=(n, width)).astype(np.float32) * mask[:, v, None] for v, width in enumerate(widths)]
    return values, mask, rng


def lists_of(values, mask, available, settings):
    tensors = [torch.from_numpy(view) for view in values]
    neighbor_ids = MultiViewIndex(tensors, torch.from_numpy(mask)).neighbors_of_own(settings.search_depth)
    return neighbor_lists(neighbor_ids, torch.from_numpy(available), torch.from_numpy(mask), settings.list_length)


@given(incomplete_data(), st.integers(1, 20), st.sampled_from([1, 2, 6, 30]), st.booleans())
def test_lists_are_those_of_algorithm_1(data, k, depth, drop):
    values, mask, rng = data
    available = mask.copy()
    if drop:  # views dropped by augmentation are missing for the sample, but not for its neighbours
        available &= rng.random(mask.shape) >= 0.5
        available[np.arange(len(mask)), mask.argmax(axis=1)] = True
    members, valid = lists_of(values, mask, available, Config(n_neighbors=k, donor_depth=depth))
    for i in range(len(mask)):
        for v in range(mask.shape[1]):
            expected = reference.knn_list(values, mask, available[i], i, v, k, depth)
            found = [
                i if available[i, v] and a == 0 else j for a, j in enumerate(members[i, v].tolist()) if valid[i, v, a]
            ]
            assert found == expected
            assert valid[i, v].tolist() == [a < len(expected) for a in range(k)]


@given(incomplete_data())
def test_nobody_is_their_own_donor(data):
    values, mask, _ = data
    available = np.zeros_like(mask)
    available[np.arange(len(mask)), mask.argmax(axis=1)] = True
    members, _ = lists_of(values, mask, available, Config(n_neighbors=5))
    assert not (members == torch.arange(len(mask))[:, None, None]).any()


@pytest.mark.parametrize(
    ("without", "donors"),
    [((0,), [1, NO_NEIGHBOR]), ((0, 1), [2, 3]), ((0, 1, 2), [3, 4]), ((0, 1, 2, 3, 4), [NO_NEIGHBOR] * 2)],
)
def test_distant_donors_are_taken_only_where_there_are_no_near_ones(without, donors):
    """With k = 2 the printed algorithm looks at one neighbour, sample 1; then as many as was asked for, here four."""
    values = [np.arange(8, dtype=np.float32)[:, None]] * 2
    mask = np.ones((8, 2), dtype=bool)
    mask[list(without), 1] = False
    members, _ = lists_of(values, mask, mask, Config(n_neighbors=2, donor_depth=5))
    assert members[0, 1].tolist() == donors


def test_without_imputation_a_list_is_the_sample_itself():
    values = [np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)]
    mask = np.array([[True, False], [True, True], [True, True]])
    members, valid = lists_of(values, mask, mask, Config(knn_imputation=False, donor_depth=9))
    assert members.shape == (3, 2, 1)
    assert (members == NO_NEIGHBOR).all()
    assert (valid[:, :, 0].numpy() == mask).all()


@pytest.mark.parametrize("chunk", [1, 7, 10_000])
def test_search_is_exact_whatever_the_chunk(monkeypatch, chunk):
    monkeypatch.setattr(search, "_BYTES_PER_CHUNK", 8 * chunk)
    rng = np.random.default_rng(0)
    pool, queries = rng.normal(size=(40, 6)) + 1e4, rng.normal(size=(9, 6)) + 1e4
    found = nearest(torch.from_numpy(queries), torch.from_numpy(pool), 5, same=False).numpy()
    distances = ((queries[:, None] - pool) ** 2).sum(axis=2)
    assert (found == distances.argsort(axis=1)[:, :5]).all()


def crowds():
    """Sets whose neighbours are clear, tie, lie far away or have very different scales."""
    rng = np.random.default_rng(5)
    cloud = rng.normal(size=(240, 20))
    return {
        "cloud": cloud,
        "ties": rng.integers(0, 2, size=(240, 8)),
        "twins": np.repeat(cloud[:12], 20, axis=0),
        "far away": cloud + 1e5,
        "one far away": np.concatenate([cloud[1:], cloud[:1] + 1e7]),
        "tiny": cloud * 1e-20,
        "huge": cloud * 1e17,
        "far too huge": cloud * 1e30,
    }


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("name", crowds())
def test_neighbours_are_the_nearest_at_any_scale(name, same):
    """Against differences in float64."""
    pool = torch.from_numpy(crowds()[name]).float()
    queries = pool if same else pool[:100] * (1 + 1e-3)
    points, centre = pool.double().numpy(), pool.double().numpy().mean(axis=0)
    squares = ((queries.double().numpy()[:, None] - points) ** 2).sum(axis=2)
    if same:
        np.fill_diagonal(squares, np.inf)
    found = np.take_along_axis(squares, nearest(queries, pool, 9, same=same).numpy(), axis=1)
    grain = 2e-11 * ((points - centre) ** 2).sum(axis=1).max()
    np.testing.assert_allclose(found, np.sort(squares, axis=1)[:, :9], rtol=0, atol=grain)


def test_queries_that_overflow_float32_find_their_neighbours():
    pool = torch.randn(1200, 2, generator=torch.Generator().manual_seed(0)) * 1e11
    pool[:3] = 2.5e13
    pool[500] = torch.tensor([-5e14, 5.8e14])
    found = nearest(torch.full((1000, 2), 1e24), pool, 3, same=False)
    assert (found[:, 0] == 500).all()


@pytest.mark.parametrize(("rows", "columns", "count"), [(1200, 256, 9), (3000, 128, 55)])
def test_search_takes_a_few_chunks_of_memory(rows, columns, count):
    points = search.centred(torch.rand(rows, columns))
    with BytesOfResults() as seen:
        nobody = TieKeys(*(torch.zeros(n, dtype=torch.int64) for n in (1500, rows)))
        search.nearest(torch.rand(1500, columns), points, nobody, count, same=False)
    assert seen.most <= 4 * search._BYTES_PER_CHUNK + 4 * rows * columns


def test_search_leaves_out_the_query_itself_even_among_duplicates():
    pool = torch.zeros(6, 3)
    found = nearest(pool, pool, 5, same=True)
    assert [sorted(row) for row in found.tolist()] == [[j for j in range(6) if j != i] for i in range(6)]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_a_pool_that_is_kept_finds_what_a_new_one_does(n, count, seed):
    pool, queries = torch.randn(n + 5, 4, generator=torch.Generator().manual_seed(seed)).split([n, 5])
    index, find = indexed(pool)
    find(pool, count, same=True)
    assert "_points" not in vars(index), "a training set is searched once"
    for part in (queries, queries[:1]):
        assert torch.equal(find(part, count), nearest(part, pool, count, same=False))
    assert torch.equal(find(pool, count, same=True), nearest(pool, pool, count, same=True))
    assert "_points" in vars(index)


def test_large_pools_are_not_kept(monkeypatch):
    monkeypatch.setattr(search, "_CELLS_KEPT", 39)
    index, find = indexed(torch.randn(10, 4))
    find(torch.randn(1, 4), 3)
    assert "_points" not in vars(index)


def test_short_lists_end_with_nobody():
    pool = torch.tensor([[0.0], [1.0], [3.0]])
    assert nearest(pool, pool, 4, same=True).tolist() == [
        [1, 2, NO_NEIGHBOR, NO_NEIGHBOR],
        [0, 2, NO_NEIGHBOR, NO_NEIGHBOR],
        [1, 0, NO_NEIGHBOR, NO_NEIGHBOR],
    ]
    assert nearest(pool[:0], pool, 2, same=False).shape == (0, 2)
    assert nearest(pool, pool[:0], 2, same=False).tolist() == [[NO_NEIGHBOR, NO_NEIGHBOR]] * 3


def test_search_holds_no_square_matrix():
    """The memory of the search does not grow with the square of the samples."""
    pool = torch.rand(30_000, 2)
    with BytesOfResults() as seen:
        nearest(pool[:300], pool, 3, same=False)
    assert seen.most <= search._BYTES_PER_CHUNK


@pytest.mark.parametrize("chunk", [1, 50, 10_000])
def test_equal_distances_are_decided_alike_in_any_company(monkeypatch, chunk):
    rng = np.random.default_rng(0)
    pool, queries = (torch.from_numpy(rng.integers(0, 2, size=(n, 30)).astype(np.float32)) for n in (300, 40))
    together = nearest(queries, pool, 5, same=False)
    monkeypatch.setattr(search, "_BYTES_PER_CHUNK", 8 * chunk)
    assert torch.equal(together, nearest(queries, pool, 5, same=False))
    assert torch.equal(together[7:8], nearest(queries[7:8], pool, 5, same=False))


def test_equal_distances_do_not_favour_the_first_rows():
    pool = torch.zeros(1000, 3)
    found = nearest(torch.zeros(1, 3), pool, 100, same=False)
    assert 300 < float(found.double().mean()) < 700


@pytest.fixture
def crowd():
    """Points in clumps, as data are; in high dimensions without structure nothing is near."""
    rng = np.random.default_rng(0)
    centres = rng.normal(scale=3.0, size=(60, 12))
    return torch.from_numpy((centres[rng.integers(60, size=2000)] + rng.normal(size=(2000, 12))).astype(np.float32))


def recall(found, truth) -> float:
    return float((truth[:, :, None] == found[:, None, :]).any(dim=2).double().mean())


@pytest.mark.parametrize("same", [False, True])
def test_large_pools_are_searched_through_candidates(crowd, same, monkeypatch):
    pytest.importorskip("faiss")
    queries = crowd if same else crowd[:500] + 0.01
    truth = nearest(queries, crowd, 9, same=same)
    monkeypatch.setattr(search, "_EXACT_ROWS", {"cpu": 1000})
    index = MultiViewIndex([crowd], there(crowd))

    def find(index, rows, depth=9):
        return index.neighbors_of_new([rows], there(rows), depth)[:, 0]

    found = index.neighbors_of_own(9)[:, 0] if same else find(index, queries)
    assert recall(found, truth) >= 0.95
    assert not same or not (found == torch.arange(len(crowd))[:, None]).any()
    if not same:
        assert torch.equal(find(copy.deepcopy(index), queries[:5]), find(index, queries[:5]))


def test_without_faiss_the_search_is_exact(crowd, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(search, "_EXACT_ROWS", {"cpu": 1000})
    found = indexed(crowd)[1](crowd[:50], 5)
    assert torch.equal(found, nearest(crowd[:50], crowd, 5, same=False))
    assert "pip install faiss-cpu, or in a checkout of viewfuse pip install -e '.[ann]'" in caplog.text


def test_candidates_by_float32_hold_the_neighbours(crowd, monkeypatch):
    monkeypatch.setattr(candidates, "_CELLS_PER_CHUNK_ON_GPU", 100_000)
    rough = candidates.roughly_nearest(crowd, crowd, 18)
    found = indexed(crowd)[0].among(crowd, rough, lots_of(crowd, crowd), 9, same=True)
    assert torch.equal(found, nearest(crowd, crowd, 9, same=True))


def test_candidates_that_run_out_leave_nobody(crowd):
    candidates = torch.tensor([[3, NO_NEIGHBOR, 0], [NO_NEIGHBOR, NO_NEIGHBOR, NO_NEIGHBOR]])
    found = indexed(crowd)[0].among(crowd[:2], candidates, lots_of(crowd[:2], crowd), 4, same=True)
    assert found.tolist() == [[3, NO_NEIGHBOR, NO_NEIGHBOR, NO_NEIGHBOR], [NO_NEIGHBOR] * 4]


def test_equal_samples_have_one_list_of_neighbours():
    view = torch.tensor([[0.0], [0.0], [1.0], [3.0]])
    lists = index_training_set([view], torch.ones(4, 1, dtype=torch.bool), 3).neighbor_ids
    assert torch.equal(lists[0], lists[1])
    assert lists[2].tolist() == [[1, 0, 3]] or lists[2].tolist() == [[0, 1, 3]]
