"""Stored samples are recognised, and nobody else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

from test_neighbors import incomplete_data
from viewfuse.neighbors.index import (
    NO_NEIGHBOR,
    RowIndex,
    fingerprints,
    index_new_samples,
    index_training_set,
)


@given(incomplete_data())
def test_stored_samples_are_found_and_changed_ones_are_not(data):
    values, mask, _ = data
    tensors, present = [torch.from_numpy(view) for view in values], torch.from_numpy(mask)
    index = RowIndex(tensors, present)
    assert index.find(tensors, present).tolist() == list(range(len(mask)))
    moved = [view + 1e-3 for view in tensors]
    assert (index.find(moved, present) == NO_NEIGHBOR).all()
    if mask.shape[1] > 1:
        other = present.clone()
        other[:, 0] = ~other[:, 0]
        assert (index.find(tensors, other) == NO_NEIGHBOR).all()


def test_equal_fingerprints_are_not_enough(monkeypatch):
    monkeypatch.setattr(
        "viewfuse.neighbors.index.fingerprints",
        lambda values, present: torch.zeros(len(present), dtype=torch.int64),
    )
    stored, present = [torch.tensor([[1.0], [2.0]])], torch.ones(2, 1, dtype=torch.bool)
    index = RowIndex(stored, present)
    found = index.find([torch.tensor([[1.0], [3.0]])], present)
    assert found.tolist() == [0, NO_NEIGHBOR]
    assert index.find([torch.tensor([[1.0]])], ~present[:1]).tolist() == [NO_NEIGHBOR]


@pytest.mark.parametrize("n_prints", [1, 3])
def test_samples_with_one_fingerprint_keep_their_own_neighbours(n_prints, monkeypatch):
    """In training, and as known and new samples of a model."""
    rng = np.random.default_rng(0)
    values = [torch.from_numpy(rng.normal(size=(40, 3)).astype(np.float32)) for _ in range(2)]
    present = torch.ones(40, 2, dtype=torch.bool)
    new = [torch.cat([view[20:30], view[:10] + 0.5]) for view in values]
    stored = index_training_set(values, present, 4)
    known = torch.tensor([*range(20, 30), *[NO_NEIGHBOR] * 10])
    wanted = index_new_samples(new, present[:20], stored, known).neighbor_ids
    full = fingerprints
    monkeypatch.setattr("viewfuse.neighbors.index.fingerprints", lambda *data: full(*data) % n_prints)
    collided = RowIndex(values, present)
    assert torch.equal(index_training_set(values, present, 4).neighbor_ids, stored.neighbor_ids)
    found = collided.find(new, present[:20])
    assert torch.equal(found, known)
    assert torch.equal(index_new_samples(new, present[:20], stored, found).neighbor_ids, wanted)
    for view in values:
        view[5] = view[2]
    twins = RowIndex(values, present).find(values, present)
    assert twins.tolist() == [*range(5), 2, *range(6, 40)]  # of equal samples the first


def test_both_zeros_are_one():
    present = torch.ones(1, 1, dtype=torch.bool)
    assert torch.equal(fingerprints([torch.tensor([[0.0]])], present), fingerprints([torch.tensor([[-0.0]])], present))


def test_fingerprints_rarely_collide():
    rng = np.random.default_rng(0)
    bits = torch.from_numpy(rng.integers(0, 2, size=(20_000, 40)).astype(np.float32))
    keys = fingerprints([bits], torch.ones(20_000, 1, dtype=torch.bool))
    assert len(keys.unique()) == len(bits.unique(dim=0))


def test_samples_of_zeros_are_told_apart_by_their_views():
    """A missing view holds zeros; so may one that is there."""
    values, present = [torch.ones(2, 1), torch.zeros(2, 1)], torch.tensor([[True, True], [True, False]])
    assert len(fingerprints(values, present).unique()) == 2  # tie-break keys depend on it
    assert RowIndex(values, present).find(values, present).tolist() == [0, 1]
