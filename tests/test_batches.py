"""Gathering, view dropout and noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from test_neighbors import incomplete_data
from training_tools import index_samples
from viewfuse.methods.urrl import losses_and_augmentation as augment
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import (
    add_noise,
    draws_per_sample,
    drop_views,
    gather_neighbors,
    plain_batch,
    two_branches,
)
from viewfuse.missing import paper_mask
from viewfuse.neighbors.index import NO_NEIGHBOR, index_new_samples


def stored_samples(values, mask, settings):
    return index_samples([torch.from_numpy(view) for view in values], torch.from_numpy(mask), settings)


@given(incomplete_data(), st.integers(1, 6))
def test_gathered_values_and_fill_mask_are_those_of_the_paper(data, k):
    values, mask, _ = data
    settings = Config(n_neighbors=k)
    stored = stored_samples(values, mask, settings)
    batch = plain_batch(stored, stored, settings)
    for i in range(len(mask)):
        tokens, valid = reference.knn_imputation(values, mask, mask[i], i, k, settings.donor_depth)
        assert (batch.valid[i].numpy() == valid).all()
        for v, block in enumerate(tokens):
            assert batch.tokens[v][i].numpy() == pytest.approx(block)


@given(incomplete_data())
def test_hidden_values_reach_nothing(data):
    values, mask, rng = data
    settings = Config(n_neighbors=3)
    junk = [
        np.where(mask[:, v, None], view, rng.normal(size=view.shape)).astype(np.float32)
        for v, view in enumerate(values)
    ]
    clean, dirty = stored_samples(values, mask, settings), stored_samples(junk, mask, settings)
    for a, b in zip(
        plain_batch(clean, clean, settings).tokens, plain_batch(dirty, dirty, settings).tokens, strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0.15), (0.25, 0.17), (0.5, 0.23), (0.75, 0.32), (1.0, 0.46)])
def test_view_dropout_grows_with_the_missing_rate_as_in_the_paper(rate, expected):
    """The paper's last column of the view dropout table: Caltech101-7, five views, three of them missing."""
    mask = torch.from_numpy(paper_mask(1400, 5, rate, 3, random_state=0))
    assert round(augment.view_dropout_rate(mask), 2) == expected


@given(incomplete_data(), st.sampled_from([0.0, 0.2, 0.9]))
def test_dropping_views_adds_none_and_leaves_one(data, rate):
    _, mask, rng = data
    present = torch.from_numpy(mask)
    draws = torch.from_numpy(rng.random((len(mask), 2 * mask.shape[1]), dtype=np.float32))
    available = drop_views(present, rate, draws)
    assert not (available & ~present).any()
    assert available.any(dim=1).all()
    assert rate > 0 or torch.equal(available, present)


def test_views_drop_at_the_asked_rate():
    present = torch.ones(20_000, 4, dtype=torch.bool)
    available = drop_views(present, 0.3, torch.rand(20_000, 8))
    kept_by_force = 0.3**4 / 4
    assert float(available.float().mean()) == pytest.approx(0.7 + kept_by_force, abs=0.005)


def test_noise_has_its_size_and_spares_padding():
    values = [np.full((400, 50), 2.0, dtype=np.float32)]
    settings = Config(n_neighbors=4, noise=0.5, feature_dropout=0.2)
    stored = stored_samples([values[0][:3]], np.ones((3, 1), dtype=bool), settings)
    clean = plain_batch(stored, stored, settings)  # three samples: the fourth place is padding
    add_noise(clean.tokens, clean.valid, settings, torch.rand(3, 4, 50))
    assert (clean.tokens[0][:, 3] == 0).all()
    shown = clean.tokens[0][:, :3]
    assert float((shown == 0).float().mean()) == pytest.approx(0.2, abs=0.05)
    assert float(shown[shown != 0].mean()) == pytest.approx(2.0, abs=0.1)
    assert float(shown[shown != 0].std()) == pytest.approx(0.5, abs=0.05)


