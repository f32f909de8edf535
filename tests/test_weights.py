"""Weights of samples and views: how they are read, and that a weight of 2 is a sample that is there twice."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from flat import flat
from test_hints import TINY, groups
from viewfuse import URRL, Views, load
from viewfuse.data.scaling import fit_scaler
from viewfuse.data.side_information.knowledge import Knowledge, sample_weights, weights_of_views
from viewfuse.errors import CheckpointDiffers, DataError, SettingError
from viewfuse.methods.urrl import losses_and_augmentation as losses
from viewfuse.metrics import clustering_accuracy
from viewfuse.selection.kmeans import drawn_centers, initial_centers, k_means, micro_clusters
from viewfuse.selection.scores import merits, view_weights

IDS = np.array([f"s{i}" for i in range(4)])


@pytest.mark.parametrize(
    "given",
    [
        [1, 3, 0, 4],
        np.array([2, 6, 0, 8]),
        ("0.5", "1.5", "0", "2"),
        pd.Series([4.0, 0.0, 3.0, 1.0], index=["s3", "s2", "s1", "s0"]),
        {"s3": "4", "s2": "0", "s1": "3", "s0": "1", "elsewhere": "5"},
    ],
    ids=["list", "array", "text", "series of ids", "dict"],
)
def test_weights_of_every_form_are_the_same(given):
    assert sample_weights(given, IDS).tolist() == [0.5, 1.5, 0.0, 2.0]


@pytest.mark.parametrize("size", [2.0**1021, 5e-324])
def test_huge_and_tiny_weights_are_weights_all_the_same(size):
    assert sample_weights([size, 3 * size, 0, 4 * size], IDS).tolist() == [0.5, 1.5, 0.0, 2.0]
    assert sample_weights([size, 0, 0, 0], IDS).tolist() == [4, 0, 0, 0]
    assert weights_of_views({"a": size, "b": 3 * size}, ["a", "b"]) == (0.5, 1.5)


@pytest.mark.parametrize("given", [None, [2, 2, 2, 2], np.full(4, 0.1), dict.fromkeys(IDS, 7)])
def test_equal_weights_are_none(given):
    assert sample_weights(given, IDS) is None


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([1, 2, 3], r"sample_weight is of shape \(3,\) for 4 samples"),
        ([[1], [2], [3], [4]], r"of shape \(4, 1\) for 4 samples"),
        ([1, -1, 2, 3], "the sample_weight of 's1' is -1; give numbers of at least 0"),
        ([1, 2, np.nan, 3], "of 's2' is nan"),
        ([np.inf, 1, 2, 3], "of 's0' is inf"),
        ({"s0": 1, "s1": 2, "s3": 1}, "of 's2' is nan; give numbers of at least 0, one for every sample"),
        (["a", 1, 2, 3], "holds something that is no number"),
        ([0, 0, 0, 0], "every sample_weight is zero"),
    ],
)
def test_mistakes_are_one_clear_line(given, fault):
    with pytest.raises(DataError, match=fault) as caught:
        sample_weights(given, IDS)
    assert "\n" not in str(caught.value)


def repeated(weights, *tensors):
    """Each row as often as its weight says."""
    times = torch.as_tensor(weights).long()
    return [one.repeat_interleave(times, dim=0) for one in tensors]


def test_a_weight_is_a_repetition_in_every_loss():
    draw = torch.Generator().manual_seed(0)
    n = 9
    weights = torch.tensor([1, 0, 3, 2, 1, 1, 0, 5, 2]).double()
    near, far, centers = (5 + torch.randn(m, 3, generator=draw).double() for m in (n, n, 4))
    errors, present = torch.rand(n, 2, generator=draw).double(), torch.rand(n, 2, generator=draw) < 0.7
    known = torch.tensor([0, 2, -1, 3, -1, 1, 1, 2, -1])
    many = repeated(weights, near, far, errors, present, known)
    pairs = [
        (losses.reconstruction(errors.unbind(1), present, weights), losses.reconstruction(many[2].unbind(1), many[3])),
        (losses.robustness(near, far, weights), losses.robustness(many[0], many[1])),
        (losses.clustering(near, centers, weights=weights), losses.clustering(many[0], centers)),
        (losses.hints(near, centers, known, weights), losses.hints(many[0], centers, many[4])),
    ]
    for one, other in pairs:
        assert float(one) == pytest.approx(float(other), rel=1e-6)
    q = losses.soft_assignment(near, centers)
    target = losses.target(losses.soft_assignment(many[0], centers))
    assert torch.allclose(repeated(weights, losses.target(q, weights=weights))[0], target, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_networks_side_by_side_are_those_of_each(weighted):
    """With weights, hints and views of their own, which sum to other totals."""
    draw = torch.Generator().manual_seed(2)
    near, far = (torch.randn(3, 6, 4, generator=draw).double() for _ in range(2))
    centers, errors = torch.randn(3, 5, 4, generator=draw).double(), torch.rand(3, 6, 2, generator=draw).double()
    present, known = torch.rand(3, 6, 2, generator=draw) < 0.6, torch.randint(-1, 5, (3, 6), generator=draw)
    weights = torch.tensor([[1, 2, 3, 4, 5, 6], [0.5] * 6, [0, 9, 0, 1, 1, 7]]).double()

    def terms(at):
        own = weights[at] if weighted else None
        return [
            losses.reconstruction(errors[at].unbind(-1), present[at], own), losses.robustness(near[at], far[at], own),
            losses.clustering(near[at], centers[at], weights=own), losses.hints(near[at], centers[at], known[at], own),
        ]  # fmt: skip

    alone = [torch.stack(terms(one)) for one in range(3)]
    assert torch.allclose(torch.stack(terms(slice(None))), torch.stack(alone, dim=1), rtol=1e-6)


@pytest.mark.parametrize("weights", [[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
def test_nothing_is_learned_from_samples_without_weight(weights):
    draw = torch.Generator().manual_seed(1)
    near, far = (torch.randn(4, 3, generator=draw).requires_grad_() for _ in range(2))
    centers, own, known = torch.randn(2, 3, generator=draw), torch.tensor(weights), torch.tensor([0, 1, -1, 0])
    errors = [(near - 1).square().mean(dim=1)]
    terms = (
        losses.reconstruction(errors, torch.ones(4, 1, dtype=torch.bool), own), losses.robustness(near, far, own),
        losses.clustering(near, centers, weights=own), losses.hints(near, centers, known, own),
    )  # fmt: skip
    sum(terms).backward()
    for one in (near, far):
        assert torch.isfinite(one.grad).all()
        assert (one.grad[own == 0].abs() < 1e-30).all()
        assert one.grad[own > 0].any(dim=1).all()


def test_a_weight_is_a_repetition_in_k_means(monkeypatch):
    rng = np.random.default_rng(0)
    points = torch.from_numpy(rng.normal(size=(40, 3)) + 100)
    weights = torch.from_numpy(rng.integers(0, 4, 40)).double()
    (many,) = repeated(weights, points)
    starts = points[torch.from_numpy(rng.permutation(40)[:8])].view(2, 4, 3)
    # Centres stop by the variance of the points, in which weights do not count: let none stop early.
    monkeypatch.setattr("viewfuse.selection.kmeans._TOLERANCE", 0.0)
    found, spread = k_means(points, weights, starts, 50)
    expected, theirs = k_means(many, torch.ones(len(many)), starts, 50)
    assert torch.allclose(found, expected, rtol=1e-9)
    assert torch.allclose(spread, theirs, rtol=1e-6)
    smaller = k_means(points, weights / 100, starts, 50)  # less than one sample in all
    assert torch.allclose(smaller[0], expected, rtol=1e-9)
    assert torch.allclose(smaller[1] * 100, theirs, rtol=1e-6)
    mean = initial_centers(points, 1, 0, None, weights)
    assert mean == pytest.approx(many.mean(dim=0, keepdim=True).numpy(), rel=1e-6)
    drawn = drawn_centers(points, weights, 5, np.random.RandomState(0), 30)
    assert not (drawn[..., None, :] == points[weights == 0]).all(dim=-1).any()


def test_groups_of_samples_count_what_their_samples_count():
    rng = np.random.default_rng(1)
    points, weights = torch.from_numpy(rng.normal(size=(50, 2))), torch.from_numpy(rng.integers(1, 5, 50)).double()
    means, sizes = micro_clusters(points, 6, np.random.RandomState(2), weights)
    assert float(sizes.sum()) == float(weights.sum())
    assert torch.allclose((means * sizes[:, None]).sum(dim=0), (points * weights[:, None]).sum(dim=0))


def test_centres_start_without_samples_that_do_not_count():
    rng = np.random.default_rng(2)
    truth = np.repeat([0, 1, 2], [20, 12, 8])
    points = torch.from_numpy(rng.normal(size=(40, 4)) + 9 * np.eye(4)[truth]).float()
    weights = torch.from_numpy(1.0 + truth)
    weights[truth == 2] = 0
    moved = points.clone()
    moved[truth == 2] += 1000
    assert np.array_equal(initial_centers(points, 2, 0, None, weights), initial_centers(moved, 2, 0, None, weights))


def fitted(views, checkpoint=None, **known):
    return URRL(3, **flat(**TINY, checkpoint=checkpoint), random_state=0).fit(views, **known)


def test_equal_weights_change_nothing_to_the_bit_and_others_do(tmp_path):
    truth, views = groups()
    plain, same = fitted(views), fitted(views, sample_weight=np.full(len(truth), 3.0))
    assert plain.soft_labels_.tobytes() == same.soft_labels_.tobytes()
    assert plain.decisions_ == same.decisions_
    weights = 1.0 + (truth == 0)
    weights[:5] = 0
    other = fitted(views, tmp_path / "kept", sample_weight=weights)
    assert other.labels_.shape == truth.shape
    assert other.embedding_.tobytes() != plain.embedding_.tobytes()
    assert other.decisions_["weights"]["chosen"] == len(truth) - 5
    known = Knowledge.from_records(other.decisions_, other.ids_[3:])
    assert known.weights == pytest.approx(weights[3:] / weights[3:].mean())
    with pytest.raises(CheckpointDiffers, match="sample_weight"):
        fitted(views, tmp_path / "kept")


def test_more_clusters_than_samples_that_count_are_refused():
    truth, views = groups()
    with pytest.raises(DataError, match="2 samples have a weight above 0, too few for 3 clusters"):
        fitted(views, sample_weight=(np.arange(len(truth)) < 2) * 1.0)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([1, 2], r"view_weights is \[1, 2\]; give a dict such as \{'rna': 2\}"),
        ({"dna": 2}, "view_weights names 'dna'; the views are rna, protein"),
        ({"rna": 0}, "view_weights of 'rna' is 0; give a number above 0, or leave the view out"),
        ({"protein": -1.0}, "of 'protein' is -1.0"),
        ({"rna": np.nan}, "of 'rna' is nan"),
        ({"rna": "many"}, "of 'rna' is 'many'"),
    ],
)
def test_mistakes_in_weights_of_views_are_one_clear_line(given, fault):
    with pytest.raises(SettingError, match=fault):
        weights_of_views(given, ["rna", "protein"])


def test_weights_of_views_have_the_order_of_the_views_and_a_mean_of_one():
    assert weights_of_views({"protein": "3"}, ["rna", "protein"]) == (0.5, 1.5)
    assert weights_of_views({"protein": 3, "rna": 3}, ["rna", "protein"]) is None
    assert weights_of_views({}, ["rna", "protein"]) is None
    assert weights_of_views(None, ["rna"]) is None


@pytest.mark.parametrize("kind", ["none", "standard"])
def test_a_weight_of_a_view_multiplies_its_squared_distances(kind):
    _, views = groups()
    data = Views({name: table + 1 for name, table in views.items()})
    plain = fit_scaler(data, kind)
    weighed = plain.weighed((0.5, 1.5))
    for v, weight in enumerate((0.5, 1.5)):
        rows = data.mask[:, v]
        one, other = (scaler.apply(data).arrays[v][rows].astype(np.float64) for scaler in (plain, weighed))
        squares = [np.square(own[:, None] - own).sum(axis=2) for own in (one, other)]
        assert squares[1] == pytest.approx(weight * squares[0], rel=1e-4, abs=1e-6)
        assert weighed.undo(v, other) == pytest.approx(data.arrays[v][rows], rel=1e-5)
    assert plain.weighed(None) is plain


def test_weights_of_views_multiply_their_scores():
    rng = np.random.default_rng(0)
    neighbors, partitions = (
        torch.from_numpy(rng.integers(0, 30, (30, 2, 9))),
        torch.from_numpy(rng.integers(0, 3, (4, 30))),
    )
    repeats = view_weights(neighbors)
    alone = [merits(partitions, neighbors[:, v : v + 1], 3) for v in range(2)]
    for place, merit in enumerate(merits(partitions, neighbors, 3, (0.5, 1.5))):
        own = [0.5 * repeats[0], 1.5 * repeats[1]]
        for name in ("score", "agreement", "information"):
            expected = np.average([getattr(view[place], name) for view in alone], weights=own)
            assert getattr(merit, name) == pytest.approx(expected)


@pytest.mark.slow
def test_weights_of_views_reach_a_fit_and_stay_in_the_model(tmp_path):
    """A view of another partition decides once it counts a hundred times as much, also after the model was saved."""
    truth, views = groups()
    other = np.random.default_rng(5).permutation(truth)
    views["image"] = 0.06 * np.eye(5)[other] + np.random.default_rng(6).normal(size=(len(other), 5)) / 100
    plain = fitted(views)
    assert fitted(views, view_weights={"sound": 2, "image": 2}).soft_labels_.tobytes() == plain.soft_labels_.tobytes()
    for name, groups_there in (("sound", truth), ("image", other)):
        model = fitted(views, view_weights={name: 100})
        assert clustering_accuracy(groups_there, model.labels_) > 0.9
        assert model.decisions_["weights"]["evidence"]["views"][name] == pytest.approx(200 / 101)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert np.array_equal(again.predict(views), model.labels_)
    assert Knowledge.from_records(again.decisions_, again.ids_).views == pytest.approx((2 / 101, 200 / 101))
