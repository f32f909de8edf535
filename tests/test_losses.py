"""Each loss against its equation, and at the places where naive code gives NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from viewfuse.methods.urrl import losses_and_augmentation as losses

sizes = st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))


@given(sizes, st.integers(1, 4))
def test_reconstruction(size, n_views):
    batch, width, _, seed = size
    rng = np.random.default_rng(seed)
    rebuilt = [rng.normal(size=(batch, width + v)) for v in range(n_views)]
    values = [rng.normal(size=(batch, width + v)) for v in range(n_views)]
    present = rng.random((batch, n_views)) < 0.6
    errors = [
        losses.squared_error(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(rebuilt, values, strict=True)
    ]
    loss = losses.reconstruction(errors, torch.from_numpy(present))
    assert float(loss) == pytest.approx(reference.loss_rec(rebuilt, values, present), abs=1e-12)


@given(sizes)
def test_robustness(size):
    batch, width, _, seed = size
    rng = np.random.default_rng(seed)
    z, z_aug = rng.normal(size=(batch, width)), rng.normal(size=(batch, width))
    loss = losses.robustness(torch.from_numpy(z), torch.from_numpy(z_aug))
    assert float(loss) == pytest.approx(reference.loss_aug(z, z_aug), abs=1e-12)


@given(sizes)
def test_assignment_target_and_clustering_loss(size):
    batch, width, clusters, seed = size
    rng = np.random.default_rng(seed)
    z, centers = rng.normal(size=(batch, width)), rng.normal(size=(clusters, width))
    q = losses.soft_assignment(torch.from_numpy(z), torch.from_numpy(centers))
    assert q.numpy() == pytest.approx(reference.student_t(z, centers))
    assert losses.target(q).numpy() == pytest.approx(reference.target(q.numpy()))
    loss = losses.clustering(torch.from_numpy(z), torch.from_numpy(centers))
    assert float(loss) == pytest.approx(reference.loss_clu(z, centers), abs=1e-12)


@pytest.mark.parametrize("n", [1, 5])
def test_equal_embeddings_have_finite_gradients(n):
    z = torch.zeros(n, 4, requires_grad=True)
    losses.robustness(z, z).backward()
    assert torch.isfinite(z.grad).all()


def test_one_cluster_costs_nothing():
    z = torch.randn(6, 4, requires_grad=True)
    loss = losses.clustering(z, torch.zeros(1, 4))
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.isfinite(z.grad).all()


def test_the_target_takes_no_gradient():
    z, centers = torch.randn(6, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    fixed = losses.target(losses.soft_assignment(z, centers))

    def against_fixed_target(points):
        log_q = losses.log_assignment(points, centers)
        return (fixed * (fixed.log() - log_q)).sum() / len(points)

    moving = z.clone().requires_grad_()
    losses.clustering(moving, centers).backward()
    held = z.clone().requires_grad_()
    against_fixed_target(held).backward()
    assert torch.allclose(moving.grad, held.grad)


def test_far_away_points_stay_finite():
    z = torch.full((2, 4), 1e15)
    assert torch.isfinite(losses.clustering(z, torch.zeros(3, 4)))
    assert losses.soft_assignment(z, torch.zeros(3, 4)).sum(dim=1).tolist() == pytest.approx([1.0, 1.0])