def test_noise_is_normal_and_has_nothing_to_do_with_dropout():
    settings = Config(noise=2.0, feature_dropout=0.3)
    tokens = [torch.full((500, 2, width), 7.0) for width in (40, 60)]
    add_noise(tokens, torch.ones(500, 2, 2, dtype=torch.bool), settings, torch.rand(500, 2, 100))
    for values in tokens:
        noise = (values[values != 0] - 7.0).double() / 2.0
        assert len(noise) == pytest.approx(0.7 * values.numel(), rel=0.02)
        assert [float((noise**k).mean()) for k in (1, 2, 3, 4)] == pytest.approx([0, 1, 0, 3], abs=0.1)
        assert float((noise.abs() > 1.96).double().mean()) == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("extreme", [2.0**-24, 1 - 2.0**-24, 0.05, 0.050000004])
def test_extreme_draws_give_finite_noise(extreme):
    tokens = [torch.zeros(1, 1, 1)]
    add_noise(tokens, torch.ones(1, 1, 1, dtype=torch.bool), Config(), torch.full((1, 1, 1), extreme))
    assert float(tokens[0].abs()) < 6 * Config().noise


def test_both_branches_come_in_one_batch():
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(8, width)).astype(np.float32) for width in (3, 5)]
    settings = Config(n_neighbors=2, noise=0.0, feature_dropout=0.0)
    stored = stored_samples(values, np.ones((8, 2), dtype=bool), settings)
    rows, draws = torch.arange(8)[None], torch.rand(1, 8, sum(draws_per_sample(stored, settings)))
    samples, both = two_branches(stored, rows, settings, 0.5, draws)
    plain = plain_batch(stored, stored, settings)
    assert torch.equal(both.tokens[0][:8], plain.tokens[0])
    expected = gather_neighbors(stored, both.available[8:], stored, settings)
    assert torch.equal(both.tokens[1][8:], expected.tokens[1])
    assert not torch.equal(both.available[8:], plain.available)
    assert all(torch.equal(samples.values[1][half], stored.values[1]) for half in (slice(8), slice(8, 16)))
    _, noisy = two_branches(stored, rows, replace(settings, noise=0.1), 0.0, draws)
    assert torch.equal(noisy.tokens[0][:8], plain.tokens[0])
    assert not torch.isclose(noisy.tokens[0][8:], plain.tokens[0]).any()


def test_branches_of_several_replicates_are_those_of_each():
    values = [torch.randn(30, width).numpy() for width in (3, 5)]
    settings = Config(n_neighbors=3)
    stored = stored_samples(values, np.random.default_rng(0).random((30, 2)) < 0.7, settings)
    rows, draws = torch.randint(30, (4, 6)), torch.rand(4, 6, sum(draws_per_sample(stored, settings)))
    rates = torch.tensor([0.1, 0.3, 0.5, 0.7]).view(4, 1, 1)
    together = two_branches(stored, rows, settings, rates, draws)[1]
    for r in range(4):
        alone = two_branches(stored, rows[r : r + 1], settings, rates[r : r + 1], draws[r : r + 1])[1]
        part = slice(12 * r, 12 * r + 12)
        assert torch.equal(together.available[part], alone.available)
        assert torch.equal(together.valid[part], alone.valid)
        assert all(torch.equal(a[part], b) for a, b in zip(together.tokens, alone.tokens, strict=True))


def test_newcomers_find_their_neighbours_among_the_stored():
    values = [torch.tensor([[0.0], [10.0], [20.0]])]
    settings = Config(n_neighbors=2)
    stored = index_samples(values, torch.ones(3, 1, dtype=torch.bool), settings)
    new = [torch.tensor([[9.0], [20.0]])]
    samples = index_new_samples(new, torch.ones(2, 1, dtype=torch.bool), stored, torch.tensor([NO_NEIGHBOR, 2]))
    batch = plain_batch(samples, stored, settings)
    assert batch.tokens[0][:, :, 0].tolist() == [[9.0, 10.0], [20.0, 10.0]]  # the second one is stored sample 2


@given(incomplete_data(), st.integers(1, 3), st.sampled_from([1, 4]))
def test_donors_are_searched_no_deeper_than_was_asked(data, k, depth):
    """More neighbours than that are stored: those that score clusters."""
    values, mask, _ = data
    settings = Config(n_neighbors=k, donor_depth=depth)
    stored = stored_samples(values, mask, settings)
    valid = plain_batch(stored, stored, settings).valid.numpy()
    for i in range(len(mask)):
        assert (valid[i] == reference.knn_imputation(values, mask, mask[i], i, k, depth)[1]).all()
